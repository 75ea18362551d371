"""The segment of a prepare log: its header, its in-memory facts, and the rule that ends it.

Segment header, 256 bytes, little-endian:

    Off Len Field
      0   8 magic "SHRDSEG1"
      8   2 format version u16 = 1
     10   2 header length u16 = 256
     12   4 zero
     16  16 cluster
     32   8 group u64
     40   8 created_revision u64
     48   8 first_op u64
     56  16 parent u128: identity of first_op - 1 (0 for op 1)
     72   8 base_offset u64: next message offset before first_op (0 on metadata)
     80 168 zero
    248   8 XXH3-64 of bytes 0..248

A segment ends with the entry that makes its length reach the segment size, and with a purge: what lies before a purge
can then be unlinked as whole files, also on a full disk. The rule depends on stored bytes alone, so replicas roll
alike.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import attrs

from shardsrv._core import xxh3
from shardsrv.errors import Damaged, UnsupportedVersion
from shardsrv.store.faults import LogForeign
from shardsrv.store.index import SparseIndex

MAGIC: Final = b"SHRDSEG1"
VERSION: Final = 1
SEGMENT_HEADER: Final = 256
SEND_MESSAGES: Final = 160
PURGE_PARTITION: Final = 192
_LAYOUT: Final = struct.Struct("<8sHHI16sQQQQQQ168s")
_HASH: Final = struct.Struct("<Q")
assert _LAYOUT.size == SEGMENT_HEADER - 8


class Position(NamedTuple):
    """A place in a log: the first op of a segment and a byte in its file. Valid until it is dropped or cut."""

    segment: int
    byte: int


@attrs.frozen
class GroupIdentity:
    """Whose log it is: what every segment header repeats."""

    cluster: bytes
    group: int
    created_revision: int


@attrs.frozen
class SegmentHeader:
    """The facts of a segment header that are not the identity."""

    first_op: int
    parent: int
    base_offset: int

    def encode(self, identity: GroupIdentity) -> bytes:
        """The 256 bytes."""
        head = _LAYOUT.pack(
            MAGIC,
            VERSION,
            SEGMENT_HEADER,
            0,
            identity.cluster,
            identity.group,
            identity.created_revision,
            self.first_op,
            self.parent,
            0,
            self.base_offset,
            b"",
        )
        return head + _HASH.pack(xxh3(head))


def decode_header(data: bytes, path: str = "") -> tuple[GroupIdentity, SegmentHeader]:
    """Read a segment header.

    Raises:
        UnsupportedVersion: a version of another release (seed row S0-32).
        Damaged: magic, hash or a constant field do not hold, or there are fewer than 256 bytes.
    """
    if len(data) < SEGMENT_HEADER:
        raise Damaged(path, 0, None, SEGMENT_HEADER, len(data))
    fields = _LAYOUT.unpack_from(data)
    magic, version, length, zero, cluster, group, revision, first_op, parent, upper, base, rest = fields
    if magic != MAGIC:
        raise Damaged(path, 0, None, MAGIC, magic)
    stored, computed = _HASH.unpack_from(data, 248)[0], xxh3(data[:248])
    if stored != computed:
        raise Damaged(path, 248, None, stored, computed)
    if version != VERSION:
        raise UnsupportedVersion("log segment", path, version, VERSION, VERSION)
    if length != SEGMENT_HEADER or zero or upper or rest.strip(b"\0") or max(first_op, base) >= 1 << 62:
        raise Damaged(path, 8, None, "constant fields and numbers below 2**62", data[8:16])
    return GroupIdentity(cluster, group, revision), SegmentHeader(first_op, parent, base)


def check_identity(found: GroupIdentity, expected: GroupIdentity, path: str) -> None:
    """Raises `LogForeign` naming the first field that differs."""
    for field in ("cluster", "group", "created_revision"):
        if getattr(found, field) != getattr(expected, field):
            raise LogForeign(path, getattr(expected, field), getattr(found, field), field)


def ends_segment(length: int, segment_size: int, operation: int) -> bool:
    """True when the entry with ``operation`` that brought the file to ``length`` bytes is the last of its segment."""
    return length >= segment_size or operation == PURGE_PARTITION


@attrs.define(slots=True, eq=False)
class Segment:
    """One segment of an open log. `size` counts flushed bytes only: it is the end for readers; `synced` is the
    durable part."""

    path: str
    header: SegmentHeader
    size: int = 0
    first_timestamp: int = 0
    index: SparseIndex | None = None
    handle: int = -1
    synced: int = 0

    @property
    def first_op(self) -> int:
        return self.header.first_op
