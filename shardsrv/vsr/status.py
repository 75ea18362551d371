"""The states of a replica.

RECOVERING: its first record is not durable yet, or it restarted and asks for the present view. NORMAL: it leads or
follows a view. FENCED: a write failed, it takes no part any more. VIEW_CHANGE: it gave up its view and waits for the
next one to start. Only NORMAL serves requests; RECOVERING and FENCED count in no quorum.
"""

from typing import Final

RECOVERING: Final = 0
NORMAL: Final = 1
FENCED: Final = 2
VIEW_CHANGE: Final = 3
