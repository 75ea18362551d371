"""Timestamps of entries: they rise strictly within a log, whatever the wall clock does.

All values are microseconds since the epoch. A stamp is never checked when an entry is repaired or replayed: it was
accepted once, and refusing it later would lose the entry.
"""

from __future__ import annotations

from typing import Final

LEAP: Final = 1_000_000
"""How far past the last stamp a primary may go without agreeing with the backup's clock: one second."""


def next_timestamp(now: int, last: int) -> int:
    """The stamp of the next entry: ``now``, or just above ``last`` when the clock stands or runs backwards."""
    return now if now > last else last + 1


def acceptable(timestamp: int, now: int, last: int, slack: int) -> bool:
    """Whether a backup with clock ``now`` and last stamp ``last`` takes a new entry stamped ``timestamp``.

    Up to max(now + slack, last + 1 s): a primary whose clock ran away cannot drag the whole log into the future at
    once, and a backup whose clock stands still does not stop the group.
    """
    return last < timestamp <= max(now + slack, last + LEAP)
