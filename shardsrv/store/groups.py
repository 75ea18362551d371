"""The group table of a shard, `shards/<n>.groups`: the superblocks of its partition groups under the two-slot rule.

    Off         Len  Field
      0           8  magic "SHRDGRP1"
      8           2  version u16 = 1
     10           4  pairs u32; zero up to 4096
    4096*(1+2i)  4096 slot a of pair i: a slot record of kind 0, zero behind it; slot b follows

Payload of a record: group key (24 bytes, fourth field 0), then a `VsrState`.

Invariants: a slot is written in place and only the one that does not hold the newest record; the record (150 bytes)
lies in one disk sector, so a torn write does not make a slot corrupt and corrupt means rot; one writer, one staged
write at a time; a pair that is Unreadable is never written again. The tables of all shards are read together: which
shard a record is found in means nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import attrs

from shardsrv.errors import OurFault, UnsupportedVersion
from shardsrv.errors import Unreadable as UnreadableFault
from shardsrv.store.disk import READ, SYNC, Disk, disk_fault, read_all, replace_file, write_all
from shardsrv.store.group_key import SIZE as KEY_SIZE
from shardsrv.store.group_key import GroupKey, unpack_key
from shardsrv.store.layout import groups_table_shard
from shardsrv.store.record import Empty, Kind, Outcome, Present, Valid, choose, decode_slot, encode_record, is_zero
from shardsrv.store.record import Unreadable as UnreadableRecord

MAGIC: Final = b"SHRDGRP1"
VERSION: Final = 1
SLOT: Final = 4096
PAIR: Final = 2 * SLOT
GROWTH: Final = 64
"""Pairs allotted at once: 512 KiB."""
MAX_TABLE: Final = SLOT + PAIR * (1 << 16)
_HEAD: Final = struct.Struct("<8sHI")


@attrs.frozen
class GroupRecord:
    """One pair of slots. `key` is None when no slot says whose it is; `state` is the payload behind the key when
    Present."""

    pair: int
    key: GroupKey | None
    outcome: Outcome
    state: bytes = b""
    raw: bytes = attrs.field(default=b"", repr=False, eq=False)


def encode_head(pairs: int) -> bytes:
    """The first 4 KiB of a table."""
    return _HEAD.pack(MAGIC, VERSION, pairs).ljust(SLOT, b"\0")


def decode_table(data: bytes, path: str = "") -> list[GroupRecord]:
    """Every pair that is not free, in order.

    Raises:
        Unreadable: no table, or shorter than its head says.
        UnsupportedVersion: a table of another release.
    """
    if len(data) < SLOT:
        raise UnreadableFault(path, f"{len(data)} bytes, a group table has at least {SLOT}")
    magic, version, pairs = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise UnreadableFault(path, f"magic {magic!r} instead of {MAGIC!r}")
    if version != VERSION:
        raise UnsupportedVersion("group table", path, version, VERSION, VERSION)
    if SLOT + pairs * PAIR > len(data):
        raise UnreadableFault(path, f"{pairs} pairs in {len(data)} bytes")
    records = []
    for pair in range((len(data) - SLOT) // PAIR):
        raw = data[SLOT + pair * PAIR : SLOT + (pair + 1) * PAIR]
        if not is_zero(raw):
            records.append(_decode_pair(pair, raw))
    return records


def _decode_pair(pair: int, raw: bytes) -> GroupRecord:
    slots = [decode_slot(raw[at : at + SLOT], Kind.SUPERBLOCK, padded=True) for at in (0, SLOT)]
    outcome = choose(slots[0], slots[1])
    keys = [_key_in(slot.payload) for slot in slots if isinstance(slot, Valid)]
    key = keys[0] if keys else None
    if None in keys or (len(keys) == 2 and keys[0] != keys[1]):
        # A block of another group, or of none: whose pair it is nobody can tell.
        key, outcome = None, UnreadableRecord(None, 0, "its slots do not name one group")
    state = outcome.payload[KEY_SIZE:] if isinstance(outcome, Present) else b""
    return GroupRecord(pair, key, outcome, state, raw)


def _slot(sequence: int, payload: bytes) -> bytes:
    return encode_record(Kind.SUPERBLOCK, sequence, payload).ljust(SLOT, b"\0")


def _key_in(payload: bytes) -> GroupKey | None:
    return unpack_key(payload)[0] if len(payload) >= KEY_SIZE else None


class StagedWrite:
    """Slots to write and the one sync that covers them; `run` may be called in a thread, then `GroupTable.confirm`.

    New groups cost a second one. `first`: slots of their first records; `pairs`: what the head has to say from now on,
    None when it says it already."""

    __slots__ = ("_disk", "_handle", "_path", "changes", "done", "first", "pairs", "slots")

    def __init__(self, disk: Disk, handle: int, path: str) -> None:
        self._disk = disk
        self._handle = handle
        self._path = path
        self.pairs: int | None = None
        self.first: list[tuple[int, bytes]] = []
        self.slots: list[tuple[int, bytes]] = []
        self.changes: dict[GroupKey, GroupRecord] = {}
        self.done = False

    def run(self) -> None:
        """Write and sync.

        Raises:
            DiskFault: a step failed; which records are on disk is unknown.
        """
        action = "write"
        try:
            if self.pairs is not None or self.first:
                # The length is durable before the head promises it: a table shorter than its head is damaged. And a
                # second slot is never there without the first: that would look like one that was lost.
                self._write(self.first)
                action = SYNC
                self._disk.fdatasync(self._handle)
                action = "write"
            if self.pairs is not None:
                self._write([(0, encode_head(self.pairs))])
            self._write(self.slots)
            action = SYNC
            self._disk.fdatasync(self._handle)
        except OSError as error:
            raise disk_fault(error, self._path, action) from error
        self.done = True

    def _write(self, slots: list[tuple[int, bytes]]) -> None:
        for position, data in slots:
            write_all(self._disk, self._handle, [data], position, len(data))


class GroupTable:
    """The table of one shard, open for writing."""

    def __init__(
        self, disk: Disk, path: str, handle: int, records: Iterable[GroupRecord], pairs: int, head_pairs: int
    ) -> None:
        self._disk = disk
        self.path = path
        self._handle = handle
        self._pairs = pairs
        self._head_pairs = head_pairs
        self._records: dict[GroupKey, GroupRecord] = {}
        used = set()
        for record in records:
            used.add(record.pair)
            if record.key is not None:
                self._records[record.key] = record
        self._free = [pair for pair in range(pairs - 1, -1, -1) if pair not in used]
        self._staged: StagedWrite | None = None
        self._broken = False

    @classmethod
    def open(cls, disk: Disk, path: str) -> GroupTable:
        """Open the table, or make an empty one. What was read is durable when this returns.

        The process before may have been killed, or its sync may have failed, when a record was in the page cache and
        not on the disk; the kernel may even take such a page for clean. So the newest records are written again.

        Raises:
            Unreadable, UnsupportedVersion: see `decode_table`.
            DiskFault: it could not be made.
        """
        try:
            data = read_all(disk, path, MAX_TABLE)
        except FileNotFoundError:
            directory, _, name = path.rpartition("/")
            data = encode_head(0)
            replace_file(disk, directory, name, [data])
        records = decode_table(data, path)
        action = "open"
        try:
            handle = disk.open_write(path)
            action = "write"
            for record in records:
                if isinstance(record.outcome, Present):
                    at = record.outcome.slot * SLOT
                    position = cls._place(record.pair, record.outcome.slot)
                    write_all(disk, handle, [record.raw[at : at + SLOT]], position, SLOT)
            action = SYNC
            disk.fdatasync(handle)
        except OSError as error:
            raise disk_fault(error, path, action) from error
        return cls(disk, path, handle, records, (len(data) - SLOT) // PAIR, _HEAD.unpack_from(data)[2])

    def records(self) -> dict[GroupKey, GroupRecord]:
        """What the table holds, by key."""
        return dict(self._records)

    def stage(self, changes: Mapping[GroupKey, bytes | None]) -> StagedWrite:
        """Prepare one write: the new state of each group, or None to free its pair. Allots pairs to groups that have
        none. The pair of a group that is gone is freed whatever it holds: a power loss may leave half of a freed one.

        Raises:
            OurFault: a write is staged already, or a payload is too long.
            shardsrv.errors.Unreadable: the pair of a group is unreadable (nothing is written over the evidence), or an
            earlier
                write failed and the table was not opened again.
            DiskFault: the table could not grow.
        """
        if self._staged is not None:
            raise OurFault(f"two writers of {self.path}")
        if self._broken:
            raise UnreadableFault(self.path, "an earlier write failed")
        staged = StagedWrite(self._disk, self._handle, self.path)
        taken: list[int] = []
        try:
            for key, state in changes.items():
                self._stage_one(staged, key, state, taken)
        except Exception:
            self._free.extend(taken)
            raise
        if self._pairs != self._head_pairs:
            staged.pairs = self._pairs
        self._staged = staged
        return staged

    def _stage_one(self, staged: StagedWrite, key: GroupKey, state: bytes | None, taken: list[int]) -> None:
        record = self._records.get(key)
        if record is not None and state is not None and isinstance(record.outcome, UnreadableRecord):
            raise UnreadableFault(self.path, f"pair {record.pair} of {key} is unreadable: {record.outcome.reason}")
        if state is None:
            if record is not None:
                staged.slots.append((self._place(record.pair, 0), bytes(PAIR)))
                staged.changes[key] = attrs.evolve(record, outcome=Empty())
            return
        payload = key.pack() + state
        if len(payload) + 36 > SLOT:
            raise OurFault(f"{len(payload)} bytes do not fit a slot of {self.path}")
        if record is None:
            # The first record goes to both slots: from then on a slot that is gone is known to be lost.
            pair, slot, sequence = self._allot(), 1, 2
            taken.append(pair)
            staged.first.append((self._place(pair, 0), _slot(1, payload)))
        else:
            assert isinstance(record.outcome, Present)
            pair, slot, sequence = record.pair, 1 - record.outcome.slot, record.outcome.sequence + 1
        staged.slots.append((self._place(pair, slot), _slot(sequence, payload)))
        staged.changes[key] = GroupRecord(pair, key, Present(payload, sequence, slot), state)

    @staticmethod
    def _place(pair: int, slot: int) -> int:
        return SLOT + pair * PAIR + slot * SLOT

    def _allot(self) -> int:
        if not self._free:
            pairs = self._pairs + GROWTH
            try:
                self._disk.fallocate(self._handle, SLOT + self._pairs * PAIR, GROWTH * PAIR)
                self._disk.truncate(self._handle, SLOT + pairs * PAIR)
            except OSError as error:
                raise disk_fault(error, self.path, "grow", needed=GROWTH * PAIR) from error
            self._free = list(range(pairs - 1, self._pairs - 1, -1))
            self._pairs = pairs
        return self._free.pop()

    def confirm(self, staged: StagedWrite) -> None:
        """Take back a staged write. One that did not run to its end makes the table refuse writes until it is opened
        again."""
        if staged is not self._staged:
            raise OurFault(f"{self.path}: a write is confirmed that was not staged")
        self._staged = None
        if not staged.done:
            self._broken = True
            return
        if staged.pairs is not None:
            self._head_pairs = staged.pairs
        for key, record in staged.changes.items():
            if isinstance(record.outcome, Empty):
                self._free.append(record.pair)
                self._records.pop(key, None)
            else:
                self._records[key] = record

    def write(self, changes: Mapping[GroupKey, bytes | None]) -> None:
        """`stage`, `run` and `confirm` at once: durable when it returns. Raises as they do."""
        staged = self.stage(changes)
        try:
            staged.run()
        finally:
            self.confirm(staged)

    def close(self) -> None:
        """Close the file."""
        self._disk.close(self._handle)


# --- all tables ------------------------------------------------------------------------------------------------------


def read_tables(disk: Disk, directory: str) -> dict[int, list[GroupRecord]]:
    """The records of every table in ``directory``, by shard number. Raises as `decode_table`, and `DiskFault`."""
    try:
        names = disk.listdir(directory)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise disk_fault(error, directory, READ) from error
    tables = {}
    for name in names:
        shard = groups_table_shard(name)
        if shard is not None:
            path = f"{directory}/{name}"
            tables[shard] = decode_table(read_all(disk, path, MAX_TABLE), path)
    return tables


def merge_tables(tables: Mapping[int, list[GroupRecord]]) -> dict[GroupKey, GroupRecord]:
    """One record a group: an unreadable one wins, then the highest sequence. A group is twice in the tables only after
    a crash while they were rewritten, and then both copies are equal. Pairs that nobody can name are left out: see
    `nameless`."""
    merged: dict[GroupKey, GroupRecord] = {}
    for shard in sorted(tables):
        for record in tables[shard]:
            if record.key is not None and _rank(record) > _rank(merged.get(record.key)):
                merged[record.key] = record
    return merged


def _rank(record: GroupRecord | None) -> int:
    if record is None:
        return -1
    if isinstance(record.outcome, Present):
        return record.outcome.sequence
    return 0 if isinstance(record.outcome, Empty) else 1 << 63


def nameless(tables: Mapping[int, list[GroupRecord]]) -> list[tuple[int, GroupRecord]]:
    """(shard, record) of pairs that are unreadable so far that no slot says whose they are. While there are any, a
    group that has data and no record is in doubt, and not new."""
    return [(shard, record) for shard in sorted(tables) for record in tables[shard] if record.key is None]


def consolidate(disk: Disk, directory: str, owner: Callable[[GroupKey], int], keep: Iterable[int]) -> bool:
    """Rewrite the tables so that each record lies in its owner's; tables of shards not in ``keep`` go. False: nothing
    to do.

    A crash leaves every record in at least one table: first the tables that gain are written with all they had, then
    those that lose. Unreadable pairs go with the bytes they have; nameless ones to the first of ``keep``.

    Raises:
        DiskFault: a step failed; the next start does it again.
    """
    tables = read_tables(disk, directory)
    shards = sorted(keep)
    wanted: dict[int, list[GroupRecord]] = {shard: [] for shard in shards}
    for record in merge_tables(tables).values():
        assert record.key is not None
        wanted[owner(record.key)].append(record)
    wanted[shards[0]].extend(record for _, record in nameless(tables))
    found = {shard: {(record.key, record.raw) for record in records} for shard, records in tables.items()}
    target = {shard: {(record.key, record.raw) for record in records} for shard, records in wanted.items()}
    if all(found.get(shard, set()) == target[shard] for shard in shards) and not set(found) - set(shards):
        return False
    for shard in shards:
        if target[shard] - found.get(shard, set()):
            gained = [record for record in wanted[shard] if (record.key, record.raw) not in found.get(shard, set())]
            _rewrite(disk, directory, shard, [*tables.get(shard, []), *gained])
    for shard in shards:
        if target[shard] != found.get(shard, set()):
            _rewrite(disk, directory, shard, wanted[shard])
    try:
        for shard in sorted(set(found) - set(shards)):
            disk.unlink(f"{directory}/{shard}.groups")
        disk.fsync_dir(directory)
    except OSError as error:
        raise disk_fault(error, directory, "unlink") from error
    return True


def _rewrite(disk: Disk, directory: str, shard: int, records: list[GroupRecord]) -> None:
    pairs = -(-len(records) // GROWTH) * GROWTH
    ordered = sorted(records, key=lambda record: (record.key is None, record.key or (), record.pair))
    body = [record.raw for record in ordered]
    padding = bytes((pairs - len(records)) * PAIR)
    replace_file(disk, directory, f"{shard}.groups", [encode_head(pairs), *body, padding])
