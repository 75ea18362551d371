"""A simulated member: real replicas, planes and storage drivers on a simulated disk, driven as a shard drives them.

It lives from `start` to `kill`, `power_loss` or a typed halt. What a call to the disk raises is what the server's
shards would see.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

from shardsrv.errors import DiskFault, ShardsrvError
from shardsrv.plane.metadata.state import PartitionIdentity
from shardsrv.sim import boot
from shardsrv.sim.clock import SECOND
from shardsrv.sim.groups import MetadataSimGroup, SimGroup
from shardsrv.sim.node_base import Crash
from shardsrv.sim.node_follow import NodeFollow
from shardsrv.store.group_key import METADATA, GroupKey
from shardsrv.vsr.effects import PersistState
from shardsrv.vsr.events import Request
from shardsrv.vsr.status import NORMAL

RECONCILED_EVERY: Final = 16
RECONCILED_PAUSE: Final = SECOND
"""Metadata ops between two records of how far the partitions of this member are made."""


class Node(NodeFollow):
    """One member of the cluster."""

    # --- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start from what the disk holds. A typed refusal leaves the member halted."""
        self.life += 1
        self.halted = None
        self._clear()
        self.up = True
        self.world.trace.line(self.name, "start", self.life)
        self._guard(self._start)
        if self.up:
            # Members do not tick in step.
            self.later(self.latency.randrange(self.options.tick), self._tick)

    def _start(self) -> None:
        boot.read_boot(self)
        metadata = boot.open_metadata(self)
        self.metadata = metadata
        owned = list(metadata.plane.owned())
        opened = boot.open_tables(self, owned)
        self.oracles.started(self)
        # Partitions first: what metadata commits as it starts may delete some of them.
        self._adopt(opened)
        metadata.carry_out(metadata.replica.start(self.incarnation()))
        self._delete_strays()

    def stop(self) -> bool:
        """Sync every log, record the frontiers and mark the stop as clean; the process then ends. False when it ended
        by a crash or a fault in between."""
        life = self.life
        self._guard(self._mark_clean)
        return self.life == life and self.up

    def _mark_clean(self) -> None:
        assert self.metadata is not None
        for group in [self.metadata, *self.groups.values()]:
            if group.fault is not None:
                return
            group.flush()
            plan = group.log.sync_plan()
            plan.run()
            group.log.mark_synced(plan)
            self.frontier_moved(group, group.log.synced_checksum)
        for record in (self.boot_records[METADATA], self.partition_boot):
            record.mark_clean()

    def kill(self) -> None:
        """The process ends; what it had written stays in the page cache."""
        self._stop("kill")
        self.disk.kill()

    def power_loss(self, random: Random) -> None:
        """Power goes: the disk keeps what was synced and, of the rest, any legal part."""
        self._stop("power")
        self.disk.crash(random)
        self.boot_id = self._draw_boot_id()

    # --- time ------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self.later(self.options.tick, self._tick)
        now = self.clock.wall()
        assert self.metadata is not None
        metadata = self.metadata
        metadata.tick(now)
        for group in list(self.groups.values()):
            group.tick(now)
            if group.purging:
                self._ask_purge(group)
        self._reconcile(metadata)
        self._resume_waiting()
        self._checkpoints()
        self._settle()

    def _reconcile(self, metadata: MetadataSimGroup) -> None:
        """Record now and then that every partition made so far has its directory."""
        op, now, recorded = metadata.plane.op, self.world.schedule.now, self.recorded_through
        due = op >= recorded + RECONCILED_EVERY or (op > recorded and now >= self._record_due)
        if due and metadata.replica.status == NORMAL:
            self.reconciled_through = self.recorded_through = op
            self._record_due = now + RECONCILED_PAUSE
            metadata.carry_out(metadata.replica.record(reconciled_through=op))

    # --- frames ----------------------------------------------------------------------------------------------------

    def receive(self, source: int, frame: bytes) -> None:
        """A frame of a peer arrived."""
        if self.up:
            self._guard(self.world.frames.receive, self, source, frame)
            self._settle()

    def group_at(self, group: int) -> SimGroup | None:
        """The group with an id, if this member serves it."""
        if self.metadata is not None and group == self.metadata.replica.identity.group:
            return self.metadata
        return self.groups.get(group)

    def group_of(self, key: GroupKey) -> SimGroup | None:
        """The group of a key, if this member serves that life of it."""
        group = self.metadata if key == METADATA else self.groups.get(key.group)
        return group if group is not None and group.key == key else None

    # --- requests --------------------------------------------------------------------------------------------------

    def submit(self, group: SimGroup, request: Request) -> None:
        """Give a request to a group."""
        self._guard(group.submit, request)
        self._settle()

    # --- what a group needs of its shard (shards.group.Host) --------------------------------------------------------

    def waits(self, group: Any) -> None:
        """See `Host`."""
        self._waiting[group] = None

    def frontier_moved(self, group: SimGroup, checksum: int) -> None:
        """See `Host`."""
        if group.closed:
            return
        self.oracles.disks.told_synced(self, group)
        record = self.boot_records.get(METADATA) if group.key == METADATA else self.partition_boot
        if record is not None:
            try:
                record.update(group.key, group.log.synced_op, checksum, group.log.head_op)
            except DiskFault as error:
                self.world.trace.line(self.name, "boot record", type(error).__name__)

    def fenced(self, group: SimGroup, error: Exception) -> None:
        """See `Host`."""
        self.world.trace.line(self.name, "fenced", group.key, type(error).__name__)
        self.world.count("groups fenced")
        record = self.boot_records.get(METADATA) if group.key == METADATA else self.partition_boot
        if record is not None:
            record.fence(group.key)
        if group.key == METADATA:
            raise error
        # One partition is out of service until the member starts again, which its supervisor does.
        self.world.restart_soon(self)

    def doubt(self, identity: PartitionIdentity, error: BaseException) -> None:
        """A partition that cannot be served."""
        if not isinstance(error, ShardsrvError):
            raise error
        self.doubtful[identity] = error
        self.oracles.doubted(self, boot.key_of(identity))
        self.world.trace.line(self.name, "doubt", identity, type(error).__name__)
        self.world.doubted(self, identity, error)

    def persist_state(self, group: Any, effect: PersistState) -> None:
        """See `Host`."""
        if group is self.metadata or group.key == METADATA:
            self.later(self._disk_delay(), self._write_superblock, group, effect)
        else:
            self._states[group] = effect
            self._table_soon()


__all__ = ["Crash", "Node"]
