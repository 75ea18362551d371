"""Crashes that wait for a moment: where they strike, and what they leave of the write that they strike in."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from shardsrv.sim.chance import Chance
from shardsrv.sim.clock import SECOND, Schedule
from shardsrv.sim.disk import BLOCK, SimDisk
from shardsrv.sim.moments import MOMENTS, Moment, Strike, draw_strike
from shardsrv.sim.node_base import Crash
from shardsrv.sim.options import Options, draw, plain
from shardsrv.sim.trap import DiskTrap
from shardsrv.sim.world import World
from shardsrv.store.log import PrepareLog
from tests.support.logs import IDENTITY, Chain

SYNCED = Moment("log synced", ("fdatasync",), ".seg")
PATIENCE = 5 * SECOND


class Bench:
    """A trap in front of a disk with one log and one table; what ended the member is kept."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.schedule = Schedule()
        self.crashes: list[tuple[int, bool]] = []
        node: Any = SimpleNamespace(disk=self.disk, up=True)
        self.trap = DiskTrap(self, node, Random(3))  # type: ignore[arg-type]
        self.log = self.disk.open_write("/1.seg", create=True)
        self.table = self.disk.open_write("/1.groups", create=True)
        self.disk.pwritev(self.table, [bytes(4 * BLOCK)], 0)
        self.disk.on_call = self.trap

    def count(self, what: str) -> None: ...

    def reached(self, point: str) -> None: ...

    def crashed(self, node: Any, crash: Crash) -> None:
        self.crashes.append((self.schedule.now, crash.power))


def test_a_crash_waits_for_its_moment_and_counts_calls_from_there() -> None:
    bench = Bench()
    bench.trap.arm_at(Strike(SYNCED, 2, 0), True, PATIENCE)
    for _ in range(5):
        bench.disk.fdatasync(bench.table)
    assert bench.trap.waiting
    bench.disk.fdatasync(bench.log)
    bench.disk.fdatasync(bench.table)
    with pytest.raises(Crash) as crash:
        bench.disk.fdatasync(bench.table)
    assert crash.value.power


def test_a_crash_may_come_a_time_behind_its_moment() -> None:
    bench = Bench()
    bench.trap.arm_at(Strike(SYNCED, 0, 700), False, PATIENCE)
    bench.schedule.run_until(1_000)
    bench.disk.fdatasync(bench.log)
    bench.schedule.run_until(1_699)
    assert bench.crashes == []
    bench.schedule.run_until(2_000)
    assert bench.crashes == [(1_700, False)]


def test_an_action_takes_the_place_of_the_crash_and_learns_the_path() -> None:
    bench, seen = Bench(), []
    bench.trap.arm_at(Strike(SYNCED, 0, 700), False, PATIENCE, seen.append)
    bench.disk.fdatasync(bench.log)
    bench.schedule.run_until(1_000)
    assert (seen, bench.crashes) == (["/1.seg"], [])


def test_a_moment_that_does_not_come_is_not_waited_for() -> None:
    bench = Bench()
    bench.trap.arm_at(Strike(SYNCED, 0, 0), True, PATIENCE)
    bench.schedule.run_until(PATIENCE)
    assert bench.crashes == [(PATIENCE, True)]


def test_a_trap_that_is_armed_anew_forgets_what_it_waited_for() -> None:
    bench = Bench()
    bench.trap.arm_at(Strike(SYNCED, 0, 0), True, PATIENCE)
    bench.trap.disarm()
    bench.disk.fdatasync(bench.log)
    bench.schedule.run_until(2 * PATIENCE)
    assert bench.crashes == []


def test_a_page_that_is_written_over_is_there_whole_or_not_at_all() -> None:
    parts = set()
    for seed in range(40):
        bench = Bench()
        bench.trap.random = Random(seed)
        bench.trap.arm(0, False)
        with pytest.raises(Crash):
            bench.disk.pwritev(bench.table, [b"x" * BLOCK], BLOCK)
        with pytest.raises(Crash):
            bench.trap.arm(0, False)
            bench.disk.pwritev(bench.disk.open_write("/1.groups"), [b"y" * 2 * BLOCK], 2 * BLOCK)
        data = bench.disk.read("/1.groups")
        parts.add((data.count(b"x"), data.count(b"y")))
    assert parts <= {(0, 0), (0, BLOCK)}


def test_an_append_may_be_there_in_part() -> None:
    bench = Bench()
    bench.trap.arm(0, False)
    assert 0 < bench.disk.pwritev(bench.log, [b"x" * 300], 0) < 300


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.label)
def test_every_moment_comes_in_a_run(moment: Moment, met: set[str]) -> None:
    assert moment.label in met


@pytest.fixture(scope="module")
def met() -> set[str]:
    """Labels of the moments that the disk calls of two short runs meet, and those of a cut, which few runs make."""
    seen: set[str] = set()
    for members in (1, 3):
        world = World(options(9, members))
        for node, trap in zip(world.nodes, world.traps, strict=True):

            def call(call: Any, trap: DiskTrap = trap) -> int | None:
                seen.update(moment.label for moment in MOMENTS if moment.meets(call))
                return trap(call)

            node.disk.on_call = call
        assert world.run().violation is None
    disk = SimDisk()
    log, _ = PrepareLog.open(disk, "/log", IDENTITY, segment_size=1 << 20)
    disk.on_call = lambda call: seen.update(moment.label for moment in MOMENTS if moment.meets(call))
    chain = Chain()
    for _ in range(3):
        log.append(chain.send())
    log.flush()
    log.truncate_from(2)
    return seen


def options(seed: int, replicas: int) -> Options:
    return draw(Random(f"{seed}/options"), seed, replicas, 8)


def test_strikes_are_drawn_from_the_moments_of_a_run() -> None:
    strikes = [draw_strike(Chance(5).stream("faults"), MOMENTS[:2]) for _ in range(3)]
    assert len({(strike.calls, strike.delay) for strike in strikes}) == 1, "the same stream gives the same strike"
    assert all(strike.moment in MOMENTS[:2] and (strike.calls == 0 or strike.delay == 0) for strike in strikes)


def test_plain_runs_have_nothing_that_narrows() -> None:
    for seed in range(30):
        bare = plain(draw(Random(f"{seed}/options"), seed, 3, 8, narrow=False))
        assert (bare.faults.moment, bare.faults.squeeze, bare.load.burst) == (0.0, 0, 0.0)
    assert any(options(seed, 3).faults.squeeze for seed in range(30))
