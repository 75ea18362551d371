"""The head of a log as one value, and the one rule that moves it when entries arrive out of order.

A head has three forms: nothing yet, an entry that the log holds, and an op that a view announced but that the log does
not hold. Invariants: op and checksum move together or not at all; the checksum is that of the log's own entry at the
resulting op, never of the frame that arrived last; in the announced form nothing is built on the head and no vote
claims its entry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

EMPTY_HEAD: Final = 0
HELD: Final = 1
ANNOUNCED: Final = 2


@attrs.frozen
class Head:
    """``kind`` is EMPTY_HEAD, HELD or ANNOUNCED; ``checksum`` is the identity of entry ``op``, 0 unless held."""

    kind: int
    op: int
    checksum: int

    @property
    def builds(self) -> bool:
        """Whether the next prepare may be built on this head."""
        return self.kind != ANNOUNCED


NOTHING: Final = Head(EMPTY_HEAD, 0, 0)


def held(op: int, checksum: int) -> Head:
    """The head of a log that holds entry ``op`` (or ends at a floor of that op and identity); op 0 is the empty log."""
    return Head(HELD, op, checksum) if op else NOTHING


def announced(op: int) -> Head:
    """The head that a started view named; its entry is still to come."""
    return Head(ANNOUNCED, op, 0)


def refreshed(head: Head, floor: int, identity: Callable[[int], int | None]) -> Head:
    """The head after entries were inserted; ``identity(op)`` is the checksum of the log's entry, None when it has none.

    | head | log has the head's entry | result |
    |---|---|---|
    | announced | no | unchanged, whatever lies above it |
    | announced | yes | held, then up over what follows without a hole |
    | held | yes | up over what follows without a hole |
    | held | no, but op is ``floor`` (checkpoint or retention) | the same |
    | held | no, and op is not ``floor`` | unchanged |
    | nothing | - | from op 1 up over what follows without a hole |

    So an entry that fills a hole below the head moves nothing, and an entry above a hole is not reached.
    """
    op, checksum = head.op, head.checksum
    if head.kind != EMPTY_HEAD:
        own = identity(op)
        if own is not None:
            checksum = own
        elif head.kind == ANNOUNCED or op != floor:
            return head
    following = identity(op + 1)
    while following is not None:
        op, checksum = op + 1, following
        following = identity(op + 1)
    return held(op, checksum)
