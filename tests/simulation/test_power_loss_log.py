"""Power loss while a log is written, synced, rolled, cut, dropped and purged, together with all that a start reads.

Two ends are looked at for every call: power lost (any legal outcome), and the process killed under the same kernel
(everything that was flushed is there), followed by power lost after the restart.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from shardsrv._core import Prepare
from shardsrv.sim.disk import SimDisk
from shardsrv.store.outcomes import CUT, WHOLE, allowed
from shardsrv.store.segment import PURGE_PARTITION
from tests.support.durable import (
    DIRECTORY,
    KEY,
    LATER_BOOT,
    Metadata,
    Partition,
)
from tests.support.entries import log_of
from tests.support.logs import PURGE, Chain
from tests.support.power_loss import PowerLoss, Scenario

pytestmark = pytest.mark.usefixtures("small_tables")
assert PURGE == PURGE_PARTITION


@pytest.fixture
def limit(samples: int) -> int:
    return samples or 6


def check(change: str, found: Counter[str]) -> None:
    assert set(found) == set(allowed(change)), (change, found)


# --- append and roll -------------------------------------------------------------------------------------------------


def test_log_append(limit: int) -> None:
    def name(found: Partition) -> str:
        return WHOLE if found.log.head_op == max(world.known.entries, default=0) else CUT

    world = Scenario(limit, name=name)
    for turn in range(4):
        world.write(*[world.chain.send(1 + turn, 100) for _ in range(1 + turn)])
        world.write(world.chain.other(40, turn), world.chain.send(3, 700))
        if turn % 2:
            world.sync()
    check("log append", world.end())


def test_segment_roll(limit: int) -> None:
    def name(found: Partition) -> str:
        return WHOLE if found.log.head_op == max(world.known.entries, default=0) else CUT

    world = Scenario(limit, segment_size=1500, name=name)
    for turn in range(5):
        # Several segments within one flush, and within one sync.
        world.write(*[world.chain.send(1, 300) for _ in range(1 + turn)])
        if turn % 2:
            world.sync()
    assert world.partition.log.segment_count > 4
    check("segment roll", world.end())


def test_offset_store(limit: int) -> None:
    """Offsets are entries; what a start replays gives the last one that was synced, or a later one."""
    stored: list[int] = [0]

    def replayed(found: Partition) -> int:
        last = 0
        for prepare in found.log.scan(1):
            if prepare.operation == 161:
                last = int.from_bytes(bytes(prepare.body), "little")
        return last

    def name(found: Partition) -> str:
        assert replayed(found) >= acked[0]
        return WHOLE if replayed(found) == stored[-1] else CUT

    world, acked = Scenario(limit, name=name), [0]
    for offset in range(1, 6):
        stored.append(offset)
        body = offset.to_bytes(8, "little")
        prepare = Prepare.load(log_of([(161, body)], world.chain.parent, world.chain.next_op), 0)
        world.chain.parent, world.chain.next_op = prepare.checksum, prepare.op + 1
        world.write(prepare)
        if offset % 2:
            world.sync()
            acked[0] = offset
    check("offset store", world.end())


# --- cut and drop ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [3, 5, 9, 12])
@pytest.mark.parametrize("synced", [True, False])
def test_cut_of_a_suffix(keep: int, synced: bool, limit: int) -> None:
    """Across several segments, inside one and at a border; then other entries take the place of what was cut."""
    cutting = [False]

    def name(found: Partition) -> str:
        head = found.log.head_op
        if head > keep and found.ops()[keep + 1] == world.known.entries[keep + 1][-1] and cutting[0]:
            return "cut, with entries behind it"
        if head == 14:
            return "nothing cut"
        return "cut" if head == keep else "cut in part, an unbroken log"

    world = Scenario(limit, segment_size=1000, name=name)
    world.write(*[world.chain.send(1, 100) for _ in range(14)])
    if synced:
        world.sync()
    world.run.outcomes.clear()
    assert world.partition.log.segment_count > 4
    world.known.acked = min(world.known.acked, keep)
    world.known.flushed = keep
    before = world.partition.log.read_prepare(keep)
    world.partition.cut(keep + 1)
    world.known.acked = keep
    world.point()
    cutting[0] = True
    chain = world.chain = Chain(before.checksum, keep + 1, world.partition.log.next_offset)
    world.write(chain.other(50, 9), chain.send(2, 50))
    world.sync()
    outcomes = world.end()
    assert set(outcomes) <= set(allowed("cut of a suffix"))
    assert {"cut", "cut, with entries behind it"} <= set(outcomes)
    if synced:
        assert "nothing cut" in outcomes and ("cut in part, an unbroken log" in outcomes or keep == 12)


def test_drop_of_head_segments(limit: int) -> None:
    def name(found: Partition) -> str:
        first = found.log.first_op
        return "nothing dropped" if first == 1 else "dropped" if first == kept else "dropped in part, an unbroken log"

    world, kept = Scenario(limit, segment_size=1000, name=name), -1
    world.write(*[world.chain.send(1, 100) for _ in range(14)])
    world.sync()
    world.run.outcomes.clear()
    op = world.partition.save()
    kept = [first for first, _, _ in world.partition.log.segments() if first <= op][-1]
    world.point()
    assert world.partition.log.drop_below(op) > 0
    assert world.partition.log.first_op == kept
    world.write(world.chain.send(1, 100))
    world.sync()
    check("drop of head segments", world.end())


def test_purge(limit: int) -> None:
    """The purge is an entry and ends its segment; what lies before it goes when a checkpoint covers it."""

    def name(found: Partition) -> str:
        log = found.log
        if log.head_op < purge.op:
            assert world.known.acked < purge.op
            return "before the purge"
        assert log.floor_op == purge.op or found.checkpoint_op >= purge.op
        assert log.next_offset == sum(prepare.operation == 160 for prepare in log.scan(purge.op + 1))
        return f"purged, old segments {'there' if log.first_op <= purge.op else 'dropped'}"

    world = Scenario(limit, segment_size=1000)
    world.write(*[world.chain.send(1, 100) for _ in range(7)])
    world.sync()
    world.run.outcomes.clear()
    world.name = name
    purge = world.chain.purge()
    world.write(purge)
    world.sync()
    world.write(world.chain.send(1, 10), world.chain.send(1, 10))
    world.sync()
    world.partition.save()
    world.point()
    world.partition.log.drop_plan(purge.op + 1).run()
    world.write(world.chain.send(1, 10))
    world.sync()
    check("purge", world.end())


def test_a_purge_that_empties_the_log(limit: int) -> None:
    world = Scenario(limit, segment_size=1000)
    world.write(*[world.chain.send(1, 100) for _ in range(5)])
    world.write(world.chain.purge())
    world.sync()
    world.partition.save()
    world.point()
    world.partition.log.drop_plan(7).run()
    assert world.partition.log.segment_count == 0
    world.point()
    # Several new files at once: their names are lost in any order, the first one too, which leaves a gap.
    world.write(*[world.chain.send(1, 100) for _ in range(6)])
    world.sync()
    world.end()


# --- new partitions, recovery, metadata ------------------------------------------------------------------------------


def test_new_partition(limit: int) -> None:
    """A record is written only when the directory that it speaks of is durable: else it would be taken for lost."""
    disk, made = SimDisk(), [False]

    def judge(after: SimDisk) -> str:
        there = after.exists(DIRECTORY.partition(*KEY))
        recorded = after.exists(DIRECTORY.group_table(1)) and bool(
            Partition.open(after.copy(), LATER_BOOT).table.records()[KEY].outcome.sequence > 1
        )
        found = Partition.open(after, LATER_BOOT)
        assert found.log.head_op == 0
        if made[0]:
            assert there
        del recorded
        return "made" if made[0] else "a directory without record" if there else "nothing"

    run = PowerLoss(disk, judge, limit)
    Partition.open(disk)
    made[0] = True
    run.end()
    check("new partition", run.outcomes)


def test_recovery_itself(limit: int) -> None:
    """Power is lost again while a start cuts, rewrites and syncs: the next start finds what the first would have."""
    world = Scenario(4, segment_size=900)
    world.disk.after_call = None
    world.write(*[world.chain.send(1, 200) for _ in range(5)])
    world.sync()
    world.write(*[world.chain.send(1, 200) for _ in range(6)])
    outcomes: Counter[str] = Counter()
    for number, first in enumerate(world.disk.legal_outcomes(min(limit, 64), random.Random(5))):
        wanted = Partition.open(first.copy(), LATER_BOOT, segment_size=900).ops()

        def judge(after: SimDisk, wanted: dict[int, int] = wanted) -> str:
            assert Partition.open(after, b"third kernel one", segment_size=900).ops() == wanted
            return "as at the first attempt"

        run = PowerLoss(first, judge, min(limit, 16), stride=1 + number % 3)
        Partition.open(first, LATER_BOOT, segment_size=900)
        run.end()
        outcomes += run.outcomes
    check("recovery itself", outcomes)


def test_metadata_checkpoint(limit: int) -> None:
    disk = SimDisk()
    metadata = Metadata.open(disk, segment_size=1000)
    chain, entries, acked, saved = Chain(), {}, 0, 0

    def judge(after: SimDisk) -> str:
        found = Metadata.open(after, LATER_BOOT, segment_size=1000)
        ops, log = found.ops(), found.log
        assert list(ops) == list(range(log.first_op, log.head_op + 1))
        assert all(entries[op] == checksum for op, checksum in ops.items())
        assert max(found.snapshot_op, log.head_op) >= acked and log.first_op <= found.snapshot_op + 1
        assert found.snapshot_op >= saved and found.state.checkpoint_op <= found.snapshot_op
        new = found.snapshot_op == metadata.log.head_op > saved
        if not new:
            return "the pair before, whole log"
        if found.state.checkpoint_op < found.snapshot_op:
            assert log.first_op == first
            return "newer snapshot, the pair lags, whole log"
        if log.first_op == first:
            return "the new pair, whole log"
        left = [each for each, _, _ in found.log.segments() if each <= found.snapshot_op]
        return "the new pair, log dropped" if len(left) <= 1 else "the new pair, log dropped in part"

    run = PowerLoss(disk, judge, limit)
    for _ in range(3):
        first = metadata.log.first_op
        for _ in range(9):
            prepare = chain.other(100)
            entries[prepare.op] = prepare.checksum
            metadata.append(prepare)
            acked = prepare.op
        run.point()
        metadata.save()
        run.point()
        saved = acked
    run.end()
    check("metadata checkpoint", run.outcomes)
