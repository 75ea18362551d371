"""Bodies of frames between replicas: log suffixes, incarnations, groups not served.

Suffix (DoViewChange, StartView): prepare headers of 256 bytes from the highest op down; slot i describes op - i; a slot
that the sender does not hold is a blank (`PrepareHeader.blank`). Behind a DoViewChange's headers follow incarnations of
16 bytes each. A body that is not empty hashes to `checksum_body` of its header. Not served (Commit): entries of `group
u64, created_revision u64`. The manifest of a state transfer is `shardsrv.wire.manifest`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import attrs
import xxhash

from shardsrv.errors import DecodeError, EncodeError, SealMismatch
from shardsrv.wire.constants import HEADER_SIZE
from shardsrv.wire.cursor import Buffer, Cursor
from shardsrv.wire.prepare_header import PrepareHeader
from shardsrv.wire.replica_headers import MAX_REPLICAS, MAX_SUFFIX

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
