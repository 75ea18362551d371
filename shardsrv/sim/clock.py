"""Time and order of a simulated run.

Owns the queue of what happens next and the clock of each member. Invariants: time moves only by taking the next item;
items of one time run in the order in which they were put in, so a run is a function of its seed. Times are
microseconds since the beginning of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final

EPOCH: Final = 1_767_225_600_000_000
"""Wall clock at the beginning of every run: 2026-01-01T00:00:00Z in microseconds."""
MILLISECOND: Final = 1_000
SECOND: Final = 1_000_000
HOUR: Final = 3_600 * SECOND


class Schedule:
    """What happens next."""

    __slots__ = ("_heap", "_sequence", "events", "now")

    def __init__(self) -> None:
        self.now = 0
        self.events = 0
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0

    def after(self, delay: int, action: Callable[..., None], *arguments: Any) -> None:
        """Run ``action(*arguments)`` in ``delay`` microseconds."""
        self._sequence += 1
        heappush(self._heap, (self.now + delay, self._sequence, action, arguments))

    def run_until(self, time: int, done: Callable[[], bool] | None = None, every: int = 256) -> bool:
        """Run everything up to ``time``; ends early when ``done()``, asked every ``every`` items, says so. Returns
        whether it did."""
        heap = self._heap
        left = every
        while heap and heap[0][0] <= time:
            at, _, action, arguments = heappop(heap)
            self.now = at
            self.events += 1
            action(*arguments)
            if done is not None:
                left -= 1
                if not left:
                    if done():
                        return True
                    left = every
        self.now = time
        return False


class MemberClock:
    """The wall clock of one member: off by ``offset`` microseconds, running ``drift`` millionths too fast."""

    __slots__ = ("_highest", "drift", "offset", "schedule")

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.offset = 0
        self.drift = 0
        self._highest = 0

    def highest(self) -> int:
        """The latest time that this member has ever believed it to be."""
        self._highest = max(self._highest, self.wall())
        return self._highest

    def wall(self) -> int:
        """Microseconds since the epoch, as this member believes."""
        now = self.schedule.now
        return EPOCH + now + self.offset + now * self.drift // SECOND

    def jump(self, microseconds: int) -> None:
        """Move the clock; never before the beginning of the run, where no log could have stamps below it."""
        self.highest()
        self.offset = max(self.offset + microseconds, -EPOCH // 2)
