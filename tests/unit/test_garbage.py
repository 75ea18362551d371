"""Full passes of the garbage collector come when the pump sleeps. Time is trio's mock clock."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from shardsrv.shards import garbage


class Pump:
    turns = 0
    asleep_since = 0.0


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The times of full passes."""
    times: list[float] = []
    monkeypatch.setattr(gc, "collect", lambda: times.append(trio.current_time()))
    monkeypatch.setattr(gc, "freeze", lambda: None)
    yield times


def run(pump: Pump, seconds: float, live: object = None) -> None:
    """``seconds`` of the collector; ``live`` is another task beside it."""

    async def main() -> None:
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(garbage.collect_idle, pump)
                if live is not None:
                    nursery.start_soon(live)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_shard_that_did_nothing_is_not_looked_at(passes: list[float]) -> None:
    run(Pump(), 100)
    assert passes == []


def test_what_happened_is_collected_once_when_the_pump_sleeps(passes: list[float]) -> None:
    pump = Pump()

    async def live() -> None:
        await trio.sleep(1)
        pump.turns = 7
        await trio.sleep(20)
        pump.asleep_since = trio.current_time()

    run(pump, 200, live)
    assert len(passes) == 1


def test_a_pump_that_slept_for_a_moment_is_left_alone(passes: list[float]) -> None:
    pump = Pump()

    async def live() -> None:
        while True:
            pump.turns += 1
            await trio.sleep(0.2)
            pump.asleep_since = trio.current_time()

    run(pump, 120, live)
    assert passes == []


def test_a_load_without_end_is_interrupted_rarely(passes: list[float]) -> None:
    pump = Pump()

    async def live() -> None:
        while True:
            pump.turns += 1
            await trio.sleep(1)

    run(pump, 2 * garbage.LATEST + 20, live)
    assert len(passes) == 2
