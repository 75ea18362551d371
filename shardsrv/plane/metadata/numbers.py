"""Numbers that are given out lowest first and come back: ids of streams, topics and users, counter slots.

Invariants: `take` returns the smallest number not in use; the state is a function of the set of numbers in use, so two
copies that applied the same entries, or one that was restored from a snapshot, give out the same numbers.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable


class LowestFree:
    """The pool of the numbers 0..limit-1."""

    __slots__ = ("_free", "_next", "limit")

    def __init__(self, limit: int, used: Iterable[int] = ()) -> None:
        """`used` are the numbers in use, each once, all below `limit`; in any order."""
        taken = sorted(used)
        self.limit = limit
        self._next = taken[-1] + 1 if taken else 0
        self._free: list[int] = []
        expected = 0
        for number in taken:
            self._free.extend(range(expected, number))
            expected = number + 1

    @property
    def exhausted(self) -> bool:
        """True when every number below the limit is in use."""
        return not self._free and self._next >= self.limit

    @property
    def used(self) -> int:
        """How many numbers are in use."""
        return self._next - len(self._free)

    def take(self) -> int:
        """The lowest number that is not in use. The caller has looked at `exhausted`."""
        if self._free:
            return heapq.heappop(self._free)
        number = self._next
        self._next += 1
        return number

    def release(self, number: int) -> None:
        """Gives back a number that was taken."""
        heapq.heappush(self._free, number)
