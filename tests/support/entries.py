"""The stored entry and the poll in plain Python: a second opinion on the compiled core, slow and direct.

Layout of the 256-byte header, field by field, as docs/architecture.md has it; nothing here calls the server's code.
"""

import struct
from collections.abc import Sequence

import xxhash

from tests.support.batches import BATCH_HEADER, BATCH_HEADER_SIZE, FRAME_HEADER, FRAME_HEADER_SIZE, seal_batch

SEND_MESSAGES = 160
STORE_OFFSET = 161
PREPARE_HEADER = struct.Struct("<Q8xQ8x16sIIIBB66x16sQ8xQQQQQQB7xQIQQIB7x")
"""checksum, checksum_body, cluster, size, view, release, command, replica, client, parent, request_checksum and its
upper half (the session), op, commit, timestamp, request, operation, group, user_id, created_revision, stored_seal,
born_view, durability."""

CLUSTER = bytes(range(16))
CLIENT = bytes(range(100, 116))
FIELDS: dict[str, object] = {
    "cluster": CLUSTER,
    "view": 3,
    "replica": 2,
    "client": CLIENT,
    "parent": 0,
    "request_checksum": 0,
    "request_checksum_high": 6,
    "op": 1,
    "commit": 0,
    "timestamp": 1_700_000_000_000_000,
    "request": 7,
    "operation": STORE_OFFSET,
    "group": 5,
    "user_id": 4,
    "created_revision": 9,
    "durability": 1,
}


def entry(body: bytes, checksum_body: int, **changed: object) -> bytes:
    """Header and body of a prepare as stored, sealed here; ``changed`` overrides `FIELDS`."""
    field = {**FIELDS, **changed}
    unsealed = bytearray(
        PREPARE_HEADER.pack(
            0,
            checksum_body,
            field["cluster"],
            256 + len(body),
            field["view"],
            0,
            6,
            field["replica"],
            field["client"],
            field["parent"],
            field["request_checksum"],
            field["request_checksum_high"],
            field["op"],
            field["commit"],
            field["timestamp"],
            field["request"],
            field["operation"],
            field["group"],
            field["user_id"],
            field["created_revision"],
            0,
            field["view"],
            field["durability"],
        )
    )
    return reseal(unsealed) + body


def reseal(header: bytes | bytearray) -> bytes:
    """The 256 bytes with identity and stored seal made again, whatever the other fields hold."""
    sealed = bytearray(header)
    sealed[0:16] = identity(sealed).to_bytes(16, "little")
    sealed[236:244] = stored_seal(sealed).to_bytes(8, "little")
    return bytes(sealed)


def identity(header: bytes | bytearray) -> int:
    """XXH3-64 with checksum, view and stored seal zero."""
    copy = bytearray(header[:256])
    copy[0:16] = bytes(16)
    copy[52:56] = bytes(4)
    copy[236:244] = bytes(8)
    return xxhash.xxh3_64_intdigest(bytes(copy))


def stored_seal(header: bytes | bytearray) -> int:
    """XXH3-64 with the stored seal zero."""
    copy = bytearray(header[:256])
    copy[236:244] = bytes(8)
    return xxhash.xxh3_64_intdigest(bytes(copy))


def stamped(batch: bytes, partition_id: int, base_offset: int, base_timestamp: int) -> bytes:
    """A sent batch with the server's fields, checksum made again."""
    _, _, _, origin, length, _, count = BATCH_HEADER.unpack_from(batch)
    fields = (partition_id, base_offset, base_timestamp, origin, length, count)
    seal = seal_batch(fields, [int.from_bytes(frame[:8], "little") for frame in frames_of(batch)])
    header = BATCH_HEADER.pack(partition_id, base_offset, base_timestamp, origin, length, seal, count)
    return header.ljust(BATCH_HEADER_SIZE, b"\0") + batch[BATCH_HEADER_SIZE:]


def frames_of(batch: bytes) -> list[bytes]:
    """The message frames of a batch, in order."""
    frames = []
    position = BATCH_HEADER_SIZE
    while position < len(batch):
        fields = FRAME_HEADER.unpack_from(batch, position)
        end = position + FRAME_HEADER_SIZE + fields[4] + fields[5]
        frames.append(batch[position:end])
        position = end
    return frames


def cut(batch: bytes, first: int, until: int) -> bytes:
    """The record of frames first..until of a stored batch, as a poll returns it."""
    partition_id, base_offset, base_timestamp, origin, _, _, _ = BATCH_HEADER.unpack_from(batch)
    frames = frames_of(batch)[first:until]
    length = BATCH_HEADER_SIZE + sum(map(len, frames))
    fields = (partition_id, base_offset, base_timestamp, origin, length, len(frames))
    seal = seal_batch(fields, [int.from_bytes(frame[:8], "little") for frame in frames])
    header = BATCH_HEADER.pack(partition_id, base_offset, base_timestamp, origin, length, seal, len(frames))
    return header.ljust(BATCH_HEADER_SIZE, b"\0") + b"".join(frames)


def poll(batches: Sequence[bytes], offset: int, count: int, by_time: bool = False) -> bytes:
    """The records that a poll over stored batches returns."""
    records = []
    for batch in batches:
        base, time, messages = (
            BATCH_HEADER.unpack_from(batch)[1],
            BATCH_HEADER.unpack_from(batch)[2],
            len(frames_of(batch)),
        )
        first = (0 if time >= offset else messages) if by_time else min(max(offset - base, 0), messages)
        until = min(messages, first + count)
        if first < until:
            records.append(cut(batch, first, until))
            count -= until - first
    return b"".join(records)


def log_of(bodies: Sequence[tuple[int, bytes]], parent: int = 0, first_op: int = 1) -> bytes:
    """Entries back to back, chained: (operation, body) for each op from ``first_op`` on."""
    log = b""
    for op, (operation, body) in enumerate(bodies, first_op):
        seal = BATCH_HEADER.unpack_from(body)[5] if operation == SEND_MESSAGES else xxhash.xxh3_64_intdigest(body)
        one = entry(body, seal, op=op, parent=parent, operation=operation, commit=op - 1, timestamp=1_000_000 + op)
        parent = int.from_bytes(one[:8], "little")
        log += one
    return log


def send_body(batch: bytes, stream: bytes, topic: bytes, partitioning: bytes, count: int) -> bytes:
    """A send request's body around a batch."""
    metadata = stream + topic + partitioning + struct.pack("<I", count)
    return struct.pack("<I", len(metadata)) + metadata + batch
