"""The syncer: one round of syncs at a time for all logs of a shard.

A round covers every log that somebody waits for, and every log whose unsynced entries are due in the background. Threads do nothing but the
system calls, which release the interpreter. Invariants:

* a round is planned between turns, when all entries of a turn are written: its plan covers exactly the tokens taken with it;
* a failed sync is never taken for a clean one: the groups of the round are told and stay fenced;
* `overdue` becomes true when the bound of unsynced data is reached; acknowledgements of `replicated` entries then wait (design: what an ack means).
"""

import os
from collections.abc import Callable
from typing import Any

import trio

from shardsrv.errors import DiskFault
from shardsrv.store.disk import Disk

SYNCFS_ABOVE = 16
"""Dirty files in one round above which one `syncfs` beats a `fdatasync` each (1,000 files: 73 ms against 5.8 ms)."""


def run_plans(disk: Disk, directory: str, plans: list[Any]) -> None:
    """Sync what the plans name. Runs in a thread; raises `DiskFault`."""
    _unpin()
    if len(plans) > SYNCFS_ABOVE:
        disk.syncfs(directory)
        return
    for plan in plans:
        plan.run()


def _unpin() -> None:
    """A worker thread inherits the processor pin of its shard and would compete with the pump: let it run anywhere."""
    os.sched_setaffinity(0, range(os.cpu_count() or 1))


class Syncer:
    """Plans and runs sync rounds for the groups of one shard."""

    def __init__(
        self, disk: Disk, directory: str, *, interval: float, early_bytes: int, time_max: float, bytes_max: int,
        after_round: Callable[[], None],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._interval = interval
        self._early_bytes = early_bytes
        self._time_max = time_max
        self._bytes_max = bytes_max
        self._after_round = after_round
        self._dirty: dict[Any, None] = {}
        self._urgent: dict[Any, None] = {}
        self._wake = trio.Event()
        self._hurry = trio.Event()
        self._oldest = 0.0
        self.rounds = 0
        self.running = False

    def dirty(self, group: Any) -> None:
        """The group has entries that are written but not synced; the background round will take them."""
        if group in self._dirty:
            return
        if not self._dirty:
            self._oldest = trio.current_time()
        self._dirty[group] = None
        self._wake.set()

    def urgent(self, group: Any) -> None:
        """Somebody waits for a sync of this group."""
        self._urgent[group] = None
        self._hurry.set()
        self._wake.set()

    def overdue(self, unsynced_bytes: int) -> bool:
        """Whether the bound on unsynced data is reached: new acknowledgements must wait for the running round."""
        if not self._dirty:
            return False
        if unsynced_bytes >= self._early_bytes:
            self._hurry.set()
        return unsynced_bytes >= self._bytes_max or trio.current_time() - self._oldest >= self._time_max

    async def run(self) -> None:
        """The task: rounds until cancelled."""
        while True:
            await self._wake.wait()
            if not self._urgent:
                with trio.move_on_after(self._interval):
                    await self._hurry.wait()
            await self.round()

    async def round(self) -> None:
        """One round over everything that is urgent or dirty now."""
        groups = list(dict.fromkeys([*self._urgent, *self._dirty]))
        self._urgent.clear()
        self._dirty.clear()
        self._wake = trio.Event()
        self._hurry = trio.Event()
        for group in groups:
            group.in_sync_list = False
        planned = [(group, group.log.sync_plan(), group.append_token) for group in groups if group.fault is None]
        if not planned:
            return
        self.running = True
        try:
            await trio.to_thread.run_sync(run_plans, self._disk, self._directory, [plan for _, plan, _ in planned])
        except DiskFault as error:
            for group, _, token in planned:
                group.sync_failed(token, error)
        else:
            self.rounds += 1
            for group, plan, token in planned:
                group.synced(plan, token)
        finally:
            self.running = False
        self._after_round()
