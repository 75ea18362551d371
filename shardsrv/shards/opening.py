"""How one partition is opened or made: its record, its checkpoint, its log, then its replica.

Invariants: a partition in doubt (unreadable record, lost directory on a node alone, damaged log) is left as it lies and
the doubt is raised; in a cluster what the log was found to hold comes before the replica, which asks how far it may be
trusted; a directory that this node once had and has no more makes no new voter.
"""

from __future__ import annotations

from typing import Any, Protocol

import attrs
import structlog

from shardsrv._core import Prepare
from shardsrv.config import Config
from shardsrv.plane.metadata.plane import OwnedPartition
from shardsrv.plane.metadata.state import PartitionIdentity
from shardsrv.plane.partition.plane import PartitionPlane
from shardsrv.shards.member_facts import disk_facts, new_incarnation, record_state, timeouts_of
from shardsrv.shards.partition_group import PartitionGroup, PartitionHost
from shardsrv.shards.partition_transfer import PartitionTransferDriver
from shardsrv.shards.spawn import ShardContext
from shardsrv.store.checkpoint import Checkpoint, checkpoint_fault
from shardsrv.store.descriptors import DescriptorPool
from shardsrv.store.disk import Disk
from shardsrv.store.faults import PartitionLost, SuperblockUnreadable
from shardsrv.store.group_key import GroupKey
from shardsrv.store.groups import GroupTable
from shardsrv.store.incoming import finish_swap
from shardsrv.store.index import IndexCache
from shardsrv.store.layout import DataDirectory
from shardsrv.store.log import PrepareLog
from shardsrv.store.log_opening import LogFacts
from shardsrv.store.log_walk import ResumePoint
from shardsrv.store.record import Present, Unreadable
from shardsrv.store.segment import GroupIdentity as LogIdentity
from shardsrv.store.set_aside import HEALED_BY_PEERS, set_aside
from shardsrv.vsr.nonce import Nonces
from shardsrv.vsr.policy import PARTITION, partition_policy
from shardsrv.vsr.replica import GroupIdentity, Replica
from shardsrv.vsr.state import VsrState
from shardsrv.vsr.transfer import limits_of
from shardsrv.vsr.transfer_adapter import GroupTransfer
from shardsrv.vsr.trust import DiskFacts


class OpeningHost(PartitionHost, Protocol):
    """What opening needs of its shard."""

    context: ShardContext
    config: Config
    cluster: bytes
    disk: Disk
    directory: DataDirectory
    log: structlog.stdlib.BoundLogger


@attrs.define(slots=True, eq=False)
class Opened:
    """A partition that was opened, and the effects with which its replica starts."""

    group: PartitionGroup
    effects: list[Any]


def key_of(identity: PartitionIdentity) -> GroupKey:
    """The name of a partition in tables and boot records."""
    return GroupKey(identity.stream, identity.topic, identity.partition, identity.created_revision)


class PartitionOpener:
    """See the module. ``table`` is the group table of the shard."""

    def __init__(self, host: OpeningHost, table: GroupTable, reconciled_through: int) -> None:
        """``reconciled_through``: the metadata op up to which every partition had its directory here before."""
        self._host = host
        self.table = table
        self.reconciled_through = reconciled_through
        self._pool = DescriptorPool(host.disk)
        self._indexes = IndexCache()

    def open(self, owned: OwnedPartition) -> Opened:
        """Open or make one partition. Raises the doubt that keeps it from being served."""
        host, key = self._host, key_of(owned.identity)
        path = host.directory.partition(*key)
        state = record_state(host.disk, self.table.records().get(key), path, nameless=host.context.prepared.nameless)
        try:
            return self._open(owned, state, self._lost(owned.identity, state, path))
        except HEALED_BY_PEERS as error:
            if host.context.nodes == 1:
                raise
            aside = set_aside(host.disk, path)
            host.log.error(
                "a damaged partition is set aside and fetched from the other nodes",
                partition=str(owned.identity),
                kept_as=aside,
                error=str(error),
            )
            return self._open(owned, state, True)

    def _open(self, owned: OwnedPartition, state: VsrState | None, lost: bool) -> Opened:
        host, identity = self._host, owned.identity
        key = key_of(identity)
        path = host.directory.partition(*key)
        config = host.config.partition
        plane = PartitionPlane(
            identity.stream,
            identity.topic,
            identity.partition,
            dedup_size=config.deduplication_window_ops,
            consumer_offsets_max=config.consumer_offsets_max,
        )
        slots = Checkpoint(host.disk, path)
        finish_swap(host.disk, path, slots.write)
        saved = slots.read()
        op = checksum = timestamp = 0
        if isinstance(saved, Unreadable):
            raise checkpoint_fault(path, saved)
        if isinstance(saved, Present):
            op, checksum, timestamp = plane.restore(saved.payload)
        nodes = host.context.nodes
        boot = host.context.prepared.boot.get(key)
        facts = LogFacts(members=nodes)
        if boot is not None and not lost:
            facts = boot.log_facts(host.context.boot.kernel_boot_id, nodes)
        point = (op, checksum, timestamp)
        alone = self._replica(owned, plane, state, point) if nodes == 1 else None
        entries: list[Prepare] = []
        log, recovery = PrepareLog.open(
            host.disk,
            path,
            LogIdentity(host.cluster, key.group, identity.created_revision),
            segment_size=owned.settings.segment_size,
            resume=ResumePoint(op, checksum, plane.next_offset, plane.purge_op, plane.purge_generation) if op else None,
            facts=facts,
            on_prepare=entries.append if alone is None else alone.replay,
            preallocate=owned.settings.preallocate_segments,
            validate=host.config.system.partition.validate_checksum,
            pool=self._pool,
            indexes=self._indexes,
            with_peers=nodes > 1,
        )
        if state is None and log.head_op:
            raise SuperblockUnreadable(self.table.path, f"the log of {identity} has entries and no record", None, None)
        if recovery.cut_op is not None:
            host.log.warning(
                "log cut",
                partition=str(identity),
                op=recovery.cut_op,
                bytes=recovery.cut_bytes,
                why=recovery.row,
                detail=recovery.detail,
            )
        if alone is None:
            boot_id = host.context.boot.kernel_boot_id
            trust = disk_facts(key, boot, boot_id, recovery, first=state is None, born_view=owned.created_view)
            replica = self._replica(owned, plane, state, point, DiskFacts(lost=True) if lost else trust)
            for prepare in entries:
                replica.replay(prepare)
        else:
            replica = alone
        if log.dirty:
            plan = log.sync_plan()
            plan.run()
            log.mark_synced(plan)
        group = PartitionGroup(
            host,
            identity,
            replica,
            plane,
            log,
            counter_slot=owned.slot,
            settings=owned.settings,
            checkpoint=slots,
        )
        if alone is None:
            group.transfer = PartitionTransferDriver(host.disk, path, log, slots)
            group.purge_wanted = owned.purge_generation
            group.purging = int(plane.purge_generation < owned.purge_generation)
            applied = replica.commit_min - op
            group.applied_checksum = entries[applied - 1].checksum if applied else checksum
            replica.log_dropped(log.first_op)
        return Opened(group, replica.start(new_incarnation()))

    def _replica(
        self,
        owned: OwnedPartition,
        plane: PartitionPlane,
        state: VsrState | None,
        point: tuple[int, int, int],
        trust: DiskFacts | None = None,
    ) -> Replica:
        """The replica at ``point`` (op, identity, time) of its checkpoint; ``trust`` in a cluster."""
        host, identity = self._host, owned.identity
        nodes, cluster, nonces = host.context.nodes, host.config.cluster, Nonces(new_incarnation())
        transfer = None
        if nodes > 1:
            limits = limits_of(PARTITION, frame_max=host.config.message_bus.max_message_size)
            transfer = GroupTransfer(limits, nonces.draw)
        return Replica.recover(
            GroupIdentity(host.cluster, identity.group, identity.created_revision, host.context.node, nodes),
            partition_policy(
                host.config.partition.prepare_queue_depth,
                timeouts_of(cluster) if nodes > 1 else None,
                cluster.repair_chunk_max,
            ),
            plane,
            state,
            op=point[0],
            checksum=point[1],
            timestamp=point[2],
            disk=trust,
            nonces=nonces,
            transfer=transfer,
        )

    def _lost(self, identity: PartitionIdentity, state: VsrState | None, path: str) -> bool:
        """Whether the directory of a partition is gone that this node once had: it then is no new voter, and gets its
        data from the others. A node alone cannot: raises `PartitionLost`."""
        exists = self._host.disk.exists(path)
        if self._host.context.nodes == 1:
            if state is not None and not exists:
                raise PartitionLost(path, identity.created_revision, 0)
            return False
        return not exists and (state is not None or identity.created_revision <= self.reconciled_through)
