"""The message batch as a client writes and reads it, independent of the server's own codecs.

Layout: a batch header of 256 bytes, then message frames back to back, the payload before the user headers. Every frame
carries XXH3-64 of its bytes 8..end; the batch carries XXH3-64 of its own six fields and the checksums of all frames.
"""

import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

BATCH_HEADER = struct.Struct("<QQQQQQI")
"""partition id, base offset, base timestamp, origin timestamp, batch length, batch checksum, message count."""
BATCH_HEADER_SIZE = 256
FRAME_HEADER = struct.Struct("<Q16sIIIIQ")
"""checksum, message id, offset delta, timestamp delta, length of user headers, length of payload, reserved."""
FRAME_HEADER_SIZE = FRAME_HEADER.size
SEALED_FIELDS = struct.Struct("<QQQQQI")


class BadBatch(Exception):
    """Bytes that a server returned as a batch are not one; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message as polled."""

    offset: int
    id: bytes
    payload: bytes
    user_headers: bytes
    timestamp: int
    origin_timestamp: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One record of a poll reply: the header's fields and the messages behind it."""

    partition_id: int
    base_offset: int
    base_timestamp: int
    origin_timestamp: int
    length: int
    checksum: int
    frame_checksums: tuple[int, ...]
    messages: tuple[Message, ...]


def seal_batch(fields: tuple[int, int, int, int, int, int], frame_checksums: Sequence[int]) -> int:
    """Checksum over partition id, base offset, base and origin timestamp, length, count and all frame checksums."""
    state = xxhash.xxh3_64(SEALED_FIELDS.pack(*fields))
    for checksum in frame_checksums:
        state.update(checksum.to_bytes(8, "little"))
    return state.intdigest()


def encode_frame(
    payload: bytes, offset_delta: int, message_id: bytes | None = None, user_headers: bytes = b""
) -> bytes:
    """One message frame; the id is random unless it is given."""
    identity = message_id if message_id is not None else secrets.token_bytes(16)
    rest = struct.pack("<16sIIIIQ", identity, offset_delta, 0, len(user_headers), len(payload), 0)
    rest += payload + user_headers
    return xxhash.xxh3_64_intdigest(rest).to_bytes(8, "little") + rest


def encode_batch(
    payloads: Sequence[bytes], origin_timestamp: int = 1_000_000, ids: Sequence[bytes] | None = None
) -> bytes:
    """A batch ready to be sent: the three fields that the server fills in are zero."""
    frames = [encode_frame(payload, index, ids[index] if ids else None) for index, payload in enumerate(payloads)]
    length = BATCH_HEADER_SIZE + sum(map(len, frames))
    checksums = [int.from_bytes(frame[:8], "little") for frame in frames]
    seal = seal_batch((0, 0, 0, origin_timestamp, length, len(frames)), checksums)
    header = BATCH_HEADER.pack(0, 0, 0, origin_timestamp, length, seal, len(frames)).ljust(BATCH_HEADER_SIZE, b"\0")
    return header + b"".join(frames)


def decode_batches(data: bytes) -> list[Batch]:
    """All records of a poll reply, every checksum verified.

    Raises :class:`BadBatch` on a length that does not fit, reserved bytes that are not zero or a wrong checksum.
    """
    batches = []
    position = 0
    while position < len(data):
        batch = _decode_batch(data[position:])
        batches.append(batch)
        position += batch.length
    return batches


def _decode_batch(data: bytes) -> Batch:
    if len(data) < BATCH_HEADER_SIZE:
        raise BadBatch(f"{len(data)} bytes are left, too few for a batch header")
    partition, base, base_time, origin, length, checksum, count = BATCH_HEADER.unpack_from(data)
    if any(data[BATCH_HEADER.size : BATCH_HEADER_SIZE]):
        raise BadBatch("reserved bytes of the batch header are not zero")
    if not BATCH_HEADER_SIZE <= length <= len(data):
        raise BadBatch(f"batch length {length} of {len(data)} bytes")
    messages = []
    checksums = []
    position = BATCH_HEADER_SIZE
    while position < length:
        frame = FRAME_HEADER.unpack_from(data, position)
        seal, identity, delta, time_delta, headers_size, payload_size, reserved = frame
        end = position + FRAME_HEADER_SIZE + payload_size + headers_size
        if end > length or reserved:
            raise BadBatch(f"a frame at {position} ends at {end} of {length}, reserved field {reserved}")
        if xxhash.xxh3_64_intdigest(data[position + 8 : end]) != seal:
            raise BadBatch(f"wrong checksum of the frame at {position}")
        body = position + FRAME_HEADER_SIZE
        messages.append(
            Message(
                offset=base + delta,
                id=identity,
                payload=data[body : body + payload_size],
                user_headers=data[body + payload_size : end],
                timestamp=base_time,
                origin_timestamp=origin + time_delta,
            )
        )
        checksums.append(seal)
        position = end
    if len(messages) != count:
        raise BadBatch(f"{len(messages)} frames, the header says {count}")
    if seal_batch((partition, base, base_time, origin, length, count), checksums) != checksum:
        raise BadBatch("wrong checksum of the batch")
    return Batch(partition, base, base_time, origin, length, checksum, tuple(checksums), tuple(messages))
