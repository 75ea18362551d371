"""The partitions of a shard on disk: opening, making, checkpoints, deletion, and the records that say what can be
trusted.

Invariants:

* a partition's superblock record is durable before it serves, and one write of the group table is out at a time; all
  that wait share it;
* a checkpoint describes only what is synced: it is encoded, then written after a sync that covers it;
* a partition in doubt (unreadable or missing record, lost directory, damaged log) is left as it lies and not served;
  the others are;
* the files of a deleted partition go before its record does, and a new one has its directory before its record: a
  crash in between leaves one of both, and either leads to what must go.
"""

import os
import shutil
from itertools import pairwise
from typing import Any, Protocol

import trio

from shardsrv.bus._memory import Counters
from shardsrv.errors import DiskFault, ShardsrvError
from shardsrv.plane.metadata.plane import OwnedPartition
from shardsrv.plane.metadata.state import PartitionIdentity
from shardsrv.shards.group import lower_frontier
from shardsrv.shards.member_facts import boot_entry
from shardsrv.shards.opening import Opened, OpeningHost, PartitionOpener, key_of
from shardsrv.shards.partition_group import PartitionGroup
from shardsrv.shards.pump import Pump
from shardsrv.shards.syncer import Syncer
from shardsrv.store.boot import BootRecord
from shardsrv.store.disk import sync_names
from shardsrv.store.group_key import METADATA, GroupKey, owner_shard
from shardsrv.store.groups import GroupTable
from shardsrv.store.layout import partition_keys
from shardsrv.store.set_aside import asides, set_aside
from shardsrv.vsr.effects import PersistState
from shardsrv.vsr.events import PersistFailed


class StorageHost(OpeningHost, Protocol):
    """What storage needs of its shard."""

    shard: int
    pump: Pump
    syncer: Syncer
    counters: Counters
    groups: dict[int, PartitionGroup]

    def start(self, task: Any, *arguments: Any) -> None:
        """Run a task beside the pump."""

    def publish_counters(self, group: PartitionGroup) -> None:
        """Write the group's slot of the counters page."""


class PartitionStorage:
    """See the module."""

    def __init__(self, host: StorageHost) -> None:
        self._host = host
        self._opener: PartitionOpener
        self._table: GroupTable
        self._boot: BootRecord
        self._states: dict[PartitionGroup, PersistState] = {}
        self._freed: list[GroupKey] = []
        self._table_work = trio.Event()
        self._table_idle = trio.Event()
        self._checkpointing: set[PartitionGroup] = set()
        self._checkpoint_done = trio.Event()
        self.doubtful: dict[PartitionIdentity, ShardsrvError] = {}
        """Partitions that are not served, and why."""
        self.reconciled_through = 0
        """The metadata op up to which every partition had its directory here when this life began."""

    # ------------------------------------------------------------------------------------------------ opening

    async def recover(self, owned: list[OwnedPartition], op: int) -> list[Opened]:
        """Open every partition of this shard, as of metadata entry ``op``; runs before the pump."""
        host = self._host
        host.disk.mkdir(host.directory.partitions)
        self._table = GroupTable.open(host.disk, host.directory.group_table(host.shard))
        self._opener = PartitionOpener(host, self._table, self.reconciled_through)
        opened = await trio.to_thread.run_sync(self._open_all, owned)
        entries = [boot_entry(key_of(item.group.identity), item.group.replica, item.group.log) for item in opened]
        # What is known of a partition in doubt stays known: without it the next start would take its rot for a torn
        # tail.
        for identity in self.doubtful:
            facts = host.context.prepared.boot.get(key_of(identity))
            if facts is not None:
                entries.append(facts.carried(host.context.boot.kernel_boot_id))
        # So does what is known of one that metadata has yet to commit again.
        for key, facts in host.context.prepared.boot.items():
            if key != METADATA and key.created_revision > op and self._owns(key):
                entries.append(facts.carried(host.context.boot.kernel_boot_id))
        self._boot = BootRecord.create(
            host.disk,
            host.directory.boot_record(host.shard),
            host.context.boot.kernel_boot_id,
            host.context.prepared.generation,
            entries,
        )
        return opened

    def _open_all(self, owned: list[OwnedPartition]) -> list[Opened]:
        opened = []
        for partition in owned:
            try:
                opened.append(self._opener.open(partition))
            except ShardsrvError as error:
                self._doubt(partition.identity, error)
        return self._names_durable(opened)

    def _names_durable(self, opened: list[Opened]) -> list[Opened]:
        """Before the first record of a partition speaks of its directory, the directory has to be there for good: a
        power loss that took it would leave a partition that looks lost. One sync of each directory above for all new
        ones."""
        known = self._table.records()
        new = [item for item in opened if key_of(item.group.identity) not in known]
        directory = self._host.directory
        paths = [directory.partition(*key_of(item.group.identity)) for item in new]
        try:
            sync_names(self._host.disk, directory.partitions, paths)
        except DiskFault as fault:
            for item in new:
                item.group.log.close()
                self._doubt(item.group.identity, fault)
            return [item for item in opened if item not in new]
        return opened

    def open_new(self, owned: list[OwnedPartition]) -> list[Opened]:
        """Make partitions that metadata has just created. Runs in a thread."""
        return self._open_all(owned)

    def _doubt(self, identity: PartitionIdentity, error: ShardsrvError) -> None:
        self.doubtful[identity] = error
        self._host.log.error("partition is not served", partition=str(identity), error=str(error))

    # ------------------------------------------------------------------------------------------------ the group table

    def persist_state(self, group: PartitionGroup, effect: PersistState) -> None:
        """Queue a record; all that is queued goes with one write."""
        self._states[group] = effect
        self._table_work.set()

    async def write_table(self) -> None:
        """The task: one write of the group table after another."""
        while True:
            await self._table_work.wait()
            self._table_work = trio.Event()
            states, self._states = self._states, {}
            freed, self._freed = self._freed, []
            changes: dict[GroupKey, bytes | None] = {
                key_of(group.identity): effect.state.encode() for group, effect in states.items()
            }
            changes.update(dict.fromkeys(freed))
            try:
                staged = self._table.stage(changes)
                try:
                    await trio.to_thread.run_sync(staged.run)
                finally:
                    self._table.confirm(staged)
            except DiskFault as error:
                self._host.log.error("group table write failed", error=str(error))
                for group, effect in states.items():
                    self._host.pump.step(group.carry_out, group.replica.step(PersistFailed(effect.token, str(error))))
            else:
                for group, effect in states.items():
                    self._host.pump.step(group.state_persisted, effect.token, effect.state)
            self._table_idle.set()
            self._table_idle = trio.Event()

    async def settled(self) -> None:
        """Wait for the write of the group table that is next to end."""
        await self._table_idle.wait()

    def came_back(self, op: int) -> None:
        """A node that was begun anew holds what the others have, up to metadata entry ``op``: partitions that were
        created later are new here."""
        self.reconciled_through = self._opener.reconciled_through = op

    # ------------------------------------------------------------------------------------------------ boot record

    def synced(self, group: PartitionGroup, checksum: int) -> None:
        """A sync of the group's log succeeded: move its frontier in the boot record."""
        if group.closed:
            return
        try:
            self._boot.update(key_of(group.identity), group.log.synced_op, checksum, group.log.head_op)
        except DiskFault as error:
            # An older entry only makes the next start look at more of the log.
            self._host.log.warning("boot record not updated", partition=str(group.identity), error=str(error))

    def lower_frontier(self, group: PartitionGroup, op: int) -> None:
        """The group's log is about to be cut from ``op`` on. Raises `DiskFault`: then it must not be."""
        lower_frontier(self._boot, key_of(group.identity), group.log, op)

    def trusted(self, group: PartitionGroup) -> None:
        """A group marked as a suspect holds again what it may have acknowledged."""
        try:
            self._boot.trust(key_of(group.identity))
        except DiskFault as error:
            # A mark that stays only makes the next start doubt more than it has to.
            self._host.log.warning("boot record not updated", partition=str(group.identity), error=str(error))

    def mark_fenced(self, group: PartitionGroup) -> None:
        """A sync or write of the group failed: the next start must not trust the page cache."""
        self._boot.fence(key_of(group.identity))

    # ------------------------------------------------------------------------------------------------ checkpoints

    def checkpoint_soon(self, group: PartitionGroup) -> None:
        """Make a checkpoint of the group beside the pump, unless one is on its way."""
        if group not in self._checkpointing and not group.closed and group.fault is None:
            self._checkpointing.add(group)
            group.checkpointed_at = group.appended_bytes
            self._host.start(self._checkpoint_task, group)

    async def _checkpoint_task(self, group: PartitionGroup) -> None:
        try:
            await self.checkpoint(group)
        except DiskFault as error:
            self._host.log.error("partition checkpoint failed", partition=str(group.identity), error=str(error))
        finally:
            self._checkpoint_ended(group)

    async def checkpoint_now(self, group: PartitionGroup) -> None:
        """A checkpoint of what is committed now, after one that is on its way. Raises `DiskFault`."""
        while group in self._checkpointing:
            await self._checkpoint_done.wait()
        self._checkpointing.add(group)
        group.checkpointed_at = group.appended_bytes
        try:
            await self.checkpoint(group)
        finally:
            self._checkpoint_ended(group)

    def _checkpoint_ended(self, group: PartitionGroup) -> None:
        self._checkpointing.discard(group)
        self._checkpoint_done.set()
        self._checkpoint_done = trio.Event()

    async def checkpoint(self, group: PartitionGroup) -> None:
        """Encode, wait until what was encoded is synced, write, then let go of segments without a readable message.
        Raises `DiskFault`."""
        if not group.take_snapshots():
            return  # a transfer is putting another state in place
        try:
            await self._checkpoint(group)
        finally:
            group.leave_snapshots()

    async def _checkpoint(self, group: PartitionGroup) -> None:
        op, payload = group.plane.applied_op, group.plane.checkpoint(group.applied_checksum)
        if op == 0:
            return
        floor = self._floor(group, op)
        while group.log.synced_op < op and group.fault is None and not group.closed:
            done = self._host.syncer.round_done()
            self._host.pump.step(self._host.syncer.urgent, group)
            await done.wait()
        if group.fault is not None or group.closed:
            return
        await trio.to_thread.run_sync(group.checkpoint.write, payload)
        if group.log.first_op < floor and not group.closed:
            plan = group.log.drop_plan(floor)
            group.resume_points.clear()
            await trio.to_thread.run_sync(plan.run)
            if not group.closed:
                self._host.publish_counters(group)

    def droppable(self, group: PartitionGroup) -> bool:
        """Whether a checkpoint now would let segments go."""
        return group.log.first_op < self._floor(group, group.plane.applied_op)

    def _floor(self, group: PartitionGroup, op: int) -> int:
        """The first op that must stay in the log once a checkpoint of entry ``op`` is durable: segments below hold no
        readable message."""
        purge_op, first_offset = group.plane.purge_op, group.plane.first_offset
        floor = purge_op + 1 if purge_op else 0
        for (_, _, _), (following, next_base, _) in pairwise(group.log.segments()):
            if following - 1 > op or (following - 1 > purge_op and next_base > first_offset):
                break
            floor = max(floor, following)
        return floor

    # ------------------------------------------------------------------------------------------------ deletion and end

    async def delete(self, keys: list[GroupKey]) -> None:
        """Remove the files of partitions, then free their records. A checkpoint on its way ends first: what it writes
        and removes lies in the same directories."""
        gone = set(keys)
        while any(key_of(group.identity) in gone for group in self._checkpointing):
            await self._checkpoint_done.wait()
        for key in keys:
            path = self._host.directory.partition(*key)
            if self._host.disk.exists(path):
                # As one: a start that finds half of its files would take what is left for a log.
                await trio.to_thread.run_sync(set_aside, self._host.disk, path)
            for each in asides(self._host.disk, path):
                await trio.to_thread.run_sync(_remove_tree, each)
            self._boot.remove(key)
        self._freed.extend(keys)
        self._table_work.set()

    def strays(self, owned: set[GroupKey], op: int) -> list[GroupKey]:
        """Records and directories of this shard that metadata of entry ``op`` does not know: partitions deleted before
        a crash. What was created later is none: in a cluster a node may come back with more partitions than committed
        metadata."""
        host = self._host
        held: list[GroupKey] = []
        try:
            held = partition_keys(host.directory.partitions, host.disk.listdir)
        except OSError as error:
            # What is left over takes room and does no harm; the partitions that can be read are served.
            host.log.error("directories of partitions cannot be listed", error=str(error))
        known = dict.fromkeys([*self._table.records(), *(key for key in held if self._owns(key))])
        return [key for key in known if key not in owned and key.created_revision <= op]

    async def close(self) -> bool:
        """After the last sync: checkpoints of all that changed, then the clean mark. False when something is not
        clean."""
        clean = True
        for group in self._host.groups.values():
            if group.fault is not None:
                clean = False
            elif group.appended_bytes > group.checkpointed_at or group.replayed:
                try:
                    await self.checkpoint(group)
                except DiskFault as error:
                    self._host.log.error("last checkpoint failed", partition=str(group.identity), error=str(error))
                    clean = False
        if clean:
            await trio.to_thread.run_sync(self._boot.mark_clean)
        return clean

    def _owns(self, key: GroupKey) -> bool:
        return owner_shard(key.group, self._host.context.shard_count) == self._host.shard

    def owner(self, identity: PartitionIdentity) -> int:
        """The shard that owns a partition."""
        return owner_shard(identity.group, self._host.context.shard_count)


def _remove_tree(path: str) -> None:
    """Remove a partition's directory and make its absence durable."""
    if os.path.lexists(path):
        shutil.rmtree(path)
        handle = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
