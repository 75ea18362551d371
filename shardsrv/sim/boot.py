"""How a simulated member finds its state: the order of the server's own start, on the simulated disk.

1. superblock; 2. snapshot and its trailer; 3. the pair of both; 4. the state in the snapshot; 5. the log above it.
Then, for each partition that metadata knows: group table record, checkpoint, log. Every refusal of the formats is left
to the caller: a member that refuses stays down, with the typed reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardsrv._core import Prepare
from shardsrv.plane.metadata import snapshot as snapshot_format
from shardsrv.plane.metadata.options_catalog import TopicDefaults
from shardsrv.plane.metadata.plane import MetadataPlane, OwnedPartition
from shardsrv.plane.metadata.state import MetadataState, PartitionIdentity
from shardsrv.plane.partition.plane import PartitionPlane
from shardsrv.shards import member_facts
from shardsrv.shards.member_facts import boot_entry, record_state, snapshot_state
from shardsrv.shards.metadata_aside import HEALED_BY_PEERS as HEALED_METADATA
from shardsrv.shards.metadata_aside import set_metadata_aside
from shardsrv.shards.metadata_transfer import MetadataTransferDriver
from shardsrv.shards.partition_transfer import PartitionTransferDriver
from shardsrv.sim.groups import MetadataSimGroup, PartitionSimGroup
from shardsrv.store.boot import BootRecord, merge_boot_files, read_boot_files
from shardsrv.store.checkpoint import Checkpoint, checkpoint_fault
from shardsrv.store.disk import sync_names
from shardsrv.store.faults import (
    PartitionLost,
    SuperblockUnreadable,
)
from shardsrv.store.group_key import METADATA, GroupKey
from shardsrv.store.groups import GroupTable, nameless, read_tables
from shardsrv.store.incoming import finish_swap
from shardsrv.store.layout import SNAPSHOT
from shardsrv.store.log import PrepareLog
from shardsrv.store.log_opening import LogFacts, LogRecovery
from shardsrv.store.log_reload import open_behind_snapshot
from shardsrv.store.log_walk import ResumePoint
from shardsrv.store.record import Present, Unreadable
from shardsrv.store.recovery import check_pairing, check_partition_directory
from shardsrv.store.segment import GroupIdentity as LogIdentity
from shardsrv.store.set_aside import HEALED_BY_PEERS, set_aside
from shardsrv.store.snapshot import SnapshotFile, read_snapshot, write_snapshot
from shardsrv.store.superblock import Superblock, state_of
from shardsrv.vsr.client_table import ClientTable
from shardsrv.vsr.effects import Committed
from shardsrv.vsr.policy import METADATA as METADATA_PLANE
from shardsrv.vsr.policy import PARTITION as PARTITION_PLANE
from shardsrv.vsr.policy import metadata_policy, partition_policy
from shardsrv.vsr.replica import GroupIdentity, Replica
from shardsrv.vsr.state import VsrState
from shardsrv.vsr.transfer import limits_of
from shardsrv.vsr.transfer_adapter import GroupTransfer
from shardsrv.vsr.trust import DiskFacts
from shardsrv.wire.constants import METADATA_GROUP

if TYPE_CHECKING:
    from shardsrv.sim.node import Node

FRAME_MAX = 2 * 1024
"""Bytes: states of a few KiB come in several chunks."""
SHARD = 1
"""The shard that owns the partitions of a simulated member."""


def key_of(identity: PartitionIdentity) -> GroupKey:
    """The name of a partition in tables and boot records."""
    return GroupKey(identity.stream, identity.topic, identity.partition, identity.created_revision)


def read_boot(node: Node) -> None:
    """What the boot records say, and the tables of groups: first of all, before anything is written."""
    disk, directory = node.disk, node.directory
    for path in (directory.shards, directory.metadata, directory.partitions):
        disk.mkdir(path)
    sync_names(disk, "", (directory.shards,))
    node.boot_facts, node.generation = merge_boot_files(
        file for _, file in sorted(read_boot_files(disk, directory.shards).items())
    )
    node.generation += 1
    node.nameless = bool(nameless(read_tables(disk, directory.shards)))


def open_metadata(node: Node) -> MetadataSimGroup:
    """Find the metadata of this member. Raises the typed refusals of `store` and `plane`: of a cluster only those that
    peers cannot heal."""
    node.superblock = Superblock(node.disk, node.directory.metadata)
    state = state_of(node.superblock.read(), (node.superblock.path(0), node.superblock.path(1)))
    try:
        return _open_metadata(node, state, node.wiped)
    except HEALED_METADATA as error:
        if node.options.replicas == 1 or state is None:
            raise
        node.world.set_aside(node, error)
        node.world.reached(f"metadata set aside {type(error).__name__}")
        node.world.trace.line(node.name, "set aside", METADATA, type(error).__name__)
        set_metadata_aside(node.disk, node.directory, node.superblock, state, error, _first_payload)
    state = state_of(node.superblock.read(), (node.superblock.path(0), node.superblock.path(1)))
    return _open_metadata(node, state, True)


def _open_metadata(node: Node, state: VsrState | None, lost: bool) -> MetadataSimGroup:
    disk, directory, options = node.disk, node.directory, node.options
    superblock = node.superblock
    found = read_snapshot(disk, directory.snapshot)
    saved = snapshot_state(found, directory.snapshot)
    checkpoint = None if state is None else (state.checkpoint_op, state.checkpoint_checksum)
    pair = None if saved is None or found is None else (saved.op, found.checksum)
    check_pairing(checkpoint, pair, directory.snapshot)
    if saved is None:
        found, saved = _first_state(node)
    first = state is None
    if state is None:
        assert found is not None
        state = VsrState(
            node.cluster,
            node.index,
            options.replicas,
            checkpoint_op=saved.op,
            checkpoint_checksum=found.checksum,
            incarnation=node.incarnation(),
        )
        superblock.write(state.encode())
        node.oracles.disks.begins(node)
    node.reconciled_through = node.recorded_through = state.reconciled_through
    plane = MetadataPlane(MetadataState(), TopicDefaults())
    plane.restore(saved)
    entries: list[Prepare] = []
    log, recovery, _ = open_behind_snapshot(
        disk,
        directory.metadata_log,
        LogIdentity(node.cluster, METADATA_GROUP, 0),
        segment_size=options.segment_size,
        resume=ResumePoint(saved.op, saved.checksum) if saved.op else None,
        facts=LogFacts(members=options.replicas) if lost else facts_of(node, METADATA),
        on_prepare=entries.append,
        preallocate=True,
        with_peers=options.replicas > 1,
    )
    replica = Replica.recover(
        GroupIdentity(node.cluster, METADATA_GROUP, 0, node.index, options.replicas),
        metadata_policy(options.pipeline, options.clients_table, timeouts=options.timeouts),
        plane,
        state,
        op=saved.op,
        checksum=saved.checksum,
        timestamp=saved.timestamp,
        table=ClientTable.restore(saved.client_table, options.clients_table),
        disk=DiskFacts(lost=True) if lost else disk_facts(node, METADATA, first, recovery),
        nonces=node.nonces(),
        transfer=transfer_of(node, METADATA),
    )
    _replay(node, METADATA, replica, plane, saved.op, entries)
    disk.fsync_dir(directory.metadata)
    _sync(log)
    plane.take_changes()
    node.boot_records[METADATA] = BootRecord.create(
        disk,
        directory.boot_record(0),
        node.boot_id,
        node.generation,
        [boot_entry(METADATA, replica, log)],
    )
    node.checkpoint_op = saved.op
    group = MetadataSimGroup(node, METADATA, replica, plane, log)
    group.transfer = MetadataTransferDriver(disk, directory.metadata, log, node.cluster)
    applied = replica.commit_min - saved.op
    group.applied_checksum = entries[applied - 1].checksum if applied else saved.checksum
    replica.log_dropped(log.first_op)
    return group


def open_tables(node: Node, owned: list[OwnedPartition]) -> list[PartitionSimGroup]:
    """Open the group table and every partition of ``owned``. Partitions in doubt are kept in ``node.doubtful``."""
    node.table = GroupTable.open(node.disk, node.directory.group_table(SHARD))
    opened = open_partitions(node, owned)
    entries = [boot_entry(group.key, group.replica, group.log) for group in opened]
    # What is known of a partition in doubt stays known.
    for identity in node.doubtful:
        facts = node.boot_facts.get(key_of(identity))
        if facts is not None:
            entries.append(facts.carried(node.boot_id))
    node.partition_boot = BootRecord.create(
        node.disk, node.directory.boot_record(SHARD), node.boot_id, node.generation, entries
    )
    return opened


def open_partitions(node: Node, owned: list[OwnedPartition]) -> list[PartitionSimGroup]:
    """Open or make partitions."""
    opened = []
    for partition in owned:
        try:
            opened.append(open_partition(node, partition))
        except Exception as error:
            node.doubt(partition.identity, error)
    return opened


def open_partition(node: Node, owned: OwnedPartition) -> PartitionSimGroup:
    """One partition. Raises the doubt that keeps it from being served."""
    key = key_of(owned.identity)
    path = node.directory.partition(*key)
    state = _record_state(node, key)
    lost = _lost(node, owned.identity, state, path)
    try:
        return _open(node, owned, state, lost)
    except HEALED_BY_PEERS as error:
        if node.options.replicas == 1:
            raise
        node.world.set_aside(node, error)
        node.world.reached(f"set aside {type(error).__name__}")
        return _begin_anew(node, owned, state)


def reopen_damaged(node: Node, owned: OwnedPartition) -> PartitionSimGroup:
    """A partition whose log was found damaged while it ran."""
    node.world.reached("set aside running")
    key = key_of(owned.identity)
    state = _record_state(node, key)
    return _begin_anew(node, owned, state)


def _begin_anew(node: Node, owned: OwnedPartition, state: VsrState | None) -> PartitionSimGroup:
    key = key_of(owned.identity)
    node.world.trace.line(node.name, "set aside", key)
    set_aside(node.disk, node.directory.partition(*key))
    return _open(node, owned, state, True)


def _open(node: Node, owned: OwnedPartition, state: VsrState | None, lost: bool) -> PartitionSimGroup:
    disk, options, identity = node.disk, node.options, owned.identity
    key = key_of(identity)
    path = node.directory.partition(*key)
    plane = PartitionPlane(
        identity.stream,
        identity.topic,
        identity.partition,
        dedup_size=options.dedup_ops,
        consumer_offsets_max=1000,
    )
    slots = Checkpoint(disk, path)
    finish_swap(disk, path, slots.write)
    saved = slots.read()
    op = checksum = timestamp = 0
    if isinstance(saved, Unreadable):
        raise checkpoint_fault(path, saved)
    if isinstance(saved, Present):
        op, checksum, timestamp = plane.restore(saved.payload)
    prepares: list[Prepare] = []
    log, recovery = PrepareLog.open(
        disk,
        path,
        LogIdentity(node.cluster, key.group, identity.created_revision),
        segment_size=options.segment_size,
        resume=ResumePoint(op, checksum, plane.next_offset, plane.purge_op, plane.purge_generation) if op else None,
        facts=LogFacts(members=options.replicas) if lost else facts_of(node, key),
        on_prepare=prepares.append,
        pool=node.pool,
        indexes=node.indexes,
        with_peers=options.replicas > 1,
    )
    if state is None and log.head_op:
        raise SuperblockUnreadable(node.table.path, f"the log of {identity} has entries and no record", None, None)
    replica = Replica.recover(
        GroupIdentity(node.cluster, key.group, identity.created_revision, node.index, options.replicas),
        partition_policy(options.pipeline, timeouts=options.timeouts),
        plane,
        state,
        op=op,
        checksum=checksum,
        timestamp=timestamp,
        disk=DiskFacts(lost=True) if lost else disk_facts(node, key, state is None, recovery, owned.created_view),
        nonces=node.nonces(),
        transfer=transfer_of(node, key),
    )
    _replay(node, key, replica, plane, op, prepares)
    # Before a record speaks of the directory, the directory is there for good.
    sync_names(disk, node.directory.partitions, (path,))
    _sync(log)
    group = PartitionSimGroup(node, identity, key, replica, plane, log, slots)
    group.transfer = PartitionTransferDriver(disk, path, log, slots)
    group.purge_wanted = owned.purge_generation
    group.applied_checksum = prepares[replica.commit_min - op - 1].checksum if replica.commit_min > op else checksum
    replica.log_dropped(log.first_op)
    return group


def _lost(node: Node, identity: PartitionIdentity, state: VsrState | None, path: str) -> bool:
    """Whether the directory of a partition is gone that this member once had: it then is no new voter. A single member
    cannot get it back: raises `PartitionLost`."""
    exists = node.disk.exists(path)
    if node.wiped and not exists:
        return True
    try:
        if state is not None and not exists:
            raise PartitionLost(path, identity.created_revision, node.reconciled_through)
        check_partition_directory(exists, identity.created_revision, node.reconciled_through, path)
    except PartitionLost:
        if node.options.replicas == 1:
            raise
        node.world.reached("lost partition")
        return True
    return False


def facts_of(node: Node, key: GroupKey) -> LogFacts:
    """What the boot record of the life before knows of a log."""
    boot = node.boot_facts.get(key)
    members = node.options.replicas
    return LogFacts(members=members) if boot is None else boot.log_facts(node.boot_id, members)


def transfer_of(node: Node, key: GroupKey) -> GroupTransfer | None:
    """The state transfer of a group; a single member has none."""
    if node.options.replicas == 1:
        return None
    limits = limits_of(METADATA_PLANE if key == METADATA else PARTITION_PLANE, retry_ticks=20, frame_max=FRAME_MAX)
    return GroupTransfer(limits, node.nonces().draw)


def disk_facts(node: Node, key: GroupKey, first: bool, recovery: LogRecovery, born_view: int = 0) -> DiskFacts:
    """What opening the log means for trust."""
    return member_facts.disk_facts(
        key, node.boot_facts.get(key), node.boot_id, recovery, first=first, born_view=born_view
    )


def _replay(node: Node, key: GroupKey, replica: Replica, plane: Any, op: int, entries: list[Prepare]) -> None:
    """Give the log to its replica; what that commits is shown to the oracles."""
    node.oracles.recovering(node, key, op, plane)
    for prepare in entries:
        for effect in replica.replay(prepare):
            if type(effect) is Committed:
                node.oracles.replayed(node, key, effect.prepare, effect.reply)


def _sync(log: PrepareLog) -> None:
    """What was found is synced before it is served."""
    if log.dirty:
        plan = log.sync_plan()
        plan.run()
        log.mark_synced(plan)


def _record_state(node: Node, key: GroupKey) -> VsrState | None:
    record, path = node.table.records().get(key), node.directory.partition(*key)
    return record_state(node.disk, record, path, nameless=node.nameless)


def _first_state(node: Node) -> tuple[SnapshotFile, snapshot_format.Snapshot]:
    """The state of a member that never ran: the root user, made durable before anything is served."""
    payload = _first_payload()
    checksum = write_snapshot(node.disk, node.directory.metadata, SNAPSHOT, payload)
    return SnapshotFile(payload, checksum), snapshot_format.decode(payload)


def _first_payload() -> bytes:
    state = MetadataState.initial("iggy", "hash of iggy")
    return snapshot_format.encode(state, op=0, checksum=0, timestamp=0, created_at=0, client_table=[])
