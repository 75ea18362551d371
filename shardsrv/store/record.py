"""The slot record: the one format below every pair of slots (superblock, partition checkpoint, boot head), and its
rule.

Layout, little-endian; the length must be exact (a file) or the rest of the slot zero (a slot in a table):

    Off  Len Field
      0    4 magic u32 = 0x53424C4B
      4    2 version u16 = 1
      6    2 kind u16: 0 superblock state, 1 partition checkpoint, 2 boot head
      8    8 sequence u64, from 1
     16    8 parent u64 = 0
     24    4 payload length u32
     28    n payload
   28+n    8 XXH3-64 of everything before

Slots are written in turn, a first: slot a holds odd sequences, slot b even ones, and the two differ by one. Where a
lost slot must be told from one never written, the first write fills both.

Invariants: a slot is absent, valid or corrupt, and two slots give exactly one of Empty, Present, Unreadable. A corrupt
slot makes the pair Unreadable even beside a valid one: renames are atomic, so bad bytes are rot of a record that was
durable once, and nobody knows whether it was the newer. The same holds for a slot that is gone although a later record
than the first was written, and for sequences that no writing in turn gives. Pure: no disk in here.
"""

from __future__ import annotations

import enum
import struct
from typing import Final

import attrs

from shardsrv._core import xxh3
from shardsrv.errors import EncodeError

MAGIC: Final = 0x53424C4B
VERSION: Final = 1
OVERHEAD: Final = 36
_HEADER: Final = struct.Struct("<IHHQQI")
_HASH: Final = struct.Struct("<Q")
assert _HEADER.size + _HASH.size == OVERHEAD


class Kind(enum.IntEnum):
    """What the payload is."""

    SUPERBLOCK = 0
    CHECKPOINT = 1
    BOOT = 2


@attrs.frozen
class Absent:
    """Missing, of length 0, or all zero: never written."""


@attrs.frozen
class Valid:
    """A record whose hash, kind and length hold."""

    sequence: int
    payload: bytes


@attrs.frozen
class Corrupt:
    """Written once, and not a record now. `version` when magic is right and the version is not ours."""

    reason: str
    version: int | None = None


Slot = Absent | Valid | Corrupt


@attrs.frozen
class Empty:
    """Both slots absent."""


@attrs.frozen
class Present:
    """The newest record, and which slot (0 or 1) holds it."""

    payload: bytes
    sequence: int
    slot: int = 0


@attrs.frozen
class Unreadable:
    """At least one slot is corrupt. `slot` is the first such one; `version` when an unknown version is the cause."""

    version: int | None = None
    slot: int = 0
    reason: str = ""


Outcome = Empty | Present | Unreadable


def encode_record(kind: Kind, sequence: int, payload: bytes) -> bytes:
    """One record. Raises `EncodeError` when the sequence is not in 1..2**62."""
    if not 0 < sequence < 1 << 62:
        raise EncodeError("", "sequence", sequence)
    head = _HEADER.pack(MAGIC, VERSION, kind, sequence, 0, len(payload)) + payload
    return head + _HASH.pack(xxh3(head))


def is_zero(data: bytes | memoryview) -> bool:
    """True when every byte is zero. A comparison: to strip a slot of zeros byte by byte is what a start would mostly
    do."""
    return data == bytes(len(data))


def decode_slot(data: bytes | None, kind: Kind, *, padded: bool = False) -> Slot:
    """Classify one slot. ``padded``: the slot is larger than the record, and what follows it must be zero."""
    if data is None or is_zero(data):
        return Absent()
    if len(data) < OVERHEAD:
        return Corrupt(f"{len(data)} bytes, a record has at least {OVERHEAD}")
    magic, version, found_kind, sequence, parent, length = _HEADER.unpack_from(data)
    if magic != MAGIC:
        return Corrupt(f"magic 0x{magic:08x} instead of 0x{MAGIC:08x}")
    if version != VERSION:
        return Corrupt(f"version {version} instead of {VERSION}", version)
    end = OVERHEAD + length
    if end > len(data) or (end < len(data) and not padded):
        return Corrupt(f"payload of {length} bytes in a slot of {len(data)} bytes")
    stored, computed = _HASH.unpack_from(data, end - 8)[0], xxh3(memoryview(data)[: end - 8])
    if stored != computed:
        return Corrupt(f"hash 0x{computed:016x} instead of the stored 0x{stored:016x}")
    if not is_zero(data[end:]):
        return Corrupt("bytes behind the record are not zero")
    if found_kind != kind or sequence == 0 or parent != 0:
        return Corrupt(f"kind {found_kind}, sequence {sequence}, parent {parent} where kind {int(kind)} is expected")
    return Valid(sequence, bytes(data[28 : end - 8]))


def choose(a: Slot, b: Slot) -> Outcome:
    """The outcome of a pair of slots (S0-08, S0-09): a corrupt or missing slot decides; else the highest sequence."""
    for number, slot in enumerate((a, b)):
        if isinstance(slot, Corrupt):
            return Unreadable(slot.version, number, slot.reason)
    if isinstance(a, Absent) and isinstance(b, Absent):
        return Empty()
    if isinstance(a, Absent):
        assert isinstance(b, Valid)
        return Unreadable(None, 0, f"missing, although record {b.sequence} lies in the other slot")
    assert isinstance(a, Valid)
    if isinstance(b, Absent):
        if a.sequence == 1:
            return Present(a.payload, a.sequence, 0)
        return Unreadable(None, 1, f"missing, although record {a.sequence} lies in the other slot")
    assert isinstance(b, Valid)
    if a.sequence % 2 == 0 or abs(a.sequence - b.sequence) != 1:
        return Unreadable(None, 1, f"records {a.sequence} and {b.sequence} are not two that follow each other")
    return Present(a.payload, a.sequence, 0) if a.sequence > b.sequence else Present(b.payload, b.sequence, 1)
