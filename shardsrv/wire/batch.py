"""Message batches: one layout for what is sent, what is stored and what a poll returns. The reference implementation.

A batch is a 256-byte header and message frames back to back. Header, offset: 0 partition_id u64, 8 base_offset u64, 16
base_timestamp u64, 24 origin_timestamp u64, 32 batch_length u64 (header included), 40 batch_checksum u64, 48
message_count u32, 52..256 zero. Frame, offset: 0 checksum u64 (XXH3-64 of frame bytes 8..end), 8 message id u128, 24
offset_delta u32, 28 timestamp_delta u32, 32 user_headers_length u32, 36 payload_length u32, 40 u64 zero, 48 payload,
then user headers. The batch checksum is XXH3-64 over the first five header fields, message_count and the stored
checksum of every frame. Invariants: frames tile the batch exactly and are as many as message_count says.

The path of a message runs through the compiled twin of this module; the two are held together by tests.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import attrs
import xxhash

from shardsrv.errors import BatchError, EncodeError
from shardsrv.wire.constants import HEADER_SIZE
from shardsrv.wire.cursor import Buffer
from shardsrv.wire.error_codes import ErrorCode

FRAME_HEADER_SIZE: Final = 48
MAX_PAYLOAD_SIZE: Final = 64_000_000
"""Bytes of one payload; clients enforce it, the server's limit is the frame."""

_HEADER: Final = struct.Struct("<QQQQQQI204s")
_HASHED: Final = struct.Struct("<QQQQQI")
_FRAME: Final = struct.Struct("<Q16sIIIIQ")
_LENGTHS: Final = struct.Struct("<IIQ")
_U64: Final = struct.Struct("<Q")


@attrs.frozen
class BatchHeader:
    """Timestamps in microseconds, `batch_length` in bytes with the header."""

    partition_id: int = 0
    base_offset: int = 0
    base_timestamp: int = 0
    origin_timestamp: int = 0
    batch_length: int = HEADER_SIZE
    batch_checksum: int = 0
    message_count: int = 0

    def pack(self) -> bytes:
        """256 bytes; raises EncodeError."""
        try:
            return _HEADER.pack(*attrs.astuple(self), b"")
        except struct.error as error:
            raise EncodeError(str(error), what="batch header", value=self) from None

    @classmethod
    def unpack(cls, buffer: Buffer) -> BatchHeader:
        """Reads the first 256 bytes; raises BatchError: too short, reserved bytes set, batch_length below 256."""
        view = memoryview(buffer)
        if len(view) < HEADER_SIZE:
            raise BatchError(ErrorCode.INVALID_COMMAND, "batch header", 0, HEADER_SIZE, len(view))
        *fields, reserved = _HEADER.unpack_from(view)
        if any(reserved):
            raise BatchError(ErrorCode.INVALID_COMMAND, "reserved bytes of the batch header", 52, "zero", reserved)
        header = cls(*fields)
        if header.batch_length < HEADER_SIZE:
            raise BatchError(ErrorCode.INVALID_COMMAND, "batch_length", 32, HEADER_SIZE, header.batch_length)
        return header


@attrs.frozen
class Message:
    """One message frame. `id` is a u128, `user_headers` the raw bytes (see `shardsrv.wire.typed_values`)."""

    id: int = 0
    payload: bytes = b""
    user_headers: bytes = b""
    offset_delta: int = 0
    timestamp_delta: int = 0
    checksum: int = 0

    def pack(self) -> bytes:
        """The frame with the checksum that this object holds; raises EncodeError."""
        try:
            return self._pack(self.checksum)
        except (struct.error, OverflowError) as error:
            raise EncodeError(str(error), what="message frame", value=self.id) from None

    def sealed(self) -> Message:
        """The same message with its checksum computed."""
        return attrs.evolve(self, checksum=xxhash.xxh3_64_intdigest(self.pack()[8:]))

    def _pack(self, checksum: int) -> bytes:
        head = _FRAME.pack(
            checksum,
            self.id.to_bytes(16, "little"),
            self.offset_delta,
            self.timestamp_delta,
            len(self.user_headers),
            len(self.payload),
            0,
        )
        return head + self.payload + self.user_headers


@attrs.frozen
class Batch:
    header: BatchHeader
    messages: tuple[Message, ...]

    @classmethod
    def build(cls, messages: tuple[Message, ...], origin_timestamp: int) -> Batch:
        """A batch as a client sends it: deltas and checksums made, the server's fields zero."""
        sealed = tuple([attrs.evolve(message, offset_delta=i).sealed() for i, message in enumerate(messages)])
        length = HEADER_SIZE + sum(len(message.pack()) for message in sealed)
        header = BatchHeader(origin_timestamp=origin_timestamp, batch_length=length, message_count=len(sealed))
        return cls(attrs.evolve(header, batch_checksum=checksum_of(header, sealed)), sealed)

    def encode(self) -> bytes:
        """The bytes with the checksums that the objects hold; raises EncodeError."""
        return self.header.pack() + b"".join([message.pack() for message in self.messages])

    @classmethod
    def decode(cls, buffer: Buffer) -> Batch:
        """The one batch that `buffer` is exactly; structure only, see `verify_batch`. Raises BatchError."""
        view = memoryview(buffer)
        header = BatchHeader.unpack(view)
        if header.batch_length != len(view):
            raise BatchError(ErrorCode.INVALID_COMMAND, "batch_length", 32, len(view), header.batch_length)
        messages = []
        for start, end in frames_of(view, header.message_count):
            messages.append(_unpack_frame(view[start:end]))
        return cls(header, tuple(messages))

    def stamped(self, partition_id: int, base_offset: int, base_timestamp: int) -> Batch:
        """The batch as stored: the server's fields written, the batch checksum made again."""
        header = attrs.evolve(
            self.header, partition_id=partition_id, base_offset=base_offset, base_timestamp=base_timestamp
        )
        return Batch(attrs.evolve(header, batch_checksum=checksum_of(header, self.messages)), self.messages)

    def sliced(self, messages: tuple[Message, ...]) -> Batch:
        """The batch with only `messages` of its own: length, count and checksum made again, offsets unchanged."""
        length = HEADER_SIZE + sum(len(message.pack()) for message in messages)
        header = attrs.evolve(self.header, batch_length=length, message_count=len(messages))
        return Batch(attrs.evolve(header, batch_checksum=checksum_of(header, messages)), messages)


def _unpack_frame(frame: memoryview) -> Message:
    checksum, identifier, offset_delta, timestamp_delta, _headers, payload_length, _ = _FRAME.unpack_from(frame)
    payload_end = FRAME_HEADER_SIZE + payload_length
    return Message(
        int.from_bytes(identifier, "little"),
        bytes(frame[FRAME_HEADER_SIZE:payload_end]),
        bytes(frame[payload_end:]),
        offset_delta,
        timestamp_delta,
        checksum,
    )


def frames_of(batch: Buffer, message_count: int) -> Iterator[tuple[int, int]]:
    """(start, end) of every frame, in bytes from the start of the batch, each checked to fit.

    Raises BatchError at the frame that does not: past the end, reserved field set, a number other than message_count.
    """
    view = memoryview(batch)
    position, end, found = HEADER_SIZE, len(view), 0
    while position < end:
        if end - position < FRAME_HEADER_SIZE:
            left = end - position
            raise BatchError(ErrorCode.INVALID_COMMAND, "message frame", position, FRAME_HEADER_SIZE, left)
        headers_length, payload_length, reserved = _LENGTHS.unpack_from(view, position + 32)
        if reserved:
            raise BatchError(ErrorCode.INVALID_COMMAND, "reserved field of a frame", position + 40, 0, reserved)
        length = FRAME_HEADER_SIZE + headers_length + payload_length
        if length > end - position:
            raise BatchError(ErrorCode.INVALID_COMMAND, "frame lengths", position + 32, end - position, length)
        found += 1
        yield position, position + length
        position += length
    if found != message_count:
        raise BatchError(ErrorCode.INVALID_COMMAND, "message_count", 48, message_count, found)


def checksum_of(header: BatchHeader, messages: tuple[Message, ...]) -> int:
    """The batch checksum over the header's fields and the checksums that the messages hold."""
    return _checksum(header, [message.checksum for message in messages])


def _checksum(header: BatchHeader, frame_checksums: list[int]) -> int:
    state = xxhash.xxh3_64()
    state.update(
        _HASHED.pack(
            header.partition_id,
            header.base_offset,
            header.base_timestamp,
            header.origin_timestamp,
            header.batch_length,
            header.message_count,
        )
    )
    for checksum in frame_checksums:
        state.update(_U64.pack(checksum))
    return state.intdigest()


def verify_batch(buffer: Buffer) -> BatchHeader:
    """Checks one batch whole: structure, every frame checksum, the batch checksum. Raises BatchError."""
    view = memoryview(buffer)
    header = BatchHeader.unpack(view)
    if header.batch_length != len(view):
        raise BatchError(ErrorCode.INVALID_COMMAND, "batch_length", 32, len(view), header.batch_length)
    frame_checksums = []
    for start, end in frames_of(view, header.message_count):
        stored = _U64.unpack_from(view, start)[0]
        computed = xxhash.xxh3_64_intdigest(view[start + 8 : end])
        if stored != computed:
            raise BatchError(ErrorCode.INVALID_MESSAGE_CHECKSUM, "frame checksum", start, stored, computed)
        frame_checksums.append(stored)
    computed = _checksum(header, frame_checksums)
    if computed != header.batch_checksum:
        raise BatchError(ErrorCode.INVALID_BATCH_CHECKSUM, "batch checksum", 40, header.batch_checksum, computed)
    return header


def verify_sent_batch(buffer: Buffer, messages_count: int) -> BatchHeader:
    """`verify_batch`, and what is asked of a batch as sent: at least one message, as many as the request says, the
    server's three fields zero. Raises BatchError."""
    header = verify_batch(buffer)
    if header.message_count == 0 or header.message_count != messages_count:
        raise BatchError(ErrorCode.INVALID_COMMAND, "message_count", 48, messages_count, header.message_count)
    if header.partition_id or header.base_offset or header.base_timestamp:
        raise BatchError(ErrorCode.INVALID_COMMAND, "fields of the server", 0, 0, header.base_offset)
    return header


def batches_of(records: Buffer) -> Iterator[memoryview]:
    """The batches that lie back to back in `records`, each as a view; raises BatchError where one does not fit."""
    view = memoryview(records)
    position = 0
    while position < len(view):
        header = BatchHeader.unpack(view[position:])
        left = len(view) - position
        if header.batch_length > left:
            raise BatchError(ErrorCode.INVALID_COMMAND, "batch_length", position + 32, left, header.batch_length)
        yield view[position : position + header.batch_length]
        position += header.batch_length
