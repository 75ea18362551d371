"""Requests for partitions that this shard has not made yet: they wait until it has caught up, a while."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import attrs
import trio

if TYPE_CHECKING:
    from shardsrv.shards.pump import Pump

SECONDS: Final = 5.0
"""How long a request waits for a partition that is being made, before it is told that it was not accepted (58)."""


@attrs.define(slots=True, eq=False)
class Parked:
    """A request that waits until ``deadline``, of a clock of who keeps it; exactly one of the two is called, once."""

    deadline: float
    again: Callable[[], None]
    refuse: Callable[[], None]


class Parking:
    """See the module."""

    def __init__(self) -> None:
        self._parked: deque[Parked] = deque()

    def __len__(self) -> int:
        return len(self._parked)

    def park(self, again: Callable[[], None], refuse: Callable[[], None]) -> None:
        """Call ``again`` when partitions were made, ``refuse`` when none were in time."""
        self._parked.append(Parked(trio.current_time() + SECONDS, again, refuse))

    def unpark(self) -> None:
        """The reconciler made progress: what waits is tried again."""
        parked, self._parked = self._parked, deque()
        for request in parked:
            request.again()

    async def watch(self, pump: Pump) -> None:
        """The task that refuses what has waited for too long, until cancelled."""
        while True:
            await trio.sleep(SECONDS / 5)
            while self._parked and self._parked[0].deadline <= trio.current_time():
                pump.step(self._parked.popleft().refuse)
