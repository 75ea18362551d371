"""Power loss while a log is written, synced, rolled, cut, dropped and purged, together with all that a start reads.

Two ends are looked at for every call: power lost (any legal outcome), and the process killed under the same kernel
(everything that was flushed is there), followed by power lost after the restart.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable

import attrs
import pytest

from shardsrv._core import Prepare
from shardsrv.errors import DiskFault, SyncFailed
from shardsrv.sim.disk import SimDisk
from shardsrv.store.faults import LogFenced
from shardsrv.store.outcomes import CUT, WHOLE, allowed
from shardsrv.store.segment import PURGE_PARTITION
from tests.support.durable import (
    DIRECTORY,
    FIRST_BOOT,
    KEY,
    LATER_BOOT,
    Metadata,
    Partition,
    PowerLoss,
    fail_nth,
    sync,
)
from tests.support.entries import log_of
from tests.support.logs import PURGE, Chain

pytestmark = pytest.mark.usefixtures("small_tables")
assert PURGE == PURGE_PARTITION


@pytest.fixture
def limit(long: bool) -> int:
    return 1024 if long else 6


@attrs.define
class Known:
    """What a scenario has written and what was acknowledged.

    entries: identities that an op may have (a cut makes room for another one); acked: highest op of which a sync was
    reported; flushed: highest op written; cut_from: ops from here on may be gone although they were synced once.
    """

    entries: dict[int, list[int]] = attrs.Factory(dict)
    acked: int = 0
    flushed: int = 0
    dropping: int = 0

    def add(self, *prepares: Prepare) -> tuple[Prepare, ...]:
        for prepare in prepares:
            self.entries.setdefault(prepare.op, []).append(prepare.checksum)
        return prepares

    def examine(self, partition: Partition, *, killed: bool = False) -> None:
        """What a start found is unbroken, known, and holds all that it has to."""
        log = partition.log
        ops = partition.ops()
        assert list(ops) == list(range(log.first_op, log.head_op + 1)), "an unbroken log"
        assert log.first_op <= partition.checkpoint_op + 1, "nothing is missing behind the checkpoint"
        assert log.head_op >= self.acked, f"op {self.acked} was synced and is gone"
        if killed:
            assert log.head_op >= self.flushed, f"op {self.flushed} was flushed and a kill took it"
        for op, checksum in ops.items():
            known = self.entries[op]
            assert checksum in known, "an entry that was never written"
            assert op > self.acked or checksum == known[-1], "an entry that was cut away came back"
        partition.append(*[_next(partition)])
        partition.sync()
        assert partition.log.synced_op == log.head_op


def _next(partition: Partition) -> Prepare:
    """An entry that goes on behind the head."""
    log = partition.log
    return Chain(log.head_checksum, log.head_op + 1, log.next_offset).other(fill=7)


@attrs.define(eq=False, slots=False)
class Scenario:
    """A partition under way, judged at each call."""

    limit: int
    segment_size: int = 1 << 20
    name: Callable[[Partition], str] = attrs.field(default=lambda partition: "")
    known: Known = attrs.Factory(Known)
    chain: Chain = attrs.Factory(Chain)
    disk: SimDisk = attrs.Factory(SimDisk)
    twice: bool = True

    def __attrs_post_init__(self) -> None:
        self.partition = Partition.open(self.disk, FIRST_BOOT, segment_size=self.segment_size)
        self.run = PowerLoss(self.disk, self.judge, self.limit)
        self.disk.after_call = lambda _: self.point()

    def judge(self, after: SimDisk) -> str:
        found = Partition.open(after, LATER_BOOT, segment_size=self.segment_size)
        label = self.name(found)
        self.known.examine(found)
        return label

    def point(self) -> None:
        """Power loss now; and a kill now."""
        self.run.point()
        killed = self.disk.copy()
        killed.kill()
        found = Partition.open(killed, FIRST_BOOT, segment_size=self.segment_size)
        assert found.recovery.cut_op is None or found.recovery.row in ("torn by a kill", "whole"), found.recovery
        # What the start took over is synced: losing power now changes nothing.
        head, ops = found.log.head_op, found.ops()
        if self.twice:
            for after in killed.legal_outcomes(2):
                again = Partition.open(after, LATER_BOOT, segment_size=self.segment_size)
                assert again.log.head_op == head and again.ops() == ops
                assert (again.state, again.checkpoint_op) == (found.state, found.checkpoint_op)
        self.known.examine(found, killed=True)

    def write(self, *prepares: Prepare) -> None:
        self.partition.append(*self.known.add(*prepares))
        self.known.flushed = prepares[-1].op
        self.point()

    def sync(self) -> None:
        self.partition.sync()
        self.known.acked = self.partition.log.synced_op
        self.point()

    def end(self) -> Counter[str]:
        self.point()
        self.disk.after_call = None
        return self.run.outcomes


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
    world.write(world.chain.send(1, 100))
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


# --- what a restart believes -----------------------------------------------------------------------------------------


def test_what_a_killed_process_left_unsynced_is_durable_before_it_is_believed(limit: int) -> None:
    """Records of partitions and checkpoints: `Scenario.point` compares the start after a kill with the one after power
    is lost as well."""
    world = Scenario(limit)
    world.write(world.chain.send(), world.chain.send())
    world.sync()
    for view in (1, 2, 3):
        state = attrs.evolve(world.partition.state, view=view, log_view=view)
        world.partition.table.write({KEY: state.encode()})
        world.partition.save()
        world.point()
    world.end()


@pytest.mark.parametrize("call", ["fdatasync", "fsync_dir"])
def test_metadata_that_a_killed_process_left_unsynced_is_durable_before_it_is_believed(call: str, limit: int) -> None:
    """Also when its last sync had failed."""
    disk = SimDisk()
    metadata = Metadata.open(disk)
    chain, differing = Chain(), Counter[bool]()

    def point() -> None:
        killed = disk.copy()
        found = Metadata.open(killed, FIRST_BOOT)
        differing[found.state != metadata.state or found.snapshot_op != saved] += 1
        for after in killed.legal_outcomes(limit):
            again = Metadata.open(after, LATER_BOOT)
            assert (again.state, again.snapshot_op) == (found.state, found.snapshot_op)
            assert again.ops() == found.ops()

    for number in range(1, 4):
        saved = metadata.snapshot_op
        metadata.append(chain.other())
        disk.after_call = lambda _: point()
        metadata.save()
        metadata.superblock.write(attrs.evolve(metadata.state, view=number, log_view=number).encode())
        point()
        disk.after_call = None
    disk.on_call = lambda each: _fail(each.name == call)
    with pytest.raises(DiskFault):
        metadata.superblock.write(attrs.evolve(metadata.state, view=9, log_view=9).encode())
    disk.on_call = None
    point()
    assert set(differing) == {True, False}


def test_a_record_whose_sync_failed_is_written_again_before_it_is_believed() -> None:
    """The page cache shows the record, counts it as clean, and the disk does not have it."""
    world = Scenario(4)
    world.disk.after_call = None
    state = attrs.evolve(world.partition.state, view=5, log_view=5)
    world.disk.on_call = lambda each: _fail(each.name == "fdatasync")
    with pytest.raises(DiskFault):
        world.partition.table.write({KEY: state.encode()})
    world.disk.on_call = None
    world.disk.kill()
    assert Partition.open(world.disk, FIRST_BOOT).state == state
    assert [Partition.open(after, LATER_BOOT).state for after in world.disk.legal_outcomes()] == [state]


def _fail(condition: bool) -> None:
    if condition:
        raise OSError(errno.EIO, "injected")


# --- failed calls ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [None, 0.3, 0.9], ids=["whole call", "after a third", "after most"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_after_any_failed_call_what_was_acknowledged_is_there(part: float | None, number: int, limit: int) -> None:
    """Each call fails once. What was refused is tried again; where the result is unknown the log is fenced. Then power
    is lost, or the process dies and power is lost after the restart."""
    failures: Counter[str] = Counter()
    call, came = 0, True
    while came:
        call += 1
        world = Scenario(limit, segment_size=900, twice=False)
        world.disk.after_call = None
        failed = fail_nth(world.disk, call, OSError(number, "injected"), part)
        try:
            for _ in range(4):
                prepares = world.known.add(world.chain.send(1, 150), world.chain.send(1, 150))
                failures["refused"] += _again(world.partition.append, *prepares)
                world.known.flushed = prepares[-1].op
                sync(world.partition.log)
                world.known.acked = world.partition.log.synced_op
                failures["refused"] += _again(world.partition.record)
            failures["refused"] += _again(world.partition.save)
            plan = world.partition.log.drop_plan(world.partition.checkpoint_op)
            failures["refused"] += _again(plan.run)
        except (LogFenced, SyncFailed):
            failures["fenced"] += 1
            assert world.partition.log.fenced
            world.partition.boot.fence(KEY)
        came = failed()
        world.disk.on_call = None
        for after in world.disk.legal_outcomes(limit, random.Random(call)):
            world.known.examine(Partition.open(after, LATER_BOOT, segment_size=900))
        killed = world.disk.copy()
        killed.kill()
        again = Partition.open(killed, FIRST_BOOT, segment_size=900)
        assert again.log.head_op >= world.known.acked
        ops = again.ops()
        lost = Partition.open(next(killed.legal_outcomes(1)), LATER_BOOT, segment_size=900)
        assert lost.ops() == ops, "after a failed sync a restart rewrites the tail: now it is durable"
    assert failures["fenced"] >= 4 and failures["refused"] > 4 and call > 15


def _again(act: Callable[..., object], *arguments: object) -> int:
    """Do it, and once more when it was refused; tells whether it was. Raises `LogFenced`."""
    try:
        act(*arguments)
    except LogFenced:
        raise
    except DiskFault:
        act(*arguments)
        return 1
    return 0


class Forgetful(SimDisk):
    """A disk on which one kind of call does nothing: a driver that lacks it."""

    lacks = ""

    def fdatasync(self, handle: int) -> None:
        if self.lacks != "fdatasync":
            super().fdatasync(handle)

    def fsync_dir(self, path: str) -> None:
        if self.lacks != "fsync_dir":
            super().fsync_dir(path)


@pytest.mark.parametrize("lacks", ["fdatasync", "fsync_dir"])
def test_a_planted_lack_of_a_sync_is_noticed(lacks: str) -> None:
    world = Scenario(64, segment_size=900, disk=Forgetful())
    world.disk.lacks = lacks
    with pytest.raises((AssertionError, DiskFault, FileNotFoundError)):
        for _ in range(4):
            world.write(world.chain.send(1, 150), world.chain.send(1, 150))
            world.sync()
