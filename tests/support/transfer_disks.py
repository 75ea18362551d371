"""Drivers of state transfer over simulated disks: a server and a receiver of each plane, and the way between them
without machines or a link."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from shardsrv.plane.metadata import snapshot as snapshot_format
from shardsrv.plane.metadata.state import MetadataState
from shardsrv.plane.partition import checkpoint as checkpoint_format
from shardsrv.shards.metadata_transfer import MetadataTransferDriver
from shardsrv.shards.partition_transfer import PartitionTransferDriver
from shardsrv.shards.transfer_driver import TransferDriver
from shardsrv.sim.disk import SimDisk
from shardsrv.store.checkpoint import Checkpoint
from shardsrv.store.incoming import finish_swap
from shardsrv.store.layout import SNAPSHOT
from shardsrv.store.log import GroupIdentity, PrepareLog
from shardsrv.store.log_reload import open_behind_snapshot
from shardsrv.store.log_walk import ResumePoint
from shardsrv.store.recovery import check_pairing
from shardsrv.store.snapshot import read_snapshot, write_snapshot
from shardsrv.store.superblock import Superblock, state_of
from shardsrv.vsr import client_table_wire
from shardsrv.vsr.client_table import ClientTable
from shardsrv.vsr.transfer_effects import CheckStaged, LoadOffer, OpenStaging, ReadChunk, StageChunk
from shardsrv.vsr.transfer_offer import Offer
from shardsrv.wire.constants import METADATA_GROUP
from tests.support.durable import DIRECTORY, LATER_BOOT, METADATA, PARTITION, Metadata, Partition, read_facts
from tests.support.entries import CLUSTER
from tests.support.logs import Chain
from tests.support.transfers import table_of

PIECE = 700
"""Bytes of a chunk: small, so that artifacts take several."""


def do(driver: TransferDriver, effect: Any) -> Any:
    """Carry out one effect at once."""
    job = driver.start(effect)
    return None if job is None else job()


def fail_nth(disk: SimDisk, number: int, error: OSError) -> Callable[[], bool]:
    """The ``number``-th call that changes or syncs anything fails; the returned function tells whether it came to
    that."""
    left = [number]

    def on_call(call: Any) -> None:
        if call.name in ("open_read", "preadv", "listdir"):
            return
        left[0] -= 1
        if left[0] == 0:
            raise error

    disk.on_call = on_call
    return lambda: left[0] <= 0


def offer_of(driver: TransferDriver, commit_op: int, captured: Any) -> Offer:
    loaded = do(driver, LoadOffer(1, commit_op, captured))
    if loaded.fault is not None:
        raise loaded.fault
    return loaded.offer


def fetch(server: TransferDriver, receiver: TransferDriver, offer: Offer) -> Any:
    """Pull what is missing, last piece first, and have it checked; returns the `StagedChecked`."""
    artifacts = tuple(artifact for artifact, _ in offer.artifacts)
    opened = do(receiver, OpenStaging(1, artifacts))
    assert opened.fault is None, opened.fault
    for index, artifact in enumerate(artifacts):
        for offset in reversed(range(opened.held[index], artifact.length, PIECE)):
            length = min(PIECE, artifact.length - offset)
            read = do(server, ReadChunk(2, offer, index, offset, length))
            assert read.fault is None and len(read.data) == length
            assert do(receiver, StageChunk(3, index, offset, bytes(read.data))).fault is None
    return do(receiver, CheckStaged(4, artifacts, 16))


# --- metadata ---------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class MetadataSide:
    """The metadata group of one node and its transfer driver."""

    disk: SimDisk
    store: Metadata
    driver: MetadataTransferDriver
    chain: Chain

    @classmethod
    def make(cls, entries: int, *, segment_size: int = 700) -> MetadataSide:
        disk, chain = SimDisk(), Chain()
        store = Metadata.open(disk, segment_size=segment_size)
        for _ in range(entries):
            store.append(chain.other(100))
        driver = MetadataTransferDriver(disk, DIRECTORY.metadata, store.log, CLUSTER)
        return cls(disk, store, driver, chain)

    def write_snapshot(self, op: int) -> bytes:
        """A snapshot with clients 7 and 9 in it, at ``op`` of the own log."""
        prepare = self.store.log.read_prepare(op)
        assert prepare is not None
        state = MetadataState.initial("root", "hash")
        payload = snapshot_format.encode(
            state,
            op=op,
            checksum=prepare.checksum,
            timestamp=op,
            created_at=5,
            client_table=table_of({7: 1, 9: 2}).snapshot(),
        )
        write_snapshot(self.disk, DIRECTORY.metadata, SNAPSHOT, payload)
        return payload

    def offer(self) -> Offer:
        op = self.store.log.head_op
        return offer_of(self.driver, op, client_table_wire.view_of(table_of({7: 1, 9: 2, 11: op}), op))


def reopen_metadata(disk: SimDisk) -> tuple[int, PrepareLog, bool]:
    """What a start finds: (op of the snapshot, log, whether the log was begun anew). Raises what refuses."""
    superblock = Superblock(disk, DIRECTORY.metadata)
    state = state_of(superblock.read(), (superblock.path(0), superblock.path(1)))
    found = read_snapshot(disk, DIRECTORY.snapshot)
    assert found is not None and state is not None
    saved = snapshot_format.decode(found.payload)
    ClientTable.restore(saved.client_table, 16)
    check_pairing((state.checkpoint_op, state.checkpoint_checksum), (saved.op, found.checksum), DIRECTORY.snapshot)
    facts, _ = read_facts(disk, METADATA, LATER_BOOT, 3)
    log, _, anew = open_behind_snapshot(
        disk,
        DIRECTORY.metadata_log,
        GroupIdentity(CLUSTER, METADATA_GROUP, 0),
        segment_size=700,
        resume=ResumePoint(saved.op, saved.checksum) if saved.op else None,
        facts=facts,
    )
    return saved.op, log, anew


# --- partitions -------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class PartitionSide:
    """One partition of one node and its transfer driver."""

    disk: SimDisk
    store: Partition
    driver: PartitionTransferDriver
    chain: Chain

    @classmethod
    def make(cls, entries: int, *, segment_size: int = 1500) -> PartitionSide:
        disk, chain = SimDisk(), Chain()
        store = Partition.open(disk, segment_size=segment_size)
        for number in range(entries):
            store.append(chain.send(2, 64) if number % 3 else chain.other(40))
        store.sync()
        driver = PartitionTransferDriver(disk, PARTITION, store.log, store.checkpoint)
        return cls(disk, store, driver, chain)

    def captured(self, op: int, purge_generation: int = 0) -> bytes:
        """A checkpoint payload at ``op``."""
        prepare = self.store.log.read_prepare(op)
        assert prepare is not None
        sends = [entry for entry in self.store.log.scan(1) if entry.op <= op and entry.operation == 160]
        following = 2 * len(sends) if self.store.log.first_op == 1 else self.store.log.next_offset
        return checkpoint_format.encode(
            checkpoint_format.PartitionCheckpoint(
                op, prepare.checksum, 7, following, 0, 99, purge_generation, 0, {1: 1}, {2: 1}, []
            )
        )

    def offer(self, op: int | None = None) -> Offer:
        op = self.store.log.head_op if op is None else op
        return offer_of(self.driver, op, self.captured(op))


def reopen_partition(disk: SimDisk) -> tuple[Partition, bool]:
    """What a start finds: (the partition, whether a swap was brought to its end). Raises what refuses."""
    swapped = finish_swap(disk, PARTITION, Checkpoint(disk, PARTITION).write)
    return Partition.open(disk, LATER_BOOT, segment_size=1500), swapped
