"""Rounds of syncs over real files: begun and ended by the pump, told to every group, bounded in what is unsynced."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from shardsrv.errors import DiskFault, SyncFailed
from shardsrv.shards.group import Admission
from shardsrv.shards.syncer import SYNCFS_ABOVE, Syncer
from shardsrv.store._sync_thread import SyncThread
from shardsrv.store.disk import OsDisk

EARLY, LIMIT = 100, 200
PATIENCE = 10.0
CORES = frozenset(os.sched_getaffinity(0))


class Plan:
    """Stands in for `store.log_sync.SyncPlan`."""

    def __init__(self, fds: list[int], directory: bool) -> None:
        self.fds = fds
        self.directory = directory
        self.named = self.adopted = False

    def refuse(self, position: int, number: int) -> None:
        raise SyncFailed("x", number)

    def run_names(self) -> None:
        self.named = True

    def adopt(self) -> None:
        self.adopted = True


class Group:
    """Stands in for `group.Group`, and for its log."""

    def __init__(self, fd: int, directory: bool = False) -> None:
        self.fd, self.directory = fd, directory
        self.log = self
        self.append_token, self.head_checksum = 7, 8
        self.fault: Exception | None = None
        self.in_sync_list = False
        self.heard: list[tuple[Any, ...]] = []

    def sync_plan(self) -> Plan:
        return Plan([self.fd], self.directory)

    def synced(self, plan: Plan, token: int, checksum: int) -> None:
        self.heard.append(("synced", token, checksum))

    def sync_failed(self, plan: Plan, token: int, error: DiskFault) -> None:
        self.heard.append(("failed", token, type(error)))


class Shard:
    """What a syncer needs of its shard, and files to sync."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.admission = Admission()
        self.ended = 0
        self.watched: list[int] = []
        self.started: list[tuple[Any, ...]] = []
        self.files: list[int] = []
        self.syncer = Syncer(
            OsDisk(),
            str(root),
            CORES,
            interval=3600.0,
            early_bytes=EARLY,
            time_max=3600.0,
            bytes_max=LIMIT,
            admission=self.admission,
            step=lambda action, *arguments: action(*arguments),
            start=lambda *task: self.started.append(task),
            watch=self.watched.append,
            after_round=self._after_round,
        )

    def _after_round(self) -> None:
        self.ended += 1

    def group(self, directory: bool = False) -> Group:
        self.files.append(os.open(self.root / f"{len(self.files)}.seg", os.O_RDWR | os.O_CREAT))
        return Group(self.files[-1], directory)

    def turn(self) -> None:
        """What the pump does at the end of a turn, then until the thread is done."""
        assert self.syncer.due
        self.syncer.begin()
        self.wait()

    def wait(self) -> None:
        readable, _, _ = select.select([self.watched[0]], [], [], PATIENCE)
        assert readable
        self.syncer.woken()


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Shard]:
    made = Shard(tmp_path)
    yield made
    trio.run(made.syncer.close)
    for fd in made.files:
        os.close(fd)


async def dirty(shard: Shard, group: Group, size: int) -> None:
    shard.syncer.dirty(group, size)


def test_who_waits_for_a_sync_hears_of_it_with_what_the_plan_covered(shard: Shard) -> None:
    first, second = shard.group(), shard.group()
    shard.syncer.urgent(first)
    shard.syncer.urgent(second)
    shard.turn()
    assert first.heard == second.heard == [("synced", 7, 8)]
    assert (shard.ended, shard.syncer.running, shard.syncer.due) == (1, False, False)


def test_a_round_at_a_time_and_the_next_as_soon_as_it_ends(shard: Shard) -> None:
    first, second = shard.group(), shard.group()
    shard.syncer.urgent(first)
    shard.syncer.begin()
    shard.syncer.urgent(second)
    assert not shard.syncer.due
    shard.syncer.begin()
    assert second.heard == []
    shard.wait()
    assert shard.syncer.due and second.heard == []
    shard.turn()
    assert second.heard == [("synced", 7, 8)] and len(first.heard) == 1


def test_a_sync_that_fails_is_a_fault_of_every_group_of_the_round(shard: Shard) -> None:
    first, second = shard.group(), Group(-1)
    shard.syncer.urgent(first)
    shard.syncer.urgent(second)
    shard.turn()
    assert first.heard == second.heard == [("failed", 7, SyncFailed)]


def test_much_that_is_unsynced_begins_a_round_and_too_much_closes_admission(shard: Shard) -> None:
    group = shard.group()
    trio.run(dirty, shard, group, EARLY - 1)
    assert not shard.syncer.due
    trio.run(dirty, shard, group, 1)
    assert shard.syncer.due and shard.admission.open
    trio.run(dirty, shard, group, LIMIT - EARLY)
    assert not shard.admission.open
    shard.turn()
    assert shard.admission.open and group.heard == [("synced", 7, 8)]


def test_admission_opens_when_all_that_was_unsynced_is_out_of_service(shard: Shard) -> None:
    group = shard.group()
    trio.run(dirty, shard, group, LIMIT)
    group.fault = SyncFailed("x", 5)
    assert not shard.admission.open
    shard.syncer.begin()
    assert shard.admission.open and not shard.syncer.running and shard.ended == 1


def test_new_names_are_synced_behind_the_files_in_a_task(shard: Shard) -> None:
    group = shard.group(directory=True)
    shard.syncer.urgent(group)
    shard.turn()
    assert group.heard == [] and shard.syncer.running
    ((task, *arguments),) = shard.started
    trio.run(task, *arguments)
    assert group.heard == [("synced", 7, 8)]


def test_many_logs_share_one_sync_of_the_file_system(shard: Shard) -> None:
    groups = [shard.group() for _ in range(SYNCFS_ABOVE + 1)]
    for group in groups:
        shard.syncer.urgent(group)
    shard.syncer.begin()
    ((task, *arguments),) = shard.started
    trio.run(task, *arguments)
    assert all(group.heard == [("synced", 7, 8)] for group in groups)


def test_closing_ends_the_round_that_is_out_and_syncs_the_rest(shard: Shard) -> None:
    first, second = shard.group(), shard.group(directory=True)
    shard.syncer.urgent(first)
    shard.syncer.begin()
    trio.run(dirty, shard, second, 1)
    trio.run(shard.syncer.close)
    assert first.heard == second.heard == [("synced", 7, 8)]


def test_a_thread_says_which_file_failed_and_serves_on(tmp_path: Path) -> None:
    thread = SyncThread(CORES)
    good = os.open(tmp_path / "good", os.O_RDWR | os.O_CREAT)
    try:
        for files, outcome in (([good, -1, good], (1, 9)), ([good, good], None), ([], None)):
            thread.start(files)
            with pytest.raises(RuntimeError):
                thread.start(files)
            assert select.select([thread.event_fd], [], [], PATIENCE)[0]
            assert thread.finish() == outcome
            with pytest.raises(BlockingIOError):
                thread.finish()
    finally:
        thread.close()
        thread.close()
        os.close(good)
    with pytest.raises(RuntimeError):
        thread.start([])
