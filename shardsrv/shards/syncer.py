"""The syncer: one round of syncs at a time for all logs of a shard.

A round covers every log that somebody waits for, and every log whose unsynced entries are due in the background. Files
are synced by a thread that never asks for the interpreter; names, which are rare, and whole file systems by one that
releases it in the system call. Invariants:

* a round is planned between turns, when all entries of a turn are written: its plan covers exactly the tokens taken
  with it;
* a failed sync is never taken for a clean one: the groups of the round are told and stay fenced;
* admission closes when the bound of unsynced data, in bytes or in time, is reached; acknowledgements then wait
  (design: what an ack means).
"""

import os
from collections.abc import Callable, Generator
from typing import Any

import trio

from shardsrv.errors import DiskFault
from shardsrv.shards.group import Admission
from shardsrv.store._sync_thread import SyncThread
from shardsrv.store.disk import SYNC, Disk, disk_fault
from shardsrv.store.log_sync import SyncPlan, file_rounds

Planned = tuple[Any, SyncPlan, int, int]
"""(group, what its sync covers, append token, checksum of the head): taken together."""

SYNCFS_ABOVE = 16
"""Dirty files in one round above which one `syncfs` beats a `fdatasync` each (1,000 files: 73 ms against 5.8 ms)."""


def sync_file_system(disk: Disk, directory: str, plans: list[SyncPlan]) -> None:
    """Sync what the plans name, and all else. Raises `DiskFault`."""
    handle = disk.open_read(directory)
    try:
        disk.syncfs(handle)
    except OSError as error:
        raise disk_fault(error, directory, SYNC) from error
    finally:
        disk.close(handle)
    for plan in plans:
        plan.adopt()


def run_names(plans: list[SyncPlan]) -> None:
    """The second half of a round. Raises `DiskFault`."""
    for plan in plans:
        plan.run_names()


class Syncer:
    """Plans and runs sync rounds for the groups of one shard.

    The pump calls `begin` at the end of a turn in which ``due`` became true, and `woken` when the thread is done: a
    sync that somebody waits for costs no way through trio. ``step`` runs an action between two turns of the pump,
    ``start`` an async function beside it, ``watch`` makes the pump call `woken` when a descriptor is readable.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        affinity: frozenset[int],
        *,
        interval: float,
        early_bytes: int,
        time_max: float,
        bytes_max: int,
        admission: Admission,
        step: Callable[..., None],
        start: Callable[..., None],
        watch: Callable[[int], None],
        after_round: Callable[[], None],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._affinity = affinity
        self._interval = interval
        self._early_bytes = early_bytes
        self._time_max = time_max
        self._bytes_max = bytes_max
        self._admission = admission
        self._step = step
        self._start = start
        self._watch = watch
        self._after_round = after_round
        self._dirty: dict[Any, None] = {}
        self._urgent: dict[Any, None] = {}
        self._wake = trio.Event()
        self._hurry = trio.Event()
        self._round_done = trio.Event()
        self._oldest = 0.0
        self._unsynced = 0
        self._thread: SyncThread | None = None
        """Made by the first round: after the fork."""
        self._planned: list[Planned] = []
        self._covered = 0
        self._files: Generator[list[int], tuple[int, int] | None, list[SyncPlan]] | None = None
        self._closing = False
        self.rounds = 0
        self.running = False
        self.due = False
        """Whether a round should begin as soon as this turn has written its entries."""

    def dirty(self, group: Any, written: int) -> None:
        """The group wrote ``written`` bytes that are not synced; the background round will take them."""
        if group not in self._dirty:
            if not self._dirty:
                self._oldest = trio.current_time()
                self._wake.set()
            self._dirty[group] = None
        self._unsynced += written
        if self._unsynced >= self._early_bytes:
            self.due = not self.running
            if self._unsynced >= self._bytes_max:
                self._admission.open = False

    def urgent(self, group: Any) -> None:
        """Somebody waits for a sync of this group."""
        self._urgent[group] = None
        self.due = not self.running

    async def run(self) -> None:
        """The task that begins background rounds, until cancelled."""
        while True:
            await self._wake.wait()
            with trio.move_on_after(self._interval):
                await self._hurry.wait()
            if self._dirty and not self.running:
                self._step(self.begin)
            if self.running:
                await self._round_done.wait()

    async def watch_age(self) -> None:
        """The task that keeps the bound in time: entries that wait too long for a sync close admission until a round
        is done."""
        while True:
            await self._wake.wait()
            await trio.sleep(self._time_max / 4)
            if self._dirty and trio.current_time() - self._oldest >= self._time_max * 0.75:
                self._hurry.set()
                self._admission.open = False

    # --- a round -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a round over everything that is urgent or dirty now, unless one is running. Between turns only: what
        is appended is written."""
        if self.running:
            return
        self.due = False
        groups = list(dict.fromkeys([*self._urgent, *self._dirty]))
        self._urgent.clear()
        self._dirty.clear()
        # Whoever waits for one that is not set goes on waiting for it.
        if self._wake.is_set():
            self._wake = trio.Event()
        if self._hurry.is_set():
            self._hurry = trio.Event()
        for group in groups:
            group.in_sync_list = False
        self._planned = [
            (group, group.log.sync_plan(), group.append_token, group.log.head_checksum)
            for group in groups
            if group.fault is None
        ]
        self._covered, self._unsynced = self._unsynced, 0
        if not self._planned:
            # What was not synced is no log's any more: nobody will sync it.
            self._end(None)
            return
        self.running = True
        plans = [plan for _, plan, _, _ in self._planned]
        if len(plans) > SYNCFS_ABOVE:
            self._in_thread(sync_file_system, self._disk, self._directory, plans)
            return
        self._files = file_rounds(plans)
        self._sync_files(next(self._files))

    def _sync_files(self, files: list[int]) -> None:
        if self._thread is None:
            self._thread = SyncThread(self._affinity)
            self._watch(self._thread.event_fd)
        self._thread.start(files)

    def woken(self) -> None:
        """The thread has done what it was asked for."""
        assert self._thread is not None and self._files is not None
        failed = self._thread.finish()
        try:
            self._thread.start(self._files.send(failed))
        except StopIteration as end:
            self._files_synced(end.value)
        except DiskFault as error:
            self._end(error)

    def _files_synced(self, plans: list[SyncPlan]) -> None:
        self._files = None
        if any(plan.directory for plan in plans):
            self._in_thread(run_names, plans)
            return
        run_names(plans)
        self._end(None)

    def _in_thread(self, work: Callable[..., None], *arguments: Any) -> None:
        if self._closing:
            self._end(_fault_of(work, *arguments))
        else:
            self._start(self._work, work, *arguments)

    async def _work(self, work: Callable[..., None], *arguments: Any) -> None:
        with trio.CancelScope(shield=True):
            error = await trio.to_thread.run_sync(_unpinned, self._affinity, work, *arguments)
        self._step(self._end, error)

    def _end(self, error: DiskFault | None) -> None:
        """Tell the groups of the round how it ended."""
        planned, self._planned = self._planned, []
        self._files = None
        if error is not None:
            self._unsynced += self._covered
            for group, plan, token, _ in planned:
                group.sync_failed(plan, token, error)
        else:
            self.rounds += 1
            self._admission.open = True
            for group, plan, token, checksum in planned:
                if group.fault is None:
                    group.synced(plan, token, checksum)
                else:
                    group.out_of_service(plan)
        self.running = False
        self.due = bool(self._urgent) or self._unsynced >= self._early_bytes
        self._after_round()
        self._round_done.set()
        self._round_done = trio.Event()

    def round_done(self) -> trio.Event:
        """Set at the end of the round that is running or comes next."""
        return self._round_done

    async def close(self) -> None:
        """The pump has ended: end the round that is running, run a last one over all that is left, end the thread."""
        self._closing = True
        while self.running or self._urgent or self._dirty:
            self._step(self.begin)
            if self._files is not None:
                assert self._thread is not None
                await trio.lowlevel.wait_readable(self._thread.event_fd)
                self._step(self.woken)
        if self._thread is not None:
            self._thread.close()
            self._thread = None


def _unpinned(affinity: frozenset[int], work: Callable[..., None], *arguments: Any) -> DiskFault | None:
    """`_fault_of` in a worker thread, which inherits the processor pin of its shard and would compete with the pump:
    it leaves for ``affinity``, the cores of the node."""
    os.sched_setaffinity(0, affinity)
    return _fault_of(work, *arguments)


def _fault_of(work: Callable[..., None], *arguments: Any) -> DiskFault | None:
    """Do it; returns the fault that it raised."""
    try:
        work(*arguments)
    except DiskFault as error:
        return error
    return None
