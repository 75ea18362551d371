"""Rot in the smallest record of each durable class: every bit flipped, every length, blocks zeroed, stale and swapped.

Each of them is told by type, and healed, doubted or refused as docs/recovery.md says; nothing wrong is ever served.
Without ``--long`` every seventh bit is looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from shardsrv.errors import Damaged, Unreadable, UnsupportedVersion
from shardsrv.sim.disk import BLOCK, SimDisk
from shardsrv.store.boot import BootEntry, BootRecord, merge_boot_files, read_boot_files
from shardsrv.store.checkpoint import Checkpoint
from shardsrv.store.faults import (
    CheckpointAheadOfSnapshot,
    CheckpointChecksumMismatch,
    SuperblockUndecodable,
    SuperblockUnreadable,
)
from shardsrv.store.group_key import GroupKey
from shardsrv.store.groups import GroupTable, merge_tables, nameless, read_tables
from shardsrv.store.outcomes import BIT_ROT
from shardsrv.store.record import Present
from shardsrv.store.record import Unreadable as UnreadableRecord
from shardsrv.store.snapshot import read_snapshot, write_snapshot
from shardsrv.store.superblock import Superblock
from tests.support.durable import DIRECTORY, FIRST_BOOT, KEY, LATER_BOOT, Metadata, snapshot
from tests.support.logs import Chain

pytestmark = pytest.mark.usefixtures("small_tables")


def flips(disk: SimDisk, path: str, step: int, start: int = 0, end: int | None = None) -> Iterator[int]:
    """Each bit of bytes ``start``..``end`` flipped in place while the caller looks, every ``step``-th of them."""
    for bit in range(start * 8, (disk.size(path) if end is None else end) * 8, step):
        disk.flip(path, bit)
        yield bit
        disk.flip(path, bit)


def cuts(disk: SimDisk, path: str, step: int = 1) -> Iterator[int]:
    """The file cut to every shorter length, whole again afterwards."""
    data = disk.read(path)
    for length in range(0, len(data), step):
        disk.put(path, data[:length])
        yield length
    disk.put(path, data)


def blocks(disk: SimDisk, path: str) -> Iterator[tuple[int, int]]:
    """Each 4 KiB block zeroed, then each pair swapped: (block, other or -1)."""
    data = disk.read(path)
    count = -(-len(data) // BLOCK)
    parts = [data[at * BLOCK : (at + 1) * BLOCK] for at in range(count)]
    for one in range(count):
        disk.put(path, b"".join(bytes(len(part)) if at == one else part for at, part in enumerate(parts)))
        yield one, -1
        for other in range(one + 1, count):
            swapped = list(parts)
            swapped[one], swapped[other] = parts[other], parts[one]
            disk.put(path, b"".join(swapped))
            yield one, other
    disk.put(path, data)


@pytest.fixture
def step(long: bool) -> int:
    return 1 if long else 7


# --- superblock and snapshot -----------------------------------------------------------------------------------------


def metadata_disk() -> SimDisk:
    """Metadata with a snapshot of op 4, superblock records in both slots, and a log."""
    disk = SimDisk()
    metadata = Metadata.open(disk, segment_size=600)
    chain = Chain()
    for _ in range(4):
        metadata.append(chain.other(60))
    metadata.save()
    metadata.append(chain.other(60))
    disk.kill()
    return disk


def start(disk: SimDisk, boot_id: bytes = LATER_BOOT) -> Metadata:
    """A start that leaves ``disk`` as it is."""
    return Metadata.open(disk.copy(), boot_id, segment_size=600)


@pytest.mark.parametrize("slot", [0, 1])
def test_superblock_slot(slot: int, step: int) -> None:
    disk = metadata_disk()
    path = f"{DIRECTORY.metadata}/superblock.{'ab'[slot]}"
    wanted = start(disk)
    assert wanted.snapshot_op == 4 and wanted.state.checkpoint_op == 4

    def refuse() -> None:
        with pytest.raises(SuperblockUnreadable) as caught:
            start(disk)
        assert path in str(caught.value)

    for _ in flips(disk, path, step):
        refuse()
    for _ in cuts(disk, path):
        refuse()
    for _ in blocks(disk, path):
        refuse()
    disk.put(path, disk.read(f"{DIRECTORY.metadata}/superblock.{'ba'[slot]}"))
    with pytest.raises(SuperblockUnreadable, match="follow each other"):
        start(disk)
    disk.unlink(path)
    refuse()


def test_swapped_superblock_slots_are_told(step: int) -> None:
    disk = metadata_disk()
    a, b = (f"{DIRECTORY.metadata}/superblock.{name}" for name in "ab")
    first, second = disk.read(a), disk.read(b)
    disk.put(a, second)
    disk.put(b, first)
    with pytest.raises(SuperblockUnreadable, match="follow each other"):
        start(disk)


def test_a_superblock_that_is_gone_beside_a_log_is_no_first_start() -> None:
    disk = metadata_disk()
    for name in "ab":
        disk.unlink(f"{DIRECTORY.metadata}/superblock.{name}")
    with pytest.raises(SuperblockUnreadable, match="snapshot of op 4"):
        start(disk)
    disk.unlink(DIRECTORY.snapshot)
    with pytest.raises(SuperblockUnreadable, match="missing beside a log"):
        start(disk)


def test_a_clean_record_that_is_no_state() -> None:
    disk = metadata_disk()
    Superblock(disk, DIRECTORY.metadata).write(b"no state")
    with pytest.raises(SuperblockUndecodable):
        start(disk)


def test_a_superblock_of_another_version_is_named() -> None:
    disk = metadata_disk()
    disk.damage(f"{DIRECTORY.metadata}/superblock.a", 4, b"\x07")
    with pytest.raises(SuperblockUnreadable) as caught:
        start(disk)
    assert caught.value.version == 7


def test_snapshot(step: int) -> None:
    disk = metadata_disk()
    path = DIRECTORY.snapshot
    whole = disk.read(path)

    def refuse() -> None:
        with pytest.raises(Damaged) as caught:
            start(disk)
        assert caught.value.path == path

    for _ in flips(disk, path, step):
        refuse()
    for _ in cuts(disk, path):
        refuse()
    for _ in blocks(disk, path):
        refuse()
    write_snapshot(disk, DIRECTORY.metadata, "snapshot.bin", snapshot(3, 1))
    with pytest.raises(CheckpointAheadOfSnapshot):
        start(disk)
    write_snapshot(disk, DIRECTORY.metadata, "snapshot.bin", snapshot(4, 1))
    with pytest.raises(CheckpointChecksumMismatch):
        start(disk)
    disk.unlink(path)
    with pytest.raises(CheckpointAheadOfSnapshot):
        start(disk)
    disk.put(path, whole)
    assert start(disk).snapshot_op == 4


def test_blocks_of_a_large_snapshot() -> None:
    disk = SimDisk()
    disk.mkdir("/d")
    payload = b"".join(number.to_bytes(4, "little") for number in range(5000))
    write_snapshot(disk, "/d", "snapshot.bin", payload)
    seen = 0
    for _ in blocks(disk, "/d/snapshot.bin"):
        seen += 1
        with pytest.raises(Damaged):
            read_snapshot(disk, "/d/snapshot.bin")
    assert seen == 15


# --- group table -----------------------------------------------------------------------------------------------------

OTHER = GroupKey(7, 7, 7, 7)
TABLE = DIRECTORY.group_table(1)


def table_disk(records: int = 2) -> SimDisk:
    """A table of two groups with ``records`` records each."""
    disk = SimDisk()
    disk.mkdir(DIRECTORY.shards)
    table = GroupTable.open(disk, TABLE)
    for number in range(records):
        table.write({KEY: bytes([1, number]) * 45, OTHER: bytes([2, number]) * 45})
    table.close()
    return disk


def outcomes(disk: SimDisk) -> tuple[dict[GroupKey, bytes], bool]:
    """(state of each group that can be read, whether any other is in doubt). Raises when the table cannot be read."""
    tables = read_tables(disk, DIRECTORY.shards)
    merged = merge_tables(tables)
    readable = {key: record.state for key, record in merged.items() if isinstance(record.outcome, Present)}
    return readable, bool(nameless(tables)) or len(readable) < len(merged)


@pytest.mark.parametrize("records", [1, 2, 3])
def test_slot_of_the_group_table(records: int, step: int) -> None:
    disk = table_disk(records)
    newest = {KEY: bytes([1, records - 1]) * 45, OTHER: bytes([2, records - 1]) * 45}
    assert outcomes(disk) == (newest, False)
    told: Counter[str] = Counter()

    def judge() -> None:
        try:
            readable, doubt = outcomes(disk)
        except (Unreadable, UnsupportedVersion) as fault:
            told[type(fault).__name__] += 1
            return
        assert readable.items() <= newest.items(), "an older record is served"
        assert doubt or readable == newest
        told["doubt" if doubt else "whole"] += 1

    pairs = disk.size(TABLE)
    for at in range(BLOCK, pairs, BLOCK):
        for _ in flips(disk, TABLE, step, at, at + 200):
            judge()
    for _ in flips(disk, TABLE, step * 97, BLOCK, pairs):
        judge()
    for _ in blocks(disk, TABLE):
        judge()
    for _ in cuts(disk, TABLE, 61):
        judge()
    assert told["doubt"] > 100 and told["Unreadable"] > 100
    # Of two equal first records one may go: a zero second slot is what a first write that was cut short leaves.
    assert told["whole"] == (2 if records == 1 else 0), told


def test_head_of_the_group_table(step: int) -> None:
    disk = table_disk()
    for bit in flips(disk, TABLE, 1, 0, 14):
        if bit // 8 < 10:
            with pytest.raises((Unreadable, UnsupportedVersion)):
                outcomes(disk)
        else:
            # More pairs than there are is a table cut short; fewer lose nothing, since the length counts.
            try:
                assert len(outcomes(disk)[0]) == 2
            except Unreadable as fault:
                assert "pairs in" in str(fault)


def test_a_stale_slot_of_the_group_table_is_told_unless_it_looks_as_before_the_last_write() -> None:
    """A device that drops an acknowledged write whole leaves what was there before it: no format tells that."""
    disks = [table_disk(records) for records in range(1, 6)]
    now = disks[-1].copy()
    count = now.size(TABLE) // BLOCK
    for age, earlier in enumerate(reversed(disks[:-1]), 1):
        for block in range(1, count):
            stale = now.copy()
            stale.damage(TABLE, block * BLOCK, earlier.read(TABLE)[block * BLOCK : (block + 1) * BLOCK])
            readable, doubt = outcomes(stale)
            if readable != outcomes(now)[0]:
                assert doubt or age <= 2


# --- boot record -----------------------------------------------------------------------------------------------------

BOOT = DIRECTORY.boot_record(1)


def boot_disk(clean: bool) -> SimDisk:
    disk = SimDisk()
    disk.mkdir(DIRECTORY.shards)
    boot = BootRecord.create(disk, BOOT, FIRST_BOOT, 3, [BootEntry(OTHER, 5, 55, 5)])
    boot.update(KEY, 8, 88, 9)
    if clean:
        boot.mark_clean()
    disk.syncfs(disk.open_read(BOOT))
    disk.kill()
    return disk


@pytest.mark.parametrize("clean", [False, True])
def test_boot_record(clean: bool, step: int) -> None:
    """Whatever is lost of it is doubt: never a frontier, a boot or a clean mark that was not written."""
    disk = boot_disk(clean)
    seen: Counter[str] = Counter()

    def judge() -> None:
        found, _ = merge_boot_files(read_boot_files(disk, DIRECTORY.shards).values())
        entries = {key: (facts.entry.synced_op, facts.entry.synced_checksum) for key, facts in found.items()}
        assert entries.items() <= {KEY: (8, 88), OTHER: (5, 55)}.items()
        for facts in found.values():
            assert facts.head.boot_id == FIRST_BOOT and facts.head.generation == 3
            assert clean or not facts.head.clean
        seen["no facts" if not found else "no entry" if len(found) < 2 else "all"] += 1

    for at in (0, BLOCK, 2 * BLOCK):
        for _ in flips(disk, BOOT, step, at, min(at + 140, disk.size(BOOT))):
            judge()
    for _ in flips(disk, BOOT, step * 97):
        judge()
    for _ in cuts(disk, BOOT, 7):
        judge()
    for _ in blocks(disk, BOOT):
        judge()
    assert seen["no facts"] > 50 and seen["no entry"] > 50


# --- partition checkpoint --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slot", [0, 1])
def test_partition_checkpoint(slot: int, step: int) -> None:
    disk = SimDisk()
    disk.put("/p/other", b"")
    checkpoint = Checkpoint(disk, "/p")
    payloads = [bytes([number]) * 60 for number in range(3)]
    for payload in payloads:
        checkpoint.write(payload)
    path = checkpoint.path(slot)

    def refuse() -> None:
        again = Checkpoint(disk, "/p")
        assert isinstance(again.read(), UnreadableRecord)
        with pytest.raises(Unreadable):
            again.write(b"over the evidence")

    for _ in flips(disk, path, step):
        refuse()
    for _ in cuts(disk, path):
        refuse()
    for _ in blocks(disk, path):
        refuse()
    assert Checkpoint(disk, "/p").read() == Present(payloads[2], 4, 1)
    disk.unlink(path)
    refuse()


def test_every_row_of_the_rot_table_is_of_a_class_that_is_tested_here() -> None:
    tested: dict[str, Callable[..., None]] = {
        "superblock slot": test_superblock_slot,
        "slot of the group table": test_slot_of_the_group_table,
        "head of the group table": test_head_of_the_group_table,
        "head of a boot record": test_boot_record,
        "entry of a boot record": test_boot_record,
        "snapshot": test_snapshot,
        "partition checkpoint": test_partition_checkpoint,
    }
    # The others are in test_bit_rot_log.py, which has its own list.
    from tests.simulation import test_bit_rot_log

    assert {row.record for row in BIT_ROT} == set(tested) | set(test_bit_rot_log.TESTED)
