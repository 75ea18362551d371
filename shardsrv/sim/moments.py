"""Moments of a member's life on disk at which a crash matters most: each a class of calls on a class of files.

A crash that strikes at any time seldom falls between two steps whose order is a promise. A crash that waits for one of
the steps, and strikes at one of the calls or milliseconds behind it, does. A run has few moments of its own, so that it
meets them often.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

import attrs

from shardsrv.sim.clock import MILLISECOND
from shardsrv.sim.disk import Call

CALLS_MAX: Final = 5
"""Calls that change the disk between a moment and the crash, at most."""
DELAYS: Final = (1, 500, 2 * MILLISECOND, 8 * MILLISECOND, 30 * MILLISECOND)
"""Longest time between a moment and the crash, one of them a crash."""
BY_CALLS: Final = 0.5
"""Share of crashes that count calls; the others wait a time."""


@attrs.frozen
class Moment:
    """Calls with one of ``names`` on a path that holds ``part``."""

    label: str
    names: tuple[str, ...]
    part: str

    def meets(self, call: Call) -> bool:
        """Whether ``call`` is the moment."""
        return call.name in self.names and self.part in call.path


LOG_SYNCED: Final = Moment("log synced", ("fdatasync",), ".seg")
MESSAGE_WRITTEN: Final = Moment("message written", ("pwritev",), "/partitions/")
SEGMENT_DROPPED: Final = Moment("head segment dropped", ("unlink",), ".seg")
MOMENTS: Final = (
    Moment("entries written", ("pwritev",), ".seg"),
    LOG_SYNCED,
    Moment("frontier written", ("pwritev",), ".boot"),
    Moment("segment begun", ("fallocate", "open_write"), ".seg"),
    SEGMENT_DROPPED,
    Moment("suffix cut", ("truncate",), ".seg"),
    Moment("superblock written", ("rename",), "/superblock."),
    Moment("group table synced", ("fdatasync",), ".groups"),
    Moment("snapshot begun", ("open_write",), "/snapshot."),
    Moment("checkpoint written", ("rename",), "/checkpoint."),
)
"""What the bytes of a member are made of: log, frontier, promise, state."""


@attrs.frozen
class Strike:
    """A crash behind a moment: at change number ``calls`` (0: the call of the moment itself), or, when ``delay`` is not
    0, that many microseconds later."""

    moment: Moment
    calls: int
    delay: int


def draw_strike(random: Random, moments: Sequence[Moment]) -> Strike:
    """One of ``moments`` and a place behind it."""
    moment = random.choice(moments)
    calls, longest = random.randint(0, CALLS_MAX), random.choice(DELAYS)
    delay = random.randint(1, longest)
    return Strike(moment, calls, 0) if random.random() < BY_CALLS else Strike(moment, 0, delay)
