"""How a simulated member writes: turns of entries, rounds of syncs, superblocks and checkpoints, as a shard does it.

Invariants: entries of a turn are written together, then synced; one round of syncs, one write of the superblock and one
of the group table are out at a time; a checkpoint describes only what is synced, and the log below a snapshot goes only
when the pairing is durable.
"""

from __future__ import annotations

from typing import Any, Final

from shardsrv.errors import DiskFault
from shardsrv.sim.groups import MetadataSimGroup, PartitionSimGroup, SimGroup
from shardsrv.sim.node_base import NodeBase
from shardsrv.store.boot import BootRecord
from shardsrv.store.group_key import METADATA, GroupKey
from shardsrv.store.layout import SNAPSHOT
from shardsrv.store.log_sync import run_together
from shardsrv.store.snapshot import read_snapshot, write_snapshot
from shardsrv.vsr.effects import PersistState
from shardsrv.vsr.events import PersistFailed

BESIDE: Final = 0.3
"""Share of installs beside which a checkpoint begins, in runs with lies."""


class NodeDisk(NodeBase):
    """The writing half of a member."""

    # --- turns: write, then sync -------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """After anything happened: a turn's entries will be written, and syncs started."""
        if self.up and self.written and not self._turn_due:
            self._turn_due = True
            self.later(self.latency.randrange(1, self.options.disk_latency), self._write_turn)

    def _write_turn(self) -> None:
        self._turn_due = False
        dirty = self.written[:]
        self.written.clear()
        for group in dirty:
            self._write(group)
        self._settle()

    def _write(self, group: SimGroup) -> None:
        before = group.log.bytes
        group.flush()
        self._unsynced_bytes += max(0, group.log.bytes - before)
        self._admit()
        self._unsynced[group] = None
        self._sync_soon(bool(self._urgent))

    def _admit(self) -> None:
        """Admission follows what is unsynced, as on a shard."""
        self.admission.open = self._unsynced_bytes < self.options.unsynced_max

    def _sync_soon(self, urgent: bool) -> None:
        if self._round_running:
            return
        at = self.world.schedule.now + (1 if urgent else self.options.sync_interval)
        if not self._round_due or at < self._round_due:
            self._round_due = at
            self.later(at - self.world.schedule.now, self._begin_round, at)

    def _begin_round(self, due: int) -> None:
        """Plan a round between turns: what is appended is written first."""
        if due != self._round_due:
            return
        self._round_due = 0
        if self._round_running:
            return  # its end asks for the next one
        dirty = self.written[:]
        self.written.clear()
        for group in dirty:
            before = group.log.bytes
            group.flush()
            self._unsynced_bytes += max(0, group.log.bytes - before)
            self._admit()
            self._unsynced[group] = None
        groups = list(dict.fromkeys([*self._urgent, *self._unsynced]))
        self._urgent.clear()
        self._unsynced.clear()
        for group in groups:
            group.in_sync_list = False
        planned = [
            (group, group.log.sync_plan(), group.append_token, group.log.head_checksum)
            for group in groups
            if group.fault is None and not group.closed
        ]
        if not planned:
            # What was not synced is no log's any more.
            self._unsynced_bytes = 0
            self._admit()
            self._resume_waiting()
            return
        self._round_running = True
        covered, self._unsynced_bytes = self._unsynced_bytes, 0
        self._admit()
        # The sync may have reached the disk long before it is told, or only then.
        early = self.latency.random() < 0.5
        failures = self._run_plans(planned) if early else None
        self.later(self._sync_delay(), self._end_round, planned, early, failures, covered)

    def _run_plans(self, planned: list[Any]) -> DiskFault | None:
        try:
            run_together(self.disk, [plan for _, plan, _, _ in planned])
        except DiskFault as error:
            return error
        return None

    def _end_round(self, planned: list[Any], early: bool, failure: DiskFault | None, covered: int) -> None:
        if not early:
            failure = self._run_plans(planned)
        self._round_running = False
        if failure is not None:
            self._unsynced_bytes += covered
            self._admit()
        for group, plan, token, checksum in planned:
            if failure is None:
                group.synced(plan, token, checksum)
            else:
                group.sync_failed(plan, token, failure)
        if self._urgent:
            self._sync_soon(True)
        elif self._unsynced or self.written:
            self._sync_soon(False)
        self._resume_waiting()
        self._settle()

    def _disk_delay(self) -> int:
        return self.latency.randrange(1, self.options.disk_latency + self.options.sync_latency)

    def _sync_delay(self) -> int:
        return self.latency.randrange(1, self.options.sync_latency)

    def wants_sync(self, group: Any) -> None:
        """See `Host`."""
        self._urgent[group] = None

    def _resume_waiting(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for group in waiting:
                group.resume()
                if group.waiting:
                    self._waiting[group] = None

    def _record_of(self, group: SimGroup) -> BootRecord:
        return self.boot_records[METADATA] if group.key == METADATA else self.partition_boot

    # --- superblocks -------------------------------------------------------------------------------------------------

    def _write_superblock(self, group: SimGroup, effect: PersistState) -> None:
        try:
            self.superblock.write(effect.state.encode())
        except DiskFault as error:
            self.world.trace.line(self.name, "superblock", type(error).__name__)
            self.superblock.read()
            group.carry_out(group.replica.step(PersistFailed(effect.token, str(error))))
        else:
            group.state_persisted(effect.token, effect.state)
            self._state_recorded(effect.state)
        self._settle()

    def _table_soon(self) -> None:
        if not self._table_busy and (self._states or self._freed):
            self._table_busy = True
            self.later(self._disk_delay(), self._write_table)

    def _write_table(self) -> None:
        states, self._states = self._states, {}
        freed, self._freed = self._freed, []
        changes: dict[GroupKey, bytes | None] = {
            group.key: effect.state.encode() for group, effect in states.items() if not group.closed
        }
        changes.update(dict.fromkeys(freed))
        try:
            self.table.write(changes)
        except DiskFault as error:
            self.world.trace.line(self.name, "group table", type(error).__name__)
            self._freed.extend(freed)
            for group, effect in states.items():
                group.carry_out(group.replica.step(PersistFailed(effect.token, str(error))))
            # A table whose write failed is opened again before the next one.
            self.world.restart_soon(self)
        else:
            for group, effect in states.items():
                if not group.closed:
                    group.state_persisted(effect.token, effect.state)
        self._table_busy = False
        self._table_soon()
        self._settle()

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def _checkpoints(self) -> None:
        limit = self.options.checkpoint_bytes
        group = self.metadata
        assert group is not None
        if group.appended_bytes - group.checkpointed_at >= limit and not group.checkpointing:
            self._begin_snapshot(group)
        for partition in list(self.groups.values()):
            due = partition.appended_bytes - partition.checkpointed_at >= limit
            purged = partition.plane.purge_op > partition.checkpoint_purge
            if due or purged:
                self._begin_checkpoint(partition)

    def _begin_checkpoint(self, group: PartitionSimGroup) -> None:
        plane = group.plane
        idle = not group.checkpointing and group.fault is None and plane.applied_op > 0
        if not idle or not group.take_snapshots():
            return
        group.checkpointing = True
        group.checkpoint_purge = plane.purge_op
        group.checkpointed_at = group.appended_bytes
        op, payload = plane.applied_op, plane.checkpoint(group.applied_checksum)
        self.later(self._disk_delay(), self._write_checkpoint, group, op, payload, plane.purge_op)

    def checkpoint_beside_install(self, group: Any) -> None:
        """Begin a checkpoint, whatever was written since the last, just before a transferred state is installed."""
        if not self.options.faults.lie or self.latency.random() >= BESIDE:
            return
        if group is self.metadata and not group.checkpointing:
            self._begin_snapshot(group)
        elif group is not self.metadata:
            self._begin_checkpoint(group)

    def _write_checkpoint(self, group: PartitionSimGroup, op: int, payload: bytes, purge_op: int) -> None:
        """A checkpoint describes only what is synced."""
        if group.closed or group.fault is not None:
            group.checkpointing = False
            group.leave_snapshots()
            return
        if group.log.synced_op < op:
            self.wants_sync(group)
            self._sync_soon(True)
            self.later(self._sync_delay(), self._write_checkpoint, group, op, payload, purge_op)
            return
        group.checkpointing = False
        group.leave_snapshots()
        try:
            group.checkpoint.write(payload)
            if purge_op and group.log.first_op <= purge_op and self.options.drop_logs:
                group.log.drop_plan(purge_op + 1).run()
                group.replica.log_dropped(group.log.first_op)
        except DiskFault as error:
            self.world.trace.line(self.name, "checkpoint", type(error).__name__)
            group.checkpoint.read()
        else:
            self.world.count("partition checkpoints")

    def _begin_snapshot(self, group: MetadataSimGroup) -> None:
        replica = group.replica
        if replica.commit_min <= self.checkpoint_op or replica.in_flight or not group.take_snapshots():
            return
        group.checkpointing = True
        group.checkpointed_at = group.appended_bytes
        table = replica.table
        assert table is not None
        op = replica.commit_min
        payload = group.plane.encode_snapshot(group.applied_checksum, 0, table.snapshot())
        self.oracles.snapshot(self, op, payload)
        self.later(self._disk_delay(), self._write_snapshot, group, op, payload)

    def _write_snapshot(self, group: MetadataSimGroup, op: int, payload: bytes) -> None:
        """Phase one: the file. What it holds is read back, since a failed step may still have left the new one."""
        try:
            write_snapshot(self.disk, self.directory.metadata, SNAPSHOT, payload)
            written = read_snapshot(self.disk, self.directory.snapshot)
        except DiskFault as error:
            self.world.trace.line(self.name, "snapshot", type(error).__name__)
            group.checkpointing = False
            group.leave_snapshots()
            return
        assert written is not None
        self.checkpoint_op = op
        group.carry_out(group.replica.record(checkpoint_op=op, checkpoint_checksum=written.checksum))
        self._settle()

    def _state_recorded(self, state: Any) -> None:
        """Phase three: the pairing is durable, the log below the snapshot may go."""
        group = self.metadata
        if group is None or not group.checkpointing or state.checkpoint_op < self.checkpoint_op:
            return
        group.checkpointing = False
        group.leave_snapshots()
        try:
            if self.options.drop_logs:
                group.log.drop_plan(self.checkpoint_op).run()
            group.replica.log_dropped(group.log.first_op)
        except DiskFault as error:
            self.world.trace.line(self.name, "log drop", type(error).__name__)
        self.world.count("metadata checkpoints")
        self.world.trace.line(self.name, "checkpoint", self.checkpoint_op)
