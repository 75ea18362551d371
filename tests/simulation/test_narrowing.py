"""What narrows a run: squeezes, bursts, dense logs, rot behind a sync; each happens, and the run stays green."""

from __future__ import annotations

from random import Random

import attrs
import pytest

from shardsrv.sim.cli import options_of, parser, replay
from shardsrv.sim.options import Options, draw, with_dense_logs, with_rot, with_squeezes
from shardsrv.sim.world import Result, World

KINDS = ("metadata", "partition")


def bare(seed: int, replicas: int, seconds: int = 8) -> Options:
    """A run without narrowings and without faults that are drawn."""
    options = draw(Random(f"{seed}/options"), seed, replicas, seconds, narrow=False)
    kinds = [name for name, value in attrs.asdict(options.faults).items() if type(value) is int and "time" not in name]
    return attrs.evolve(options, faults=attrs.evolve(options.faults, **dict.fromkeys(kinds, 0)))


def run(options: Options) -> Result:
    result = World(options).run()
    assert result.violation is None, result.violation
    return result


@pytest.mark.parametrize("replicas", [3, 5])
def test_a_squeeze_takes_all_down_but_those_that_lag(replicas: int) -> None:
    world = World(with_squeezes(bare(3, replicas)))
    downs: list[list[tuple[int, bool]]] = []
    bring_down, let_go = world.bring_down, world.faults._let_go

    def noted(node: object, power: bool, pause: int) -> None:
        downs[-1].append((node.index, power))  # type: ignore[attr-defined]
        bring_down(node, power, pause)  # type: ignore[arg-type]

    def squeezed(losing: list[int], others: list[int]) -> None:
        downs.append([])
        world.bring_down = noted  # type: ignore[method-assign]
        let_go(losing, others)
        world.bring_down = bring_down  # type: ignore[method-assign]

    world.faults._let_go = squeezed  # type: ignore[method-assign]
    assert world.run().violation is None
    assert downs
    minority = replicas - (replicas // 2 + 1)
    for down in downs:
        assert len(down) <= replicas - minority
        assert 1 <= sum(power for _, power in down) <= minority, "fewer lose power than may lose what they acknowledged"
    assert any(len(down) == replicas - minority for down in downs)


def test_bursts_send_to_one_partition_at_once() -> None:
    options = bare(5, 1)
    calm = attrs.evolve(options, load=attrs.evolve(options.load, burst=0.0))
    burst = attrs.evolve(options, load=attrs.evolve(options.load, burst=0.8))
    shares = [result.answered["send"] / result.requests for result in (run(calm), run(burst))]
    assert shares[1] > shares[0] + 0.1


def test_dense_logs_make_more_checkpoints() -> None:
    options = attrs.evolve(bare(5, 1), segment_size=64 * 1024, checkpoint_bytes=512 * 1024)
    dense = with_dense_logs(options)
    assert (dense.segment_size <= 4096, dense.checkpoint_bytes <= 8192) == (True, True)
    results = [run(each) for each in (options, dense)]
    metadata, partitions = ([result.counts.get(f"{kind} checkpoints", 0) for result in results] for kind in KINDS)
    assert metadata[1] > metadata[0]
    assert partitions[1] > 2 * partitions[0]


def test_rot_comes_behind_a_sync() -> None:
    reached: set[str] = set()
    for seed in range(3):
        reached |= set(run(with_rot(bare(seed, 1))).reached)
    assert "crash behind: log synced" in reached
    assert "damage of seg" in reached


def test_the_line_that_replays_a_run_has_its_flags() -> None:
    arguments = parser().parse_args(
        ["--seed", "9", "--replicas", "3", "--seconds", "2", "--storm", "--dense", "--squeeze"]
    )
    options = options_of(9, arguments)
    again = parser().parse_args(replay(result_of(options), arguments).split()[3:])
    assert options_of(9, again) == options


def result_of(options: Options) -> Result:
    return World(attrs.evolve(options, duration=1)).run()


@pytest.mark.parametrize(("replicas", "own", "other"), [(1, True, True), (2, False, False), (3, True, False)])
def test_bytes_change_where_others_hold_them(replicas: int, own: bool, other: bool) -> None:
    world = World(bare(1, replicas))
    first, last = world.nodes[0], world.nodes[-1]
    world.blame(first, "rot")
    assert world.may_spoil(first) == own
    assert world.may_spoil(last) == other


def test_bytes_change_nowhere_when_a_disk_was_wiped() -> None:
    world = World(bare(1, 3))
    assert world.spoilable(Random(1)) is not None
    world.blame(world.nodes[1], "wiped")
    assert world.spoilable(Random(1)) is None


def test_a_clean_stop_waits_for_the_syncs_that_are_out() -> None:
    world = World(bare(1, 1))
    world.schedule.run_until(1)
    node = world.nodes[0]
    node.start()
    node._round_running = True
    assert not world.faults._stop()
    assert node.up
    node._round_running = False
    assert world.faults._stop()
    assert not node.up
