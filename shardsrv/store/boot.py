"""The boot record of a shard, `shards/<n>.boot`: how far each log was synced, under which kernel, and how the shard
stopped.

    Off       Len  Field
      0      4096  slot a of the head: a slot record of kind 2, zero behind it
    4096     4096  slot b
    8192+64i   64  entry i: stream u32, topic u32, partition u32, flags u32 (1 used, 2 fenced, 4 metadata),
    created_revision u64,
                   synced_op u64, synced_checksum u64, head_op u64, zero u64, XXH3-64 of the 56 bytes before

Payload of the head: kernel boot id 16 bytes, clean u8, generation u64.

Invariants: entries are written in place and not synced: on the same kernel boot the page cache keeps them exact, and
after a power loss an older entry makes more of a log doubtful, never less. An entry that does not hold counts as
missing, for the same reason. The head is synced whenever its mark changes. The file is made anew, whole, at the start
of each generation.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import attrs

from shardsrv._core import xxh3
from shardsrv.errors import Unreadable as UnreadableFault
from shardsrv.store.disk import READ, SYNC, Disk, disk_fault, read_all, replace_file, write_all
from shardsrv.store.group_key import METADATA, GroupKey, unpack_key
from shardsrv.store.layout import boot_record_shard
from shardsrv.store.log_opening import LogFacts
from shardsrv.store.record import Kind, Present, Unreadable, choose, decode_slot, encode_record

SLOT: Final = 4096
ENTRY: Final = 64
ENTRIES_AT: Final = 2 * SLOT
MAX_FILE: Final = ENTRIES_AT + ENTRY * (1 << 20)
USED, FENCED, METADATA_FLAG = 1, 2, 4
_HEAD: Final = struct.Struct("<16sBQ")
_ENTRY: Final = struct.Struct("<24sQQQQ")
_HASH: Final = struct.Struct("<Q")
assert _ENTRY.size == ENTRY - 8

BOOT_ID_FILE: Final = "/proc/sys/kernel/random/boot_id"


@attrs.frozen
class BootHead:
    """Under which kernel boot, and how it ended."""

    boot_id: bytes
    clean: bool
    generation: int

    def encode(self) -> bytes:
        return _HEAD.pack(self.boot_id, self.clean, self.generation)


@attrs.frozen
class BootEntry:
    """How far the log of a group was synced: `synced_op` with its identity; `head_op` and `fenced` when it was last
    written."""

    key: GroupKey
    synced_op: int = 0
    synced_checksum: int = 0
    head_op: int = 0
    fenced: bool = False

    def encode(self) -> bytes:
        """The 64 bytes."""
        flags = USED | (FENCED if self.fenced else 0) | (METADATA_FLAG if self.key == METADATA else 0)
        head = _ENTRY.pack(self.key.pack(flags), self.synced_op, self.synced_checksum, self.head_op, 0)
        return head + _HASH.pack(xxh3(head))


@attrs.frozen
class BootFacts:
    """An entry with the head of the file it was found in."""

    entry: BootEntry
    head: BootHead

    def log_facts(self, boot_id: bytes, members: int) -> LogFacts:
        """What opening the log goes by. A fenced log counts as one of another boot: its page cache is not to be
        trusted."""
        same_boot = self.head.boot_id == boot_id and not self.entry.fenced
        clean = self.head.clean and not self.entry.fenced
        entry = self.entry
        return LogFacts(entry.synced_op, same_boot, clean, members, entry.synced_checksum, entry.fenced)

    def carried(self, boot_id: bytes) -> BootEntry:
        """The entry for the record of a start that could not open the log. Under another kernel it counts as fenced:
        that what it saw of the page cache is gone must stay known."""
        lost = self.head.boot_id != boot_id
        return attrs.evolve(self.entry, fenced=self.entry.fenced or lost)


@attrs.frozen
class BootFile:
    """One file as read. `head` is None when never written; `bad_entries` do not hold and count as missing."""

    head: BootHead | None
    entries: tuple[BootEntry, ...] = ()
    bad_entries: int = 0
    reason: str = ""


def decode_boot_file(data: bytes) -> BootFile:
    """Read a file. A head that is unreadable gives no facts at all, with the `reason`: doubt, which is always allowed
    here."""
    slots = [decode_slot(data[at : at + SLOT], Kind.BOOT, padded=True) for at in (0, SLOT)]
    outcome = choose(slots[0], slots[1])
    if isinstance(outcome, Unreadable):
        return BootFile(None, reason=outcome.reason)
    if not isinstance(outcome, Present):
        return BootFile(None)
    if len(outcome.payload) != _HEAD.size or outcome.payload[16] > 1:
        return BootFile(None, reason=f"head payload of {len(outcome.payload)} bytes")
    boot_id, clean, generation = _HEAD.unpack(outcome.payload)
    entries, bad = [], 0
    for at in range(ENTRIES_AT, len(data) - ENTRY + 1, ENTRY):
        raw = data[at : at + ENTRY]
        if not raw.strip(b"\0"):
            continue
        entry = _decode_entry(raw)
        if entry is None:
            bad += 1
        else:
            entries.append(entry)
    return BootFile(BootHead(boot_id, bool(clean), generation), tuple(entries), bad)


def _decode_entry(raw: bytes) -> BootEntry | None:
    if _HASH.unpack_from(raw, ENTRY - 8)[0] != xxh3(raw[: ENTRY - 8]):
        return None
    name, synced_op, synced_checksum, head_op, _ = _ENTRY.unpack_from(raw)
    key, flags = unpack_key(name)
    if not flags & USED or bool(flags & METADATA_FLAG) != (key == METADATA):
        return None
    return BootEntry(key, synced_op, synced_checksum, head_op, bool(flags & FENCED))


def kernel_boot_id() -> bytes:
    """The 16 bytes that the kernel drew when it started. Raises `Unreadable`."""
    try:
        with open(BOOT_ID_FILE, encoding="ascii") as file:
            return bytes.fromhex(file.read().strip().replace("-", ""))
    except (OSError, ValueError) as error:
        raise UnreadableFault(BOOT_ID_FILE, str(error)) from error


def read_boot_files(disk: Disk, directory: str) -> dict[int, BootFile]:
    """Every boot record in ``directory``, by shard number. Raises `DiskFault`."""
    try:
        names = disk.listdir(directory)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise disk_fault(error, directory, READ) from error
    files = {}
    for name in names:
        shard = boot_record_shard(name)
        if shard is not None:
            files[shard] = decode_boot_file(read_all(disk, f"{directory}/{name}", MAX_FILE))
    return files


def merge_boot_files(files: Iterable[BootFile]) -> tuple[dict[GroupKey, BootFacts], int]:
    """(facts of each group, highest generation). Of two entries of a group that of the later generation counts; in the
    same generation (a crash while files were made anew) the one that says less."""
    merged: dict[GroupKey, BootFacts] = {}
    generation = 0
    for file in files:
        if file.head is None:
            continue
        generation = max(generation, file.head.generation)
        for entry in file.entries:
            other = merged.get(entry.key)
            if other is None or _prefers(BootFacts(entry, file.head), other):
                merged[entry.key] = BootFacts(entry, file.head)
    return merged, generation


def _prefers(facts: BootFacts, other: BootFacts) -> bool:
    if facts.head.generation != other.head.generation:
        return facts.head.generation > other.head.generation
    return facts.entry.synced_op < other.entry.synced_op


class BootRecord:
    """The boot record of one shard while it runs."""

    def __init__(self, disk: Disk, path: str, handle: int, head: BootHead, entries: list[BootEntry]) -> None:
        self._disk = disk
        self.path = path
        self._handle = handle
        self.head = head
        self._sequence = 1
        self._places = {entry.key: number for number, entry in enumerate(entries)}
        self._entries = {entry.key: entry for entry in entries}
        self._free: list[int] = []

    @classmethod
    def create(cls, disk: Disk, path: str, boot_id: bytes, generation: int, entries: Iterable[BootEntry]) -> BootRecord:
        """Make the file anew, not clean, with what is known of the groups that this shard has now; durable when it
        returns.

        The entries are those that recovery ended with. Until every shard has made its file, the old files say the same
        or less.

        Raises:
            DiskFault: a step failed; the old file is still there.
        """
        held = list(entries)
        head = BootHead(boot_id, False, generation)
        first = encode_record(Kind.BOOT, 1, head.encode()).ljust(SLOT, b"\0")
        directory, _, name = path.rpartition("/")
        replace_file(disk, directory, name, [first, bytes(SLOT), b"".join(entry.encode() for entry in held)])
        try:
            handle = disk.open_write(path)
        except OSError as error:
            raise disk_fault(error, path, "open") from error
        return cls(disk, path, handle, head, held)

    def get(self, key: GroupKey) -> BootEntry | None:
        """What was last recorded of a group."""
        return self._entries.get(key)

    def update(self, key: GroupKey, synced_op: int, synced_checksum: int, head_op: int) -> None:
        """Record a synced frontier in place, without a sync. Only what a sync covered may be told here.

        Raises:
            DiskFault: the write failed; an older entry stays, which is safe.
        """
        old = self._entries.get(key)
        self._put(BootEntry(key, synced_op, synced_checksum, head_op, old is not None and old.fenced))

    def lower(self, key: GroupKey, synced_op: int, synced_checksum: int) -> None:
        """Record a frontier below the one that is recorded; durable when it returns. To be called before a log is cut.

        An entry that says more than the log holds would make the cut look like rot at the next start.

        Raises:
            DiskFault: the entry may say either; the log must not be cut.
        """
        old = self._entries.get(key)
        self._put(BootEntry(key, synced_op, synced_checksum, synced_op, old is not None and old.fenced))
        self._sync()

    def fence(self, key: GroupKey) -> None:
        """Mark a log whose sync failed; durable when it returns. Raises `DiskFault`."""
        self._put(attrs.evolve(self._entries.get(key) or BootEntry(key), fenced=True))
        self._sync()

    def trust(self, key: GroupKey) -> None:
        """The log of a marked group holds again what may have been acknowledged. Not synced: an older mark is doubt,
        which is allowed. Raises `DiskFault`."""
        old = self._entries.get(key)
        if old is not None and old.fenced:
            self._put(attrs.evolve(old, fenced=False))

    def remove(self, key: GroupKey) -> None:
        """Forget a deleted group. Raises `DiskFault`."""
        number = self._places.pop(key, None)
        if number is not None:
            del self._entries[key]
            self._free.append(number)
            self._write(ENTRIES_AT + number * ENTRY, bytes(ENTRY))

    def mark_clean(self) -> None:
        """The last write of a clean stop, after every log was synced and recorded: one sync covers entries and mark.

        Raises:
            DiskFault: the mark may be missing, which only makes the next start look harder.
        """
        self._sync()
        self.head = attrs.evolve(self.head, clean=True)
        self._sequence += 1
        slot = encode_record(Kind.BOOT, self._sequence, self.head.encode()).ljust(SLOT, b"\0")
        self._write((self._sequence - 1) % 2 * SLOT, slot)
        self._sync()

    def _put(self, entry: BootEntry) -> None:
        number = self._places.get(entry.key)
        if number is None:
            number = self._free.pop() if self._free else len(self._places)
            self._places[entry.key] = number
        self._entries[entry.key] = entry
        self._write(ENTRIES_AT + number * ENTRY, entry.encode())

    def _write(self, position: int, data: bytes) -> None:
        try:
            write_all(self._disk, self._handle, [data], position, len(data))
        except OSError as error:
            raise disk_fault(error, self.path, "write") from error

    def _sync(self) -> None:
        try:
            self._disk.fdatasync(self._handle)
        except OSError as error:
            raise disk_fault(error, self.path, SYNC) from error

    def close(self) -> None:
        """Close the file."""
        self._disk.close(self._handle)
