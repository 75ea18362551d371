"""What the groups of one shard say to one node within a turn, on its way into one frame.

Only heartbeats and acknowledgements without a body are gathered: each is about one group, says all in its header, and
may come a moment later than other frames of its turn. One alone leaves as a frame of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from shardsrv.vsr.effects import Send
from shardsrv.vsr.frames import body_fields
from shardsrv.wire.gathered import ENTRIES_MAX, GatheredHeader, encode
from shardsrv.wire.replica_headers import CommitHeader, PrepareOkHeader

_KINDS: Final = (CommitHeader, PrepareOkHeader)


class Gathering:
    """See the module."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[int, list[Send]] = {}

    @property
    def empty(self) -> bool:
        """Whether nothing waits."""
        return not self._waiting

    def add(self, effect: Send) -> bool:
        """Take a `Send`; False when it is not gathered and leaves now."""
        if type(effect.header) not in _KINDS or len(effect.body):
            return False
        self._waiting.setdefault(effect.replica, []).append(effect)
        return True

    def take(self) -> Iterator[Send]:
        """What waits, as few frames as it takes; then nothing does."""
        waiting, self._waiting = self._waiting, {}
        for peer, sends in waiting.items():
            for start in range(0, len(sends), ENTRIES_MAX):
                yield self._frame(peer, sends[start : start + ENTRIES_MAX])

    def _frame(self, peer: int, sends: list[Send]) -> Send:
        if len(sends) == 1:
            return sends[0]
        headers: list[Any] = [effect.header for effect in sends]
        body = encode(headers)
        first = headers[0]
        return Send(peer, GatheredHeader(cluster=first.cluster, replica=first.replica, **body_fields(body)), body)
