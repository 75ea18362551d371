"""How shard 0 finds its state at start: verify, then decode, then believe (S0-45).

1. superblock: Empty, Present or Unreadable; 2. snapshot: its trailer; 3. the pair of both (`store.recovery.PAIRING`);
  4. the state in the snapshot; 5. the log above it, replayed
through the function that commits live entries. A directory without any of these is a first start: the initial state,
which holds the root user,
is made durable as a snapshot of op 0 before anything is served, since it is in no log.
"""

import os
import time
from typing import Any, Protocol

import attrs
import structlog
import trio

from shardsrv._core import Prepare, xxh3
from shardsrv.config import Config, root_credentials
from shardsrv.errors import ConfigurationError, OurFault
from shardsrv.plane.metadata import snapshot as snapshot_format
from shardsrv.plane.metadata.plane import MetadataPlane
from shardsrv.plane.metadata.state import MetadataState
from shardsrv.shards.genesis import first_payload
from shardsrv.shards.member_facts import boot_entry, disk_facts, new_incarnation, snapshot_state, timeouts_of
from shardsrv.shards.metadata_aside import HEALED_BY_PEERS, set_metadata_aside
from shardsrv.shards.passwords import Passwords
from shardsrv.shards.spawn import ShardContext
from shardsrv.shards.topic_defaults import topic_defaults
from shardsrv.store.boot import BootRecord
from shardsrv.store.disk import Disk, sync_names
from shardsrv.store.group_key import METADATA
from shardsrv.store.layout import SNAPSHOT, DataDirectory
from shardsrv.store.log import PrepareLog
from shardsrv.store.log_files import list_segments
from shardsrv.store.log_opening import LogFacts, LogRecovery
from shardsrv.store.log_reload import open_behind_snapshot
from shardsrv.store.log_walk import ResumePoint
from shardsrv.store.recovery import check_pairing
from shardsrv.store.segment import GroupIdentity as LogIdentity
from shardsrv.store.snapshot import SnapshotFile, read_snapshot, write_snapshot
from shardsrv.store.superblock import Superblock, check_absence, state_of
from shardsrv.vsr.client_table import ClientTable
from shardsrv.vsr.effects import Committed
from shardsrv.vsr.nonce import Nonces
from shardsrv.vsr.policy import METADATA as PLANE
from shardsrv.vsr.policy import metadata_policy
from shardsrv.vsr.replica import GroupIdentity, Replica
from shardsrv.vsr.state import VsrState
from shardsrv.vsr.transfer import limits_of
from shardsrv.vsr.transfer_adapter import GroupTransfer
from shardsrv.vsr.trust import DiskFacts
from shardsrv.wire.constants import METADATA_GROUP

SEGMENT_SIZE = 16 * 1024 * 1024
"""Largest metadata segment, bytes; preallocated, so that the log can go on when the disk is full. A checkpoint lets
whole segments go, so none is larger than the log between two of them."""


class RecoveryHost(Protocol):
    """What recovery needs of shard 0."""

    context: ShardContext
    config: Config
    cluster: bytes
    disk: Disk
    directory: DataDirectory
    log: structlog.stdlib.BoundLogger


@attrs.frozen
class RecoveredMetadata:
    """What was found: ready to be driven."""

    plane: MetadataPlane
    replica: Replica
    effects: list[Any]
    log: PrepareLog
    boot: BootRecord
    superblock: Superblock
    checkpoint_op: int
    recovery: LogRecovery
    applied_checksum: int
    """Identity of the last entry that is applied."""
    reconciled_through: int
    """The metadata op up to which every partition had its directory on this node."""


async def recover_metadata(host: RecoveryHost) -> RecoveredMetadata:
    """Find the metadata of this node. Raises the typed refusals of `store.recovery`, `store.log` and
    `plane.metadata.snapshot`."""
    return await trio.to_thread.run_sync(_recover, host)


def _recover(host: RecoveryHost) -> RecoveredMetadata:
    disk, directory = host.disk, host.directory
    disk.mkdir(directory.metadata)
    superblock = Superblock(disk, directory.metadata)
    paths = superblock.path(0), superblock.path(1)
    state = state_of(superblock.read(), paths)
    try:
        return _recover_from(host, superblock, state, host.context.prepared.forgotten)
    except HEALED_BY_PEERS as error:
        if host.context.nodes == 1 or state is None:
            raise
        set_metadata_aside(disk, directory, superblock, state, error, lambda: _first_payload(host))
        host.log.error("damaged metadata is set aside and fetched from the other nodes", error=str(error))
    return _recover_from(host, superblock, state_of(superblock.read(), paths), True)


def _first_payload(host: RecoveryHost) -> bytes:
    """The state of op 0 of this cluster. Raises `ConfigurationError` when the environment names no root user, or
    another one."""
    genesis = host.context.prepared.genesis
    assert genesis is not None, "only a node of a cluster begins again"
    passwords = Passwords.of(host.context.boot.affinity, host.config.users)
    payload = first_payload(host.config, os.environ, passwords)
    if genesis.digest != xxh3(payload):
        reason = "it is not the root user that this cluster began with, which is needed to begin the metadata anew"
        raise ConfigurationError("IGGY_ROOT_USERNAME and IGGY_ROOT_PASSWORD", None, reason)
    return payload


def _recover_from(host: RecoveryHost, superblock: Superblock, state: VsrState | None, lost: bool) -> RecoveredMetadata:
    """``lost``: what this member acknowledged is gone, whatever its log shows."""
    disk, directory = host.disk, host.directory
    found = read_snapshot(disk, directory.snapshot)
    saved = snapshot_state(found, directory.snapshot)
    checkpoint = None if state is None else (state.checkpoint_op, state.checkpoint_checksum)
    check_pairing(
        checkpoint, None if saved is None or found is None else (saved.op, found.checksum), directory.snapshot
    )
    if state is None:
        segments = list_segments(disk, directory.metadata_log)
        check_absence(superblock.path(0), saved.op if saved is not None else 0, bool(segments))
    if saved is None:
        found, saved = _first_state(host)
    first = state is None
    if state is None:
        assert found is not None
        state = VsrState(
            host.cluster,
            host.context.node,
            host.context.nodes,
            checkpoint_op=saved.op,
            checkpoint_checksum=found.checksum,
            incarnation=new_incarnation(),
        )
        superblock.write(state.encode())
    plane = MetadataPlane(MetadataState(), topic_defaults(host.config))
    plane.restore(saved)
    boot = host.context.prepared.boot.get(METADATA)
    nodes = host.context.nodes
    facts = LogFacts(members=nodes)
    if boot is not None and not lost:
        facts = boot.log_facts(host.context.boot.kernel_boot_id, nodes)
    alone = _replica(host, plane, state, saved) if nodes == 1 else None
    entries: list[Prepare] = []
    log, recovery, anew = open_behind_snapshot(
        disk,
        directory.metadata_log,
        LogIdentity(host.cluster, METADATA_GROUP, 0),
        segment_size=min(SEGMENT_SIZE, host.config.metadata.checkpoint.bytes),
        resume=ResumePoint(saved.op, saved.checksum) if saved.op else None,
        facts=facts,
        on_prepare=entries.append if alone is None else alone.replay,
        preallocate=True,
        with_peers=nodes > 1,
    )
    if alone is None:
        # Trust is a matter of what the log has been found to hold.
        trust = disk_facts(METADATA, boot, host.context.boot.kernel_boot_id, recovery, first=first)
        if lost:
            trust = DiskFacts(lost=True)
        replica = _replica(host, plane, state, saved, trust)
        for prepare in entries:
            replica.replay(prepare)
    else:
        replica = alone
    if anew:
        host.log.warning("metadata log ended below the snapshot and was begun anew", snapshot_op=saved.op)
    if recovery.cut_op is not None:
        host.log.warning(
            "metadata log cut", op=recovery.cut_op, bytes=recovery.cut_bytes, why=recovery.row, detail=recovery.detail
        )
    sync_names(disk, directory.root, (directory.metadata_log,))
    if log.dirty:
        plan = log.sync_plan()
        plan.run()
        log.mark_synced(plan)
    plane.take_changes()
    record = BootRecord.create(
        disk,
        directory.boot_record(0),
        host.context.boot.kernel_boot_id,
        host.context.prepared.generation,
        [boot_entry(METADATA, replica, log)],
    )
    # What starting commits is in the state that the other shards are handed.
    effects = [effect for effect in replica.start(new_incarnation()) if type(effect) is not Committed]
    plane.take_changes()
    replica.log_dropped(log.first_op)
    applied = replica.commit_min - saved.op
    checksum = log.head_checksum if nodes == 1 else entries[applied - 1].checksum if applied else saved.checksum
    return RecoveredMetadata(
        plane, replica, effects, log, record, superblock, saved.op, recovery, checksum, state.reconciled_through
    )


def _replica(
    host: RecoveryHost,
    plane: MetadataPlane,
    state: VsrState,
    saved: snapshot_format.Snapshot,
    trust: DiskFacts | None = None,
) -> Replica:
    """The replica at the snapshot; ``trust`` in a cluster."""
    settings, cluster, nodes = host.config.metadata, host.config.cluster, host.context.nodes
    nonces = Nonces(new_incarnation())
    transfer = None
    if nodes > 1:
        limits = limits_of(PLANE, frame_max=host.config.message_bus.max_message_size)
        transfer = GroupTransfer(limits, nonces.draw)
    return Replica.recover(
        GroupIdentity(host.cluster, METADATA_GROUP, 0, host.context.node, nodes),
        metadata_policy(
            settings.prepare_queue_depth,
            settings.clients_table_max,
            timeouts_of(cluster) if nodes > 1 else None,
            cluster.repair_chunk_max,
        ),
        plane,
        state,
        op=saved.op,
        checksum=saved.checksum,
        timestamp=saved.timestamp,
        table=ClientTable.restore(saved.client_table, settings.clients_table_max),
        disk=trust,
        nonces=nonces,
        transfer=transfer,
    )


def _first_state(host: RecoveryHost) -> tuple[SnapshotFile, snapshot_format.Snapshot]:
    """The state of a node that never ran: the root user, made durable before anything is served."""
    genesis = host.context.prepared.genesis
    if genesis is not None:
        if genesis.payload is None:
            raise OurFault("the beginning of the cluster was not prepared")
        checksum = write_snapshot(host.disk, host.directory.metadata, SNAPSHOT, genesis.payload)
        return SnapshotFile(genesis.payload, checksum), snapshot_format.decode(genesis.payload)
    credentials = root_credentials(os.environ)
    if credentials.generated:
        host.log.warning(f"Generated root user password: {credentials.password}")
    passwords = Passwords.of(host.context.boot.affinity, host.config.users)
    state = MetadataState.initial(credentials.username, passwords.hash(credentials.password))
    payload = snapshot_format.encode(
        state, op=0, checksum=0, timestamp=0, created_at=time.time_ns() // 1000, client_table=[]
    )
    checksum = write_snapshot(host.disk, host.directory.metadata, SNAPSHOT, payload)
    return SnapshotFile(payload, checksum), snapshot_format.decode(payload)
