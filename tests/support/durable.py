"""One partition and the metadata group on a simulated disk, driven in the server's order by the store's own drivers.

What is tested is the store: the order of calls here is that of `shards/storage.py`, `shards/metadata_recovery.py` and
`shards/checkpointer.py`; bodies and states are small.
"""

from __future__ import annotations

import attrs

from shardsrv._core import Prepare
from shardsrv.plane.metadata import snapshot as snapshot_format
from shardsrv.plane.metadata.state import MetadataState
from shardsrv.plane.partition import checkpoint as checkpoint_format
from shardsrv.sim.disk import SimDisk
from shardsrv.store.boot import BootEntry, BootFacts, BootRecord, merge_boot_files, read_boot_files
from shardsrv.store.checkpoint import Checkpoint
from shardsrv.store.disk import sync_names
from shardsrv.store.group_key import METADATA, GroupKey
from shardsrv.store.groups import GroupTable
from shardsrv.store.incoming import finish_swap
from shardsrv.store.layout import SNAPSHOT, DataDirectory
from shardsrv.store.log import GroupIdentity, LogRecovery, PrepareLog
from shardsrv.store.log_files import list_segments
from shardsrv.store.log_opening import LogFacts
from shardsrv.store.log_reload import open_behind_snapshot
from shardsrv.store.log_walk import ResumePoint
from shardsrv.store.record import Present
from shardsrv.store.recovery import check_pairing
from shardsrv.store.snapshot import read_snapshot, write_snapshot
from shardsrv.store.superblock import Superblock, check_absence, state_of
from shardsrv.vsr.state import VsrState
from shardsrv.wire.constants import METADATA_GROUP
from tests.support.entries import CLUSTER
from tests.support.logs import GROUP, IDENTITY

KEY = GroupKey(0, 0, GROUP, IDENTITY.created_revision)
assert KEY.group == GROUP
DIRECTORY = DataDirectory("")
PARTITION = DIRECTORY.partition(*KEY)
FIRST_BOOT, LATER_BOOT = b"kernel boot one.", b"kernel boot two."
SHARD = 1


def read_facts(disk: SimDisk, key: GroupKey, boot_id: bytes, members: int = 1) -> tuple[LogFacts, int]:
    """What the boot records say of a log, and the highest generation."""
    found, generation = merge_boot_files(read_boot_files(disk, DIRECTORY.shards).values())
    facts: BootFacts | None = found.get(key)
    return (LogFacts(members=members) if facts is None else facts.log_facts(boot_id, members)), generation


def sync(log: PrepareLog) -> None:
    """One whole sync."""
    plan = log.sync_plan()
    try:
        plan.run()
    finally:
        log.mark_synced(plan)


@attrs.define(eq=False)
class Partition:
    """An open partition."""

    disk: SimDisk
    log: PrepareLog
    recovery: LogRecovery
    checkpoint: Checkpoint
    table: GroupTable
    boot: BootRecord
    state: VsrState
    checkpoint_op: int
    facts: LogFacts

    @classmethod
    def open(
        cls, disk: SimDisk, boot_id: bytes = FIRST_BOOT, *, segment_size: int = 1 << 20, members: int = 1
    ) -> Partition:
        """Open or make it. Raises whatever refuses."""
        disk.mkdir(DIRECTORY.shards)
        disk.mkdir(DIRECTORY.partitions)
        sync_names(disk, DIRECTORY.root, [DIRECTORY.shards, DIRECTORY.partitions])
        facts, generation = read_facts(disk, KEY, boot_id, members)
        table = GroupTable.open(disk, DIRECTORY.group_table(SHARD))
        record = table.records().get(KEY)
        assert record is None or isinstance(record.outcome, Present), record
        assert record is None or disk.exists(PARTITION), "the directory of a partition with a record is there"
        checkpoint = Checkpoint(disk, PARTITION)
        finish_swap(disk, PARTITION, checkpoint.write)
        saved = checkpoint.read()
        resume, checkpoint_op = None, 0
        if isinstance(saved, Present):
            covered = checkpoint_format.decode(saved.payload)
            checkpoint_op = covered.op
            resume = ResumePoint(covered.op, covered.checksum, covered.next_offset)
        log, recovery = PrepareLog.open(
            disk, PARTITION, IDENTITY, segment_size=segment_size, resume=resume, facts=facts
        )
        if log.dirty:
            sync(log)
        if record is None:
            assert log.head_op == 0, "the log of a partition without a record is empty"
            sync_names(disk, DIRECTORY.root, [PARTITION])
            state = VsrState(CLUSTER, 0, members)
            table.write({KEY: state.encode()})
        else:
            state = VsrState.decode(record.state)
        entry = BootEntry(KEY, log.synced_op, log.synced_checksum, log.head_op)
        boot = BootRecord.create(disk, DIRECTORY.boot_record(SHARD), boot_id, generation + 1, [entry])
        return cls(disk, log, recovery, checkpoint, table, boot, state, checkpoint_op, facts)

    def append(self, *prepares: Prepare) -> None:
        """Write entries with one flush."""
        for prepare in prepares:
            self.log.append(prepare)
        self.log.flush()

    def sync(self) -> None:
        """Sync, then move the frontier in the boot record."""
        sync(self.log)
        self.record()

    def record(self) -> None:
        """Move the frontier in the boot record."""
        self.boot.update(KEY, self.log.synced_op, self.log.synced_checksum, self.log.head_op)

    def save(self) -> int:
        """A checkpoint of everything synced; returns its op."""
        log = self.log
        payload = checkpoint_format.encode(
            checkpoint_format.PartitionCheckpoint(
                log.synced_op, log.synced_checksum, 1, log.next_offset, 0, 0, 0, 0, {1: 5}, {2: 6}, []
            )
        )
        self.checkpoint.write(payload)
        self.checkpoint_op = log.synced_op
        return log.synced_op

    def cut(self, op: int) -> None:
        """Remove the entries from ``op`` on: the frontier is lowered first."""
        before = self.log.read_prepare(op - 1)
        checksum = before.checksum if before is not None else 0
        if op <= self.log.synced_op:
            self.boot.lower(KEY, op - 1, checksum)
        self.log.truncate_from(op)

    def ops(self) -> dict[int, int]:
        """Identity of each entry that the log holds."""
        return {prepare.op: prepare.checksum for prepare in self.log.scan(1)}

    def close(self) -> None:
        """Release what is open, as the end of a process does."""
        self.disk.kill()


@attrs.define(eq=False)
class Metadata:
    """The metadata group of a node, open."""

    disk: SimDisk
    log: PrepareLog
    recovery: LogRecovery
    superblock: Superblock
    boot: BootRecord
    state: VsrState
    snapshot_op: int

    @classmethod
    def open(cls, disk: SimDisk, boot_id: bytes = FIRST_BOOT, *, segment_size: int = 1 << 20) -> Metadata:
        """Open or make it. Raises whatever refuses."""
        for path in (DIRECTORY.shards, DIRECTORY.metadata):
            disk.mkdir(path)
        sync_names(disk, DIRECTORY.root, [DIRECTORY.shards, DIRECTORY.metadata])
        facts, generation = read_facts(disk, METADATA, boot_id)
        superblock = Superblock(disk, DIRECTORY.metadata)
        state = state_of(superblock.read(), (superblock.path(0), superblock.path(1)))
        found = read_snapshot(disk, DIRECTORY.snapshot)
        saved = None if found is None else snapshot_format.decode(found.payload)
        pair = None if state is None else (state.checkpoint_op, state.checkpoint_checksum)
        check_pairing(pair, None if saved is None else (saved.op, found.checksum), DIRECTORY.snapshot)
        if state is None:
            segments = list_segments(disk, DIRECTORY.metadata_log)
            check_absence(superblock.path(0), 0 if saved is None else saved.op, bool(segments))
        if saved is None:
            payload = snapshot(0, 0)
            write_snapshot(disk, DIRECTORY.metadata, SNAPSHOT, payload)
            found = read_snapshot(disk, DIRECTORY.snapshot)
            saved = snapshot_format.decode(payload)
        if state is None:
            state = VsrState(CLUSTER, 0, 1, checkpoint_op=saved.op, checkpoint_checksum=found.checksum)
            superblock.write(state.encode())
        log, recovery, _ = open_behind_snapshot(
            disk,
            DIRECTORY.metadata_log,
            GroupIdentity(CLUSTER, METADATA_GROUP, 0),
            segment_size=segment_size,
            resume=ResumePoint(saved.op, saved.checksum) if saved.op else None,
            facts=facts,
        )
        sync_names(disk, DIRECTORY.root, [DIRECTORY.metadata_log])
        if log.dirty:
            sync(log)
        entry = BootEntry(METADATA, log.synced_op, log.synced_checksum, log.head_op)
        boot = BootRecord.create(disk, DIRECTORY.boot_record(0), boot_id, generation + 1, [entry])
        return cls(disk, log, recovery, superblock, boot, state, saved.op)

    def append(self, *prepares: Prepare) -> None:
        """Write and sync entries: metadata is acknowledged when synced."""
        for prepare in prepares:
            self.log.append(prepare)
        self.log.flush()
        sync(self.log)
        self.boot.update(METADATA, self.log.synced_op, self.log.synced_checksum, self.log.head_op)

    def save(self) -> None:
        """The three phases: snapshot, pair, drop of the log below."""
        op = self.log.head_op
        checksum = write_snapshot(self.disk, DIRECTORY.metadata, SNAPSHOT, snapshot(op, self.log.head_checksum))
        self.state = attrs.evolve(self.state, checkpoint_op=op, checkpoint_checksum=checksum)
        self.superblock.write(self.state.encode())
        self.log.drop_below(op)

    def ops(self) -> dict[int, int]:
        """Identity of each entry that the log holds."""
        return {prepare.op: prepare.checksum for prepare in self.log.scan(1)}


def snapshot(op: int, checksum: int) -> bytes:
    """A payload of the initial state at ``op``."""
    state = MetadataState.initial("root", "hash")
    return snapshot_format.encode(state, op=op, checksum=checksum, timestamp=op, created_at=0, client_table=[])
