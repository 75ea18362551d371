"""Bodies of frames between replicas: log suffixes, incarnations, groups not served, the manifest of a state transfer.

Suffix (DoViewChange, StartView): prepare headers of 256 bytes from the highest op down; slot i describes op - i; a slot
that the sender does not hold is a blank (`PrepareHeader.blank`). Behind a DoViewChange's headers follow incarnations of
16 bytes each. A body that is not empty hashes to `checksum_body` of its header. Not served (Commit): entries of `group
u64, created_revision u64`. Manifest: "ISM1", `count u32, entry_length u8`, entries {`kind u8, frontier u64, length u64,
checksum u64`}, XXH3-64 of all before it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import attrs
import xxhash

from shardsrv.errors import DecodeError, EncodeError, SealMismatch
from shardsrv.wire.constants import HEADER_SIZE, MAX_OP
from shardsrv.wire.cursor import Buffer, Cursor
from shardsrv.wire.prepare_header import PrepareHeader
from shardsrv.wire.replica_headers import MAX_REPLICAS, MAX_SUFFIX

MANIFEST_MAGIC: Final = b"ISM1"
MANIFEST_ENTRY_SIZE: Final = 25
MAX_MANIFEST_ENTRIES: Final = 65_536
INCARNATION_SIZE: Final = 16


def verify_body(checksum_body: int, body: Buffer) -> None:
    """A body that is not empty hashes to its header's `checksum_body` (0 is no exemption); raises SealMismatch."""
    if len(body) and checksum_body != xxhash.xxh3_64_intdigest(body):
        raise SealMismatch("body", 16, checksum_body, xxhash.xxh3_64_intdigest(body))


def encode_suffix(headers: Sequence[PrepareHeader], incarnations: Sequence[int] = ()) -> bytes:
    """Headers from the highest op down, then incarnations (u128); raises EncodeError."""
    if len(headers) > MAX_SUFFIX or len(incarnations) > MAX_REPLICAS:
        raise EncodeError(what="suffix", value=(len(headers), len(incarnations)))
    tail = [incarnation.to_bytes(INCARNATION_SIZE, "little") for incarnation in incarnations]
    return b"".join([header.pack() for header in headers] + tail)


def decode_suffix(body: Buffer, op: int, incarnations: int = 0) -> tuple[tuple[PrepareHeader, ...], tuple[int, ...]]:
    """(headers, incarnations) of a suffix whose head is `op`.

    Raises DecodeError for the whole body: length, bad slot, op out of sequence, hash that does not match, timestamps
    that do not fall towards older ops, a held neighbour that is not the parent.
    """
    view = memoryview(body)
    size = len(view) - INCARNATION_SIZE * incarnations
    count = size // HEADER_SIZE
    if size < 0 or size % HEADER_SIZE or count > MAX_SUFFIX or count > op:
        raise DecodeError("suffix", 0, f"0..{min(MAX_SUFFIX, op)} headers, {incarnations} incarnations", len(view))
    headers = tuple([_slot(view[i * HEADER_SIZE : (i + 1) * HEADER_SIZE], op - i) for i in range(count)])
    for child, parent in pairwise(headers):
        if child.is_blank or parent.is_blank:
            continue
        if child.parent != parent.checksum or child.timestamp <= parent.timestamp:
            raise DecodeError("suffix chain", (op - child.op) * HEADER_SIZE, parent.checksum, child.parent)
    _check_timestamps(headers)
    cursor = Cursor(view[size:])
    return headers, tuple([cursor.u128() for _ in range(incarnations)])


def _slot(view: memoryview, op: int) -> PrepareHeader:
    header = PrepareHeader.unpack(view)
    if header.op != op:
        raise DecodeError("suffix op", 176, op, header.op)
    if not header.is_blank:
        header.validate()
    return header


def _check_timestamps(headers: Sequence[PrepareHeader]) -> None:
    """Over blanks too: an older op never has a later or equal time."""
    held = [header for header in headers if not header.is_blank]
    for newer, older in pairwise(held):
        if newer.timestamp <= older.timestamp:
            raise DecodeError("suffix timestamps", 192, f"below {newer.timestamp}", older.timestamp)


@attrs.frozen
class GroupLife:
    """One life of a partition's group."""

    group: int
    created_revision: int


def encode_not_served(groups: Sequence[GroupLife]) -> bytes:
    """The body of a heartbeat that names groups led but not served."""
    return b"".join([life.group.to_bytes(8, "little") + life.created_revision.to_bytes(8, "little") for life in groups])


def decode_not_served(body: Buffer) -> tuple[GroupLife, ...]:
    """The groups that a heartbeat names; raises DecodeError."""
    if len(body) % 16:
        raise DecodeError("groups not served", 0, "a multiple of 16 bytes", len(body))
    cursor = Cursor(body)
    return tuple([GroupLife(cursor.u64(), cursor.u64()) for _ in range(len(body) // 16)])


class ArtifactKind(enum.IntEnum):
    METADATA_SNAPSHOT = 0
    CLIENT_TABLE = 1
    SEGMENT = 2
    CONSUMER_OFFSETS = 3


@attrs.frozen
class Artifact:
    """One thing to transfer: `length` bytes whose XXH3-64 is `checksum`; what `frontier` counts depends on the kind."""

    kind: int
    frontier: int
    length: int
    checksum: int


def encode_manifest(artifacts: Sequence[Artifact]) -> bytes:
    """The manifest of a transfer; raises EncodeError."""
    if len(artifacts) > MAX_MANIFEST_ENTRIES:
        raise EncodeError(what="manifest", value=len(artifacts))
    out = bytearray(MANIFEST_MAGIC)
    out += len(artifacts).to_bytes(4, "little")
    out.append(MANIFEST_ENTRY_SIZE)
    for artifact in artifacts:
        out.append(artifact.kind)
        for value in (artifact.frontier, artifact.length, artifact.checksum):
            out += value.to_bytes(8, "little")
    return bytes(out) + xxhash.xxh3_64_intdigest(out).to_bytes(8, "little")


def decode_manifest(body: Buffer) -> tuple[Artifact, ...]:
    """The artifacts of a manifest; longer entries of a later release are accepted. Raises DecodeError."""
    cursor = Cursor(body)
    if bytes(cursor.take(4)) != MANIFEST_MAGIC:
        raise DecodeError("manifest magic", 0, MANIFEST_MAGIC, bytes(memoryview(body)[:4]))
    count, entry_length = cursor.u32(), cursor.u8()
    if entry_length < MANIFEST_ENTRY_SIZE or count > MAX_MANIFEST_ENTRIES:
        raise DecodeError("manifest", 4, f"at most {MAX_MANIFEST_ENTRIES} entries of {MANIFEST_ENTRY_SIZE}", count)
    entries = Cursor(cursor.take(count * entry_length))
    end = cursor.position
    stored = cursor.u64()
    if cursor.remaining:
        raise DecodeError("manifest", cursor.position, "the end", f"{cursor.remaining} more bytes")
    if stored != xxhash.xxh3_64_intdigest(memoryview(body)[:end]):
        raise SealMismatch("manifest", end, stored, xxhash.xxh3_64_intdigest(memoryview(body)[:end]))
    return tuple([_artifact(Cursor(entries.take(entry_length)), index) for index in range(count)])


def _artifact(cursor: Cursor, index: int) -> Artifact:
    artifact = Artifact(cursor.u8(), cursor.u64(), cursor.u64(), cursor.u64())
    if artifact.kind > ArtifactKind.CONSUMER_OFFSETS or max(artifact.frontier, artifact.length) > MAX_OP:
        raise DecodeError(f"manifest entry {index}", 0, "a known kind within bounds", artifact.kind)
    return artifact
