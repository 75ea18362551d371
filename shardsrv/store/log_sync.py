"""One sync of a log: what it covers is fixed when it is planned, so that what is written meanwhile is never taken for
synced.

Invariants: a plan credits only what lay in the files when it was made; a failed sync fences the log in the same call,
also when nobody looks at the plan again; descriptors of a plan stay open until it is handed back.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import TYPE_CHECKING

from shardsrv.errors import SyncFailed
from shardsrv.store.disk import SYNC, Disk, disk_fault
from shardsrv.store.segment import Segment

if TYPE_CHECKING:
    from shardsrv.store.log import PrepareLog


class SyncPlan:
    """What a sync started now covers. `run` may be called in a thread; hand it back with `PrepareLog.mark_synced`.

    fds: handles to sync; directory: names changed too; op, checksum: the head that will be durable; bytes: unsynced
    bytes covered.
    """

    __slots__ = ("_disk", "_log", "bytes", "checksum", "covered", "directory", "done", "epoch", "failed", "fds", "op")

    def __init__(
        self, log: PrepareLog, disk: Disk, covered: list[tuple[Segment, int]], directory: bool, epoch: int
    ) -> None:
        self._log = log
        self._disk = disk
        self.covered = covered
        self.fds = [segment.handle for segment, _ in covered]
        self.directory = directory
        self.op = log.head_op
        self.checksum = log.head_checksum
        self.bytes = sum(size - segment.synced for segment, size in covered)
        self.epoch = epoch
        self.done = False
        self.failed = False

    def run(self) -> None:
        """Sync the files, then the directory: data before names. The interpreter is free meanwhile.

        Raises:
            SyncFailed: the log is fenced from now on, whatever becomes of the plan.
        """
        run_together(self._disk, [self])

    def run_names(self) -> None:
        """The second half of `run_together`: the files are synced.

        Raises:
            SyncFailed: as `run`.
        """
        if self.directory:
            try:
                self._disk.fsync_dir(self._log.directory)
            except OSError as error:
                self._refuse(error, self._log.directory)
                return
        self.done = True

    def refuse(self, position: int, number: int) -> None:
        """The sync of file ``position`` of ``fds`` failed with errno ``number``. Returns when the log was deleted
        meanwhile.

        Raises:
            SyncFailed: as `run`.
        """
        self._refuse(OSError(number, os.strerror(number)), self.covered[position][0].path)

    def _refuse(self, error: OSError, path: str) -> None:
        if self._log.closed:
            # Deleted while the sync was out: nobody waits for it, and its files may be gone.
            return
        self.failed = True
        fault = disk_fault(error, path, SYNC)
        self._log.fence(str(fault))
        assert isinstance(fault, SyncFailed)
        raise fault from error

    def adopt(self) -> None:
        """Say that somebody else synced everything this plan covers (one `syncfs` for many logs)."""
        self.done = True


def run_together(disk: Disk, plans: list[SyncPlan]) -> None:
    """Run several plans: the files of all, then the names; data before names.

    Raises:
        SyncFailed: the log of the plan that failed is fenced from now on.
    """
    rounds = file_rounds(plans)
    failed: tuple[int, int] | None = None
    try:
        while True:
            failed = disk.fdatasync_all(rounds.send(failed))
    except StopIteration as end:
        for plan in end.value:
            plan.run_names()


def file_rounds(
    plans: list[SyncPlan],
) -> Generator[list[int], tuple[int, int] | None, list[SyncPlan]]:
    """The files of several plans: yields handles to sync, is sent what `Disk.fdatasync_all` says of them, and returns
    the plans whose names are to be synced now.

    The files go to the disk in one call, since a thread that asks for the interpreter after each of them would stop
    the pump as often. A file that fails ends the round, and no plan of it is taken for synced; a log that was deleted
    meanwhile holds up nobody.

    Raises:
        SyncFailed: the log of the plan that failed is fenced from now on.
    """
    # The handles of the plans: a segment that is retired meanwhile keeps none of its own.
    places = [(plan, position) for plan in plans for position in range(len(plan.fds))]
    while (failed := (yield [plan.fds[position] for plan, position in places])) is not None:
        index, number = failed
        gone, position = places[index]
        gone.refuse(position, number)
        plans = [plan for plan in plans if plan is not gone]
        places = [place for place in places[index + 1 :] if place[0] is not gone]
    return plans
