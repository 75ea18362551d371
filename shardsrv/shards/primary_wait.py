"""Requests that came while their group had no primary that this node knows of and reaches: they wait for one, a while.

A view change takes a second or two, a link that broke is made again, a new partition's members have yet to hear of each
other: a client that has to be told "not now" (58) each time would do nothing but ask again. Invariants: what waits has
certainly had no effect; requests of a group go on in the order in which they came, none past one that waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from shardsrv.shards.parking import Parked

WAIT_TICKS: Final = 200
"""How long a request waits: 2 s, after which released clients ask another node (wire-0.11.md 1.7)."""
REQUESTS_MAX: Final = 4096
"""Of a shard; more are refused at once."""


class PrimaryWait:
    """See the module. ``settled`` says whether requests of a replica's group can be admitted or passed on now."""

    def __init__(self, settled: Callable[[Any], bool]) -> None:
        self._settled = settled
        self._held: dict[Any, deque[Parked]] = {}
        self._ticks = 0
        self.count = 0
        """Requests that wait."""

    def must(self, replica: Any) -> bool:
        """Whether a request for the group of ``replica`` has to wait."""
        return replica in self._held or not self._settled(replica)

    def hold(self, replica: Any, again: Callable[[], None], refuse: Callable[[], None]) -> None:
        """Call ``again`` when there is a primary, ``refuse`` when there is none in time, or no room to wait."""
        if self.count >= REQUESTS_MAX:
            refuse()
            return
        self.count += 1
        self._held.setdefault(replica, deque()).append(Parked(self._ticks + WAIT_TICKS, again, refuse))

    def tick(self) -> None:
        """10 ms passed."""
        self._ticks += 1
        for replica in list(self._held):
            if self._settled(replica):
                held = self._held.pop(replica)
                self.count -= len(held)
                for request in held:
                    request.again()
            else:
                self._refuse_late(replica)

    def _refuse_late(self, replica: Any) -> None:
        held = self._held[replica]
        while held and held[0].deadline <= self._ticks:
            self.count -= 1
            held.popleft().refuse()
        if not held:
            del self._held[replica]
