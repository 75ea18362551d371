"""One member's data is damaged while it is down; two healthy ones hold it: at the end it is whole again.

Each class of data that is no promise; `World.run` ends only when all members are equal, byte by byte.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import attrs
import pytest

from shardsrv.sim.clock import SECOND
from shardsrv.sim.disk import SimDisk
from shardsrv.sim.node import Node
from shardsrv.sim.options import FaultOptions, Options, draw
from shardsrv.sim.world import Result, World, files_of
from shardsrv.store.segment import SEGMENT_HEADER

NEVER = dict.fromkeys(attrs.fields_dict(FaultOptions), 0)
QUIET = FaultOptions(**NEVER | {"down_time": SECOND, "crash_in_write": 0.0})


def calm(seed: int, drop_logs: bool) -> Options:
    """Three members, many checkpoints, and nothing that goes wrong by itself."""
    drawn = draw(Random(seed), seed, 3, 9)
    network = attrs.evolve(drawn.network, loss=0.0, repetition=0.0, damage=0.0)
    load = attrs.evolve(drawn.load, weights=(("send", 60), ("create_topic", 4), ("store_offset", 10), ("poll", 5)))
    return attrs.evolve(
        drawn,
        faults=QUIET,
        network=network,
        load=load,
        checkpoint_bytes=4096,
        segment_size=4096,
        clock_skew=0,
        drop_logs=drop_logs,
    )


def run(spoil: Callable[[SimDisk], None], *, power: bool, drop_logs: bool, seed: int = 3) -> Result:
    """``spoil`` the disk of member 2, which goes down after 5 s."""
    world = World(calm(seed, drop_logs))

    def strike() -> None:
        node: Node = world.nodes[2]
        world.bring_down(node, power, 2 * SECOND)
        world.blame(node, "rot")
        spoil(node.disk)

    world.schedule.after(5 * SECOND, strike)
    return world.run()


def chosen(disk: SimDisk, where: str, ending: str) -> str:
    """The first file below ``where`` with this ending that holds data."""
    return next(path for path in files_of(disk, where) if path.endswith(ending) and disk.size(path) > SEGMENT_HEADER)


def first_entry_of_a_partition(disk: SimDisk) -> None:
    disk.flip(chosen(disk, "/data/partitions", ".seg"), (SEGMENT_HEADER + 300) * 8)


def segment_header_of_a_partition(disk: SimDisk) -> None:
    disk.flip(chosen(disk, "/data/partitions", ".seg"), 50 * 8)


def segment_of_another_partition(disk: SimDisk) -> None:
    paths = [path for path in files_of(disk, "/data/partitions") if path.endswith(".seg")]
    target = next(path for path in paths if path.rpartition("/")[0] != paths[0].rpartition("/")[0])
    disk.put(target, disk.read(paths[0]))


def checkpoint_of_a_partition(disk: SimDisk) -> None:
    path = next(path for path in files_of(disk, "/data/partitions") if path.endswith("checkpoint.a"))
    disk.flip(path, 40 * 8)


def first_entry_of_metadata(disk: SimDisk) -> None:
    disk.flip(chosen(disk, "/data/metadata/log", ".seg"), (SEGMENT_HEADER + 300) * 8)


def segment_header_of_metadata(disk: SimDisk) -> None:
    disk.flip(chosen(disk, "/data/metadata/log", ".seg"), 50 * 8)


def snapshot(disk: SimDisk) -> None:
    disk.flip("/data/metadata/snapshot.bin", 30 * 8)


def snapshot_and_log(disk: SimDisk) -> None:
    snapshot(disk)
    first_entry_of_metadata(disk)


SPOILERS = [
    first_entry_of_a_partition,
    segment_header_of_a_partition,
    segment_of_another_partition,
    checkpoint_of_a_partition,
    first_entry_of_metadata,
    segment_header_of_metadata,
    snapshot,
    snapshot_and_log,
]


WAYS = [(False, False), (True, True), (False, True), (True, False)]
"""(power was lost, checkpoints drop logs)"""


@pytest.mark.parametrize("spoil", SPOILERS)
def test_a_damaged_member_is_whole_again(spoil: Callable[[SimDisk], None], long: bool) -> None:
    for power, drop_logs in WAYS if long else WAYS[:2]:
        result = run(spoil, power=power, drop_logs=drop_logs)
        assert result.violation is None, result.violation
        assert any("set aside" in point for point in result.reached), result.reached
        assert "refused at the end" not in result.reached
        assert result.committed > 100


def test_a_partition_of_zeros_is_whole_again() -> None:
    """Nothing of it can be told from what was never written but by the boot record: the log is cut, not set aside."""
    spoiled: list[str] = []

    def zeros(disk: SimDisk) -> None:
        directory = chosen(disk, "/data/partitions", ".seg").rpartition("/")[0]
        spoiled.extend(files_of(disk, directory))
        for file in spoiled:
            disk.damage(file, 0, bytes(disk.size(file)))

    result = run(zeros, power=True, drop_logs=False)
    assert result.violation is None, result.violation
    assert len(spoiled) > 5


def test_what_a_poll_meets_is_healed_while_the_member_runs() -> None:
    world = World(calm(3, False))

    def strike() -> None:
        world.blame(world.nodes[2], "rot")
        first_entry_of_a_partition(world.nodes[2].disk)

    world.schedule.after(5 * SECOND, strike)
    result = world.run()
    assert result.violation is None, result.violation
    assert result.reached["set aside running"] == 1
