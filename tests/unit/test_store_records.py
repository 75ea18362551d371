"""Slot records and what is made of them: superblock, checkpoint, snapshot, group table, boot record; the state."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import attrs
import pytest

from shardsrv._core import xxh3
from shardsrv.errors import Damaged, DecodeError, DiskFull, EncodeError, OurFault, SyncFailed, UnsupportedVersion
from shardsrv.errors import Unreadable as UnreadableFault
from shardsrv.store import boot
from shardsrv.store.boot import BootEntry, BootHead, BootRecord, decode_boot_file, merge_boot_files, read_boot_files
from shardsrv.store.checkpoint import Checkpoint
from shardsrv.store.disk import OsDisk
from shardsrv.store.faults import SuperblockUndecodable, SuperblockUnreadable, WriteFailed
from shardsrv.store.group_key import METADATA, GroupKey, owner_shard
from shardsrv.store.groups import (
    GroupTable,
    consolidate,
    decode_table,
    merge_tables,
    nameless,
    read_tables,
)
from shardsrv.store.record import Absent, Corrupt, Empty, Kind, Present, Unreadable, Valid, decode_slot, encode_record
from shardsrv.store.snapshot import decode_snapshot, read_snapshot, write_snapshot
from shardsrv.store.superblock import Superblock, state_of
from shardsrv.vsr.state import StateForeign, VsrState

STATE = VsrState(
    cluster=bytes(range(16)),
    replica_id=0x21,
    replica_count=0x22,
    view=0x34333231,
    log_view=0x24232221,
    commit_max=0x0847464544434241,
    checkpoint_op=0x0957565554535251,
    checkpoint_checksum=int.from_bytes(bytes(range(0x60, 0x70)), "little"),
    offset_frontier=0x0A77767574737271,
    incarnation=int.from_bytes(bytes(range(0x80, 0x90)), "little"),
    reconciled_through=0x0B97969594939291,
)


# --- VsrState --------------------------------------------------------------------------------------------------------


def test_every_field_of_the_state_lies_at_its_pinned_offset() -> None:
    data = STATE.encode()
    assert len(data) == 90
    expected = {
        0: bytes(range(16)),
        16: b"\x21",
        17: b"\x22",
        18: b"1234",
        22: b'!"#$',
        26: b"ABCDEFG\x08",
        34: b"QRSTUVW\x09",
        42: bytes(range(0x60, 0x70)),
        58: b"qrstuvw\x0a",
        66: bytes(range(0x80, 0x90)),
        82: bytes.fromhex("919293949596970b"),
    }
    assert b"".join(expected.values()) == data
    assert all(data[offset:].startswith(value) for offset, value in expected.items())
    assert VsrState.decode(data) == STATE


@pytest.mark.parametrize("length", range(100))
def test_shorter_states_decode_with_later_fields_zero_and_other_lengths_do_not(length: int) -> None:
    data = STATE.encode().ljust(100, b"\0")[:length]
    if length not in (58, 66, 90):
        with pytest.raises(DecodeError):
            VsrState.decode(data)
        return
    state = VsrState.decode(data)
    later = {"offset_frontier": 0, "incarnation": 0, "reconciled_through": 0}
    kept = {58: [], 66: ["offset_frontier"], 90: list(later)}[length]
    assert state == attrs.evolve(STATE, **{name: value for name, value in later.items() if name not in kept})


def test_a_state_with_a_log_view_above_its_view_is_neither_written_nor_read() -> None:
    wrong = attrs.evolve(STATE, log_view=STATE.view + 1)
    with pytest.raises(EncodeError):
        wrong.encode()
    data = bytearray(STATE.encode())
    data[22:26] = b"\xff" * 4
    with pytest.raises(DecodeError, match="log_view"):
        VsrState.decode(bytes(data))


@pytest.mark.parametrize("field", ["cluster", "replica_id", "replica_count"])
def test_a_misplaced_state_is_recognised_by_the_field_that_differs(field: str) -> None:
    ours = {"cluster": STATE.cluster, "replica_id": STATE.replica_id, "replica_count": STATE.replica_count}
    STATE.check_identity(**ours)
    other = bytes(16) if field == "cluster" else 1
    with pytest.raises(StateForeign) as caught:
        STATE.check_identity(**{**ours, field: other}, path="DIR/superblock.a")
    assert (caught.value.field, caught.value.expected, caught.value.found) == (field, other, ours[field])
    assert field in str(caught.value) and "DIR/superblock.a" in str(caught.value)


# --- the slot record -------------------------------------------------------------------------------------------------


def test_the_record_as_bytes() -> None:
    data = encode_record(Kind.CHECKPOINT, 7, b"payload")
    head = bytes.fromhex("4b4c4253 0100 0100 0700000000000000 0000000000000000 07000000") + b"payload"
    assert data == head + xxh3(head).to_bytes(8, "little")
    assert decode_slot(data, Kind.CHECKPOINT) == Valid(7, b"payload")


def test_no_flipped_or_missing_byte_of_a_record_goes_unnoticed() -> None:
    data = encode_record(Kind.SUPERBLOCK, 3, STATE.encode())
    for position, bit in itertools.product(range(len(data)), (1, 0x80)):
        bad = bytearray(data)
        bad[position] ^= bit
        for padded in (False, True):
            assert isinstance(decode_slot(bytes(bad), Kind.SUPERBLOCK, padded=padded), Corrupt), position
    for length in range(1, len(data)):
        assert isinstance(decode_slot(data[:length], Kind.SUPERBLOCK), Corrupt)
    assert isinstance(decode_slot(data + b"\0", Kind.SUPERBLOCK), Corrupt)
    assert isinstance(decode_slot(data + b"\1", Kind.SUPERBLOCK, padded=True), Corrupt)
    assert decode_slot(data + bytes(9), Kind.SUPERBLOCK, padded=True) == Valid(3, STATE.encode())
    assert isinstance(decode_slot(data, Kind.BOOT), Corrupt)


@pytest.mark.parametrize("data", [None, b"", bytes(1), bytes(4096)])
def test_nothing_written_is_absent(data: bytes | None) -> None:
    assert decode_slot(data, Kind.SUPERBLOCK) == Absent()


def test_an_unknown_version_is_told() -> None:
    data = bytearray(encode_record(Kind.SUPERBLOCK, 3, b"x"))
    data[4] = 9
    slot = decode_slot(bytes(data), Kind.SUPERBLOCK)
    assert isinstance(slot, Corrupt) and slot.version == 9


# --- two files -------------------------------------------------------------------------------------------------------


class Recording(OsDisk):
    """Writes down what is called; fails the n-th call when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.fail_at = -1
        self.errno = 5
        for name in ("pwritev", "fdatasync", "truncate"):
            setattr(self, name, self._wrapped(name, getattr(self, name)))

    def _wrapped(self, name: str, call):
        def wrapped(*arguments, **keywords):
            self.step(name)
            return call(*arguments, **keywords)

        return wrapped

    def step(self, name: str) -> None:
        if len(self.calls) == self.fail_at:
            self.fail_at = -1
            raise OSError(self.errno, os.strerror(self.errno))
        self.calls.append(name)

    def rename(self, source: str, target: str) -> None:
        self.step("rename")
        super().rename(source, target)

    def fsync_dir(self, path: str) -> None:
        self.step("fsync_dir")
        super().fsync_dir(path)


def test_a_superblock_is_written_in_turn_and_durable_after_the_last_step(tmp_path: Path) -> None:
    disk = Recording()
    superblock = Superblock(disk, str(tmp_path))
    assert superblock.read() == Empty()
    assert superblock.write(b"one") == 2, "the first write fills both slots"
    steps = ["truncate", "pwritev", "fdatasync", "rename", "fsync_dir"]
    assert disk.calls == steps * 2
    assert superblock.write(b"two") == 3
    assert superblock.write(b"three") == 4
    assert disk.calls == steps * 4
    again = Superblock(OsDisk(), str(tmp_path))
    assert again.read() == Present(b"three", 4, 1)
    assert again.write(b"four") == 5
    assert Superblock(OsDisk(), str(tmp_path)).read() == Present(b"four", 5, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["superblock.a", "superblock.b"]


@pytest.mark.parametrize("step", range(5))
def test_a_failure_at_any_step_keeps_a_complete_record(tmp_path: Path, step: int) -> None:
    disk = Recording()
    superblock = Superblock(disk, str(tmp_path))
    superblock.write(b"one")
    superblock.write(b"two")
    disk.calls.clear()
    disk.fail_at = step
    with pytest.raises(SyncFailed if step in (2, 4) else WriteFailed):
        superblock.write(b"three")
    outcome = Superblock(OsDisk(), str(tmp_path)).read()
    assert isinstance(outcome, Present)
    assert outcome.payload == (b"two" if step < 4 else b"three")
    assert superblock.write(b"four") == (4 if step < 4 else 5)
    assert Superblock(OsDisk(), str(tmp_path)).read() == superblock.read()


def test_full_disk_is_told_apart(tmp_path: Path) -> None:
    disk = Recording()
    disk.errno, disk.fail_at = 28, 1
    with pytest.raises(DiskFull):
        Superblock(disk, str(tmp_path)).write(b"one")


def test_a_corrupt_slot_makes_the_pair_unreadable_and_blocks_writes(tmp_path: Path) -> None:
    superblock = Superblock(OsDisk(), str(tmp_path))
    superblock.write(STATE.encode())
    superblock.write(STATE.encode())
    path = tmp_path / "superblock.b"
    path.write_bytes(path.read_bytes()[:-1])
    again = Superblock(OsDisk(), str(tmp_path))
    outcome = again.read()
    assert isinstance(outcome, Unreadable) and outcome.slot == 1
    with pytest.raises(UnreadableFault):
        again.write(b"x")
    with pytest.raises(SuperblockUnreadable) as caught:
        state_of(outcome, (again.path(0), again.path(1)))
    assert caught.value.path == str(path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["superblock.a", "superblock.b"]


def test_the_three_ways_to_have_no_state_stay_apart(tmp_path: Path) -> None:
    paths = ("a", "b")
    assert state_of(Empty(), paths) is None
    assert state_of(Present(STATE.encode(), 1), paths) == STATE
    with pytest.raises(SuperblockUndecodable):
        state_of(Present(b"short", 1, 1), paths)
    with pytest.raises(SuperblockUnreadable):
        state_of(Unreadable(4, 0, "version"), paths)


def test_a_file_far_too_long_is_corrupt_without_being_read(tmp_path: Path) -> None:
    (tmp_path / "superblock.a").write_bytes(b"x" * 5000)
    assert isinstance(Superblock(OsDisk(), str(tmp_path)).read(), Unreadable)


def test_two_writers_of_one_superblock_trip_the_guard(tmp_path: Path) -> None:
    class Reentrant(OsDisk):
        def rename(self, source: str, target: str) -> None:
            with pytest.raises(OurFault):
                superblock.write(b"second")
            super().rename(source, target)

    superblock = Superblock(Reentrant(), str(tmp_path))
    superblock.write(b"first")
    assert superblock.read() == Present(b"first", 2, 1)


def test_a_checkpoint_is_the_same_with_its_own_names_and_kind(tmp_path: Path) -> None:
    checkpoint = Checkpoint(OsDisk(), str(tmp_path))
    checkpoint.write(bytes(100_000))
    assert isinstance(checkpoint.read(), Present)
    (tmp_path / "checkpoint.a").rename(tmp_path / "superblock.a")
    assert isinstance(Superblock(OsDisk(), str(tmp_path)).read(), Unreadable)


# --- snapshot --------------------------------------------------------------------------------------------------------


def test_a_snapshot_comes_back_with_its_checksum(tmp_path: Path) -> None:
    disk = OsDisk()
    assert read_snapshot(disk, str(tmp_path / "snapshot.bin")) is None
    checksum = write_snapshot(disk, str(tmp_path), "snapshot.bin", b"payload")
    found = read_snapshot(disk, str(tmp_path / "snapshot.bin"))
    assert found is not None and (found.payload, found.checksum) == (b"payload", checksum)
    assert checksum == xxh3(b"payload")
    assert (tmp_path / "snapshot.bin").read_bytes()[7:11] == bytes.fromhex("504e5349")


def test_no_flipped_or_missing_byte_of_a_snapshot_goes_unnoticed(tmp_path: Path) -> None:
    write_snapshot(OsDisk(), str(tmp_path), "s", bytes(range(50)))
    data = (tmp_path / "s").read_bytes()
    for position in range(len(data)):
        bad = bytearray(data)
        bad[position] ^= 4
        with pytest.raises(Damaged):
            decode_snapshot(bytes(bad))
        with pytest.raises(Damaged):
            decode_snapshot(data[:position])


# --- group table -----------------------------------------------------------------------------------------------------

KEYS = [GroupKey(1, 2, number, 5 + number) for number in range(150)]


def state(number: int) -> bytes:
    return attrs.evolve(STATE, commit_max=number).encode()


def states(path: Path) -> dict[GroupKey, bytes]:
    return {record.key: record.state for record in decode_table(path.read_bytes()) if record.key is not None}


def test_a_table_keeps_the_newest_state_of_each_group(tmp_path: Path) -> None:
    path = tmp_path / "1.groups"
    table = GroupTable.open(OsDisk(), str(path))
    table.write({key: state(1) for key in KEYS})
    for turn in (2, 3):
        table.write({key: state(turn) for key in KEYS[::3]})
    expected = {key: state(3 if number % 3 == 0 else 1) for number, key in enumerate(KEYS)}
    assert states(path) == expected
    again = GroupTable.open(OsDisk(), str(path))
    assert {key: record.state for key, record in again.records().items()} == expected
    assert path.stat().st_size == 4096 + 192 * 8192


def test_one_sync_covers_all_that_changed(tmp_path: Path) -> None:
    disk = Recording()
    table = GroupTable.open(disk, str(tmp_path / "1.groups"))
    table.write({key: state(1) for key in KEYS[:10]})
    disk.calls.clear()
    table.write({key: state(2) for key in KEYS[:10]})
    assert disk.calls == ["pwritev"] * 10 + ["fdatasync"]


def test_a_freed_pair_is_zero_and_used_again(tmp_path: Path) -> None:
    path = tmp_path / "1.groups"
    table = GroupTable.open(OsDisk(), str(path))
    table.write({key: state(1) for key in KEYS[:64]})
    size = path.stat().st_size
    table.write(dict.fromkeys(KEYS[:2]))
    table.write({KEYS[100]: state(9), KEYS[101]: state(9)})
    assert path.stat().st_size == size
    assert set(states(path)) == {*KEYS[2:64], KEYS[100], KEYS[101]}
    assert states(path)[KEYS[100]] == state(9)


def test_a_torn_write_of_the_other_slot_is_rot_of_that_group_alone(tmp_path: Path) -> None:
    path = tmp_path / "1.groups"
    table = GroupTable.open(OsDisk(), str(path))
    table.write({key: state(1) for key in KEYS[:3]})
    table.close()
    data = bytearray(path.read_bytes())
    data[4096 + 8192 + 4096 + 50] = 1
    path.write_bytes(data)
    again = GroupTable.open(OsDisk(), str(path))
    assert isinstance(again.records()[KEYS[1]].outcome, Unreadable)
    with pytest.raises(UnreadableFault):
        again.write({KEYS[1]: state(2)})
    again.write({KEYS[0]: state(2), KEYS[2]: state(2)})
    assert bytes(data[4096 + 8192 : 4096 + 16384]) == path.read_bytes()[4096 + 8192 : 4096 + 16384]


def test_a_pair_that_nobody_can_name_is_doubt_about_every_group_without_a_record(tmp_path: Path) -> None:
    path = tmp_path / "1.groups"
    table = GroupTable.open(OsDisk(), str(path))
    table.write({KEYS[0]: state(1), KEYS[1]: state(1)})
    data = bytearray(path.read_bytes())
    data[4096 + 60] ^= 1
    data[4096 + 4096 + 60] ^= 1
    path.write_bytes(data)
    tables = read_tables(OsDisk(), str(tmp_path))
    assert set(merge_tables(tables)) == {KEYS[1]}
    assert [(shard, record.pair) for shard, record in nameless(tables)] == [(1, 0)]


def test_one_write_at_a_time_and_none_after_a_failure(tmp_path: Path) -> None:
    disk = Recording()
    table = GroupTable.open(disk, str(tmp_path / "1.groups"))
    staged = table.stage({KEYS[0]: state(1)})
    with pytest.raises(OurFault):
        table.stage({KEYS[1]: state(1)})
    staged.run()
    table.confirm(staged)
    disk.fail_at = len(disk.calls) + 1
    with pytest.raises(SyncFailed):
        table.write({KEYS[0]: state(2)})
    with pytest.raises(UnreadableFault):
        table.write({KEYS[0]: state(3)})
    GroupTable.open(OsDisk(), str(tmp_path / "1.groups")).write({KEYS[0]: state(3)})


@pytest.mark.parametrize(("head", "fault"), [(b"X", UnreadableFault), (b"SHRDGRP1\x02", UnsupportedVersion)])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, head: bytes, fault: type[Exception]) -> None:
    path = tmp_path / "1.groups"
    path.write_bytes(head.ljust(4096, b"\0"))
    with pytest.raises(fault):
        GroupTable.open(OsDisk(), str(path))
    path.write_bytes(head)
    with pytest.raises(UnreadableFault):
        GroupTable.open(OsDisk(), str(path))


def test_tables_are_rewritten_to_their_owners_when_the_shard_count_changed(tmp_path: Path) -> None:
    disk = OsDisk()
    for shard, keys in ((1, KEYS[:70]), (2, KEYS[70:])):
        GroupTable.open(disk, str(tmp_path / f"{shard}.groups")).write({key: state(shard) for key in keys})
    before = merge_tables(read_tables(disk, str(tmp_path)))
    for count in (4, 2, 3):

        def owner(key: GroupKey, count: int = count) -> int:
            return owner_shard(key.group, count)

        shards = range(1, count)
        assert consolidate(disk, str(tmp_path), owner, shards)
        assert not consolidate(disk, str(tmp_path), owner, shards)
        tables = read_tables(disk, str(tmp_path))
        assert sorted(tables) == list(shards)
        assert all(owner(record.key) == shard for shard, records in tables.items() for record in records)  # type: ignore[arg-type]
        assert {key: record.state for key, record in merge_tables(tables).items()} == {
            key: record.state for key, record in before.items()
        }


@pytest.mark.parametrize("step", range(0, 40, 2))
def test_a_crash_while_tables_are_rewritten_loses_no_record(tmp_path: Path, step: int) -> None:
    disk = Recording()
    for shard, keys in ((1, KEYS[:20]), (2, KEYS[20:40]), (5, KEYS[40:60])):
        GroupTable.open(disk, str(tmp_path / f"{shard}.groups")).write({key: state(shard) for key in keys})
    before = {key: record.state for key, record in merge_tables(read_tables(disk, str(tmp_path))).items()}
    disk.fail_at = len(disk.calls) + step
    try:
        consolidate(disk, str(tmp_path), lambda key: owner_shard(key.group, 4), range(1, 4))
    except (WriteFailed, SyncFailed):
        found = merge_tables(read_tables(OsDisk(), str(tmp_path)))
        assert {key: record.state for key, record in found.items()} == before
    consolidate(OsDisk(), str(tmp_path), lambda key: owner_shard(key.group, 4), range(1, 4))
    tables = read_tables(OsDisk(), str(tmp_path))
    assert {key: record.state for key, record in merge_tables(tables).items()} == before
    assert sum(len(records) for records in tables.values()) == 60


def test_the_owner_is_a_function_of_the_group_and_the_shard_count() -> None:
    assert owner_shard(METADATA.group, 5) == 0
    assert {owner_shard(key.group, 2) for key in KEYS} == {1}
    assert {owner_shard(key.group, 4) for key in KEYS} == {1, 2, 3}


# --- boot record -----------------------------------------------------------------------------------------------------

BOOT = bytes(range(50, 66))


def test_a_boot_record_tells_how_far_each_log_was_synced(tmp_path: Path) -> None:
    path = tmp_path / "1.boot"
    record = BootRecord.create(OsDisk(), str(path), BOOT, 3, [BootEntry(KEYS[0], 5, 50, 6)])
    record.update(KEYS[0], 8, 80, 9)
    record.update(METADATA, 4, 40, 4)
    record.fence(KEYS[1])
    file = decode_boot_file(path.read_bytes())
    assert file.head == BootHead(BOOT, False, 3)
    assert set(file.entries) == {
        BootEntry(KEYS[0], 8, 80, 9),
        BootEntry(METADATA, 4, 40, 4),
        BootEntry(KEYS[1], fenced=True),
    }
    record.remove(KEYS[0])
    record.update(KEYS[2], 1, 2, 3)
    record.mark_clean()
    file = decode_boot_file(path.read_bytes())
    assert file.head == BootHead(BOOT, True, 3)
    assert {entry.key for entry in file.entries} == {METADATA, KEYS[1], KEYS[2]}
    assert path.stat().st_size == 8192 + 3 * 64


def test_the_entry_as_bytes() -> None:
    data = BootEntry(GroupKey(1, 2, 3, 4), 5, 6, 7, True).encode()
    head = bytes.fromhex("01000000 02000000 03000000 03000000 0400000000000000 0500000000000000 0600000000000000")
    head += bytes.fromhex("0700000000000000 0000000000000000")
    assert data == head + xxh3(head).to_bytes(8, "little")


def test_facts_of_a_log_follow_boot_mark_and_fence(tmp_path: Path) -> None:
    def facts(clean: bool, boot_id: bytes, fenced: bool) -> tuple[int, bool, bool]:
        entry, head = BootEntry(KEYS[0], 5, 50, 6, fenced), BootHead(BOOT, clean, 1)
        found = boot.BootFacts(entry, head).log_facts(boot_id, 1)
        return found.synced_op, found.same_boot, found.clean

    assert facts(False, BOOT, False) == (5, True, False)
    assert facts(False, bytes(16), False) == (5, False, False)
    assert facts(True, bytes(16), False) == (5, False, True)
    assert facts(True, BOOT, True) == (5, False, False)


def test_a_bad_entry_counts_as_missing_and_a_bad_head_gives_no_facts(tmp_path: Path) -> None:
    path = tmp_path / "1.boot"
    BootRecord.create(OsDisk(), str(path), BOOT, 3, [BootEntry(KEYS[0], 5, 50, 6), BootEntry(KEYS[1], 5, 50, 6)])
    data = path.read_bytes()
    for position in range(8192, 8192 + 64):
        bad = bytearray(data)
        bad[position] ^= 2
        file = decode_boot_file(bytes(bad))
        assert (file.bad_entries, [entry.key for entry in file.entries]) == (1, [KEYS[1]])
    for position in range(61):
        bad = bytearray(data)
        bad[position] ^= 2
        file = decode_boot_file(bytes(bad))
        assert (file.head, file.entries) == (None, ()) and file.reason
    assert decode_boot_file(b"").head is None


def test_of_two_entries_of_a_group_the_later_generation_counts(tmp_path: Path) -> None:
    disk = OsDisk()
    BootRecord.create(
        disk, str(tmp_path / "1.boot"), BOOT, 3, [BootEntry(KEYS[0], 9, 1, 9), BootEntry(KEYS[1], 7, 1, 7)]
    )
    BootRecord.create(disk, str(tmp_path / "2.boot"), BOOT, 4, [BootEntry(KEYS[0], 8, 1, 8)])
    BootRecord.create(disk, str(tmp_path / "3.boot"), BOOT, 3, [BootEntry(KEYS[1], 6, 1, 6)])
    merged, generation = merge_boot_files(read_boot_files(disk, str(tmp_path)).values())
    assert generation == 4
    assert {key: facts.entry.synced_op for key, facts in merged.items()} == {KEYS[0]: 8, KEYS[1]: 6}


def test_the_kernel_names_its_boot() -> None:
    assert len(boot.kernel_boot_id()) == 16
    assert boot.kernel_boot_id() == boot.kernel_boot_id()
