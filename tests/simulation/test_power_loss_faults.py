"""What a restart believes although the process before left it unsynced, and calls that fail; then power is lost."""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable

import attrs
import pytest

from shardsrv.errors import DiskFault, SyncFailed
from shardsrv.sim.disk import SimDisk
from shardsrv.store.faults import LogFenced
from tests.support import durable
from tests.support.durable import FIRST_BOOT, KEY, LATER_BOOT, Metadata, Partition, sync
from tests.support.logs import Chain
from tests.support.power_loss import Scenario, fail_nth

pytestmark = pytest.mark.usefixtures("small_tables")


@pytest.fixture
def limit(samples: int) -> int:
    return samples or 6


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


def test_a_planted_lack_of_the_names_above_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that is synced in a directory whose own name is not."""
    monkeypatch.setattr(durable, "sync_names", lambda *_: None)
    world = Scenario(64)
    with pytest.raises((AssertionError, DiskFault, FileNotFoundError)):
        world.write(world.chain.send())
        world.sync()
