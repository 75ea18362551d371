"""Checkpoints of the metadata group: snapshot, then pairing, then the log below it goes. One writer, one at a time
(S0-40, S2-40).

The state is encoded in a forked helper process, which sees it as it was at the fork (memory is copied when written):
the pump never waits for an
encoding. Any failure ends the round and leaves the log as it was; the next trigger tries again.
"""

import os
import signal
import time
from typing import Protocol

import structlog
import trio

from shardsrv.errors import DiskFault, OurFault
from shardsrv.shards.metadata_group import MetadataGroup
from shardsrv.shards.pump import Pump
from shardsrv.store.disk import Disk
from shardsrv.store.faults import WriteFailed
from shardsrv.store.layout import SNAPSHOT, DataDirectory
from shardsrv.store.snapshot import read_snapshot, write_snapshot
from shardsrv.vsr.state import VsrState


class CheckpointHost(Protocol):
    """What the checkpointer needs of shard 0."""

    disk: Disk
    directory: DataDirectory
    pump: Pump
    group: MetadataGroup
    log: structlog.stdlib.BoundLogger


class MetadataCheckpointer:
    """Decides when, and carries it out."""

    def __init__(self, host: CheckpointHost, op: int, *, log_bytes: int, interval: float) -> None:
        self._host = host
        self._op = op
        self._bytes_max = log_bytes
        self._interval = interval
        self._since = host.group.appended_bytes
        self._due = trio.Event()
        self._recorded = trio.Event()

    def encode(self) -> bytes:
        """The snapshot payload of the present state. In a cluster nothing of the node is in it: equal states give equal
        bytes."""
        group = self._host.group
        table = group.replica.table
        assert table is not None
        created_at = time.time_ns() // 1000 if group.replica.member is None else group.plane.timestamp
        return group.plane.encode_snapshot(group.applied_checksum, created_at, table.snapshot())

    def restored(self, op: int) -> None:
        """A transfer put the snapshot of entry ``op`` in place, and its pair."""
        self._op = max(self._op, op)

    def changed(self) -> None:
        """An entry was applied."""
        if self._host.group.appended_bytes - self._since >= self._bytes_max:
            self._due.set()

    def state_recorded(self, state: VsrState) -> None:
        """A superblock record is durable; it may be the one that a round waits for."""
        if state.checkpoint_op >= self._op:
            self._recorded.set()

    async def recorded(self) -> None:
        """Wait for a superblock record to become durable."""
        await self._recorded.wait()

    async def run(self) -> None:
        """The task: rounds by size of the log and by time, until cancelled."""
        while True:
            with trio.move_on_after(self._interval):
                await self._due.wait()
            self._due = trio.Event()
            group = self._host.group
            if group.replica.commit_min > self._op and group.replica.in_flight == 0 and group.take_snapshots():
                try:
                    await self.round()
                finally:
                    group.leave_snapshots()

    async def round(self) -> None:
        """One checkpoint."""
        host, group = self._host, self._host.group
        op = group.replica.commit_min
        self._since = group.appended_bytes
        try:
            await self._write_snapshot()
            written = await trio.to_thread.run_sync(read_snapshot, host.disk, host.directory.snapshot)
        except DiskFault as error:
            host.log.error("metadata checkpoint failed", op=op, error=str(error))
            return
        if written is None:
            raise OurFault("the snapshot that was just written is not there")
        self._op = op
        self._recorded = trio.Event()
        host.pump.step(group.carry_out, group.replica.record(checkpoint_op=op, checkpoint_checksum=written.checksum))
        await self._recorded.wait()
        plan = group.log.drop_plan(op)
        try:
            await trio.to_thread.run_sync(plan.run)
        except DiskFault as error:
            host.log.error("old metadata log could not be removed", op=op, error=str(error))
            return
        host.log.info("metadata checkpoint", op=op, bytes=len(written.payload))

    async def _write_snapshot(self) -> None:
        """Encode and write in a forked process. Raises `DiskFault`."""
        pid = os.fork()
        if pid == 0:
            self._in_helper()
        pidfd = os.pidfd_open(pid)
        try:
            with trio.CancelScope(shield=True):
                await trio.lowlevel.wait_readable(pidfd)
        finally:
            os.close(pidfd)
            _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status) != 0:
            raise WriteFailed(self._host.directory.snapshot, "snapshot", 0)

    def _in_helper(self) -> None:
        """The helper process: no signal handler and no loop of the shard runs in it."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            write_snapshot(self._host.disk, self._host.directory.metadata, SNAPSHOT, self.encode())
            code = 0
        except DiskFault as error:
            self._host.log.error("snapshot write failed", error=str(error))
        finally:
            os._exit(code)
