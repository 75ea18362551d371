"""Garbage collection of a shard's process (design 3: nothing slow shares the pump's interpreter).

A full pass over the objects of 10,000 partitions takes tens of milliseconds, so it never comes by itself: what recovery
made is frozen, the automatic collector looks at young objects only, and the full pass waits for a pump that sleeps.
Plane objects have no cycles, so what a pass finds is little: tracebacks, tasks that ended.
"""

from __future__ import annotations

import gc
from typing import Final, Protocol

import trio

LOOK_EVERY: Final = 5.0
"""Seconds between two looks at whether the pump sleeps: twelve wake-ups a minute."""
ASLEEP: Final = 0.5
"""Seconds that the pump must have slept: a client that is about to go on would have gone on."""
LATEST: Final = 600.0
"""Seconds after which a pass comes although the pump never sleeps: memory stays bounded under a load without end."""


class Sleeper(Protocol):
    """What the collector asks of the pump."""

    turns: int
    asleep_since: float
    """`trio.current_time` when it went to sleep; 0 while it is awake."""


def collect_rarely() -> None:
    """After start: what recovery made is never looked at again; young objects only, full passes by `collect_idle`."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1_000_000)


def is_due(now: float, asleep_since: float, worked: bool, last: float) -> bool:
    """Whether a full pass comes now: something happened since the ``last`` one, and the pump sleeps or it was long
    ago."""
    asleep = asleep_since > 0 and now - asleep_since >= ASLEEP
    return worked and (asleep or now - last >= LATEST)


async def collect_idle(pump: Sleeper) -> None:
    """The task: full passes in idle turns, until cancelled. What survives one is frozen."""
    last, turns = trio.current_time(), pump.turns
    while True:
        await trio.sleep(LOOK_EVERY)
        now = trio.current_time()
        if is_due(now, pump.asleep_since, pump.turns != turns, last):
            gc.collect()
            gc.freeze()
            last, turns = now, pump.turns
