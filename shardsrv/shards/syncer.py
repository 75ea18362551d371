"""The syncer: one round of syncs at a time for all logs of a shard.

A round covers every log that somebody waits for, and every log whose unsynced entries are due in the background.
Threads do nothing but the system calls, which release the interpreter. Invariants:

* a round is planned between turns, when all entries of a turn are written: its plan covers exactly the tokens taken
  with it;
* a failed sync is never taken for a clean one: the groups of the round are told and stay fenced;
* admission closes when the bound of unsynced data, in bytes or in time, is reached; acknowledgements then wait
  (design: what an ack means).
"""

import os
from collections.abc import Callable
from typing import Any

import trio

from shardsrv.errors import DiskFault
from shardsrv.shards.group import Admission
from shardsrv.store.disk import SYNC, Disk, disk_fault
from shardsrv.store.log_sync import SyncPlan, run_together

SYNCFS_ABOVE = 16
"""Dirty files in one round above which one `syncfs` beats a `fdatasync` each (1,000 files: 73 ms against 5.8 ms)."""


def run_plans(disk: Disk, directory: str, affinity: frozenset[int], plans: list[SyncPlan]) -> None:
    """Sync what the plans name. Runs in a thread; raises `DiskFault`.

    A worker thread inherits the processor pin of its shard and would compete with the pump: it leaves for
    ``affinity``, the cores of the node.
    """
    os.sched_setaffinity(0, affinity)
    if len(plans) <= SYNCFS_ABOVE:
        run_together(disk, plans)
        return
    handle = disk.open_read(directory)
    try:
        disk.syncfs(handle)
    except OSError as error:
        raise disk_fault(error, directory, SYNC) from error
    finally:
        disk.close(handle)
    for plan in plans:
        plan.adopt()


class Syncer:
    """Plans and runs sync rounds for the groups of one shard."""

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
        self._after_round = after_round
        self._dirty: dict[Any, None] = {}
        self._urgent: dict[Any, None] = {}
        self._wake = trio.Event()
        self._hurry = trio.Event()
        self._round_done = trio.Event()
        self._oldest = 0.0
        self._unsynced = 0
        self.rounds = 0
        self.running = False

    def dirty(self, group: Any, written: int) -> None:
        """The group wrote ``written`` bytes that are not synced; the background round will take them."""
        if group not in self._dirty:
            if not self._dirty:
                self._oldest = trio.current_time()
                self._wake.set()
            self._dirty[group] = None
        self._unsynced += written
        if self._unsynced >= self._early_bytes:
            self._hurry.set()
            if self._unsynced >= self._bytes_max:
                self._admission.open = False

    def urgent(self, group: Any) -> None:
        """Somebody waits for a sync of this group."""
        self._urgent[group] = None
        self._hurry.set()
        self._wake.set()

    async def run(self) -> None:
        """The task: rounds until cancelled."""
        while True:
            await self._wake.wait()
            if not self._urgent:
                with trio.move_on_after(self._interval):
                    await self._hurry.wait()
            await self.round()

    async def watch_age(self) -> None:
        """The task that keeps the bound in time: entries that wait too long for a sync close admission until a round
        is done."""
        while True:
            await self._wake.wait()
            await trio.sleep(self._time_max / 4)
            if self._dirty and trio.current_time() - self._oldest >= self._time_max * 0.75:
                self._hurry.set()
                self._admission.open = False

    async def round(self) -> None:
        """One round over everything that is urgent or dirty now."""
        groups = list(dict.fromkeys([*self._urgent, *self._dirty]))
        self._urgent.clear()
        self._dirty.clear()
        self._wake = trio.Event()
        self._hurry = trio.Event()
        for group in groups:
            group.in_sync_list = False
        planned = [
            (group, group.log.sync_plan(), group.append_token, group.log.head_checksum)
            for group in groups
            if group.fault is None
        ]
        if not planned:
            return
        covered, self._unsynced = self._unsynced, 0
        self.running = True
        try:
            plans = [plan for _, plan, _, _ in planned]
            await trio.to_thread.run_sync(run_plans, self._disk, self._directory, self._affinity, plans)
        except DiskFault as error:
            self._unsynced += covered
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
        finally:
            self.running = False
        self._after_round()
        self._round_done.set()
        self._round_done = trio.Event()

    async def round_done(self) -> None:
        """Wait for the end of the round that is running or comes next."""
        await self._round_done.wait()
