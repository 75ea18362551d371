"""Primitive fields: names, identifiers, consumers, partitionings, polling strategies, optional partitions.

Layouts: name `u8+N`, N 1..255, UTF-8; identifier `u8 kind, u8 length, value` (1: u32, 2: name); consumer `u8 kind` and
identifier; optional partition `u8 flag, u32` (the number is there even when absent); partitioning `u8 kind, u8 length,
value`; polling strategy `u8 kind, u64 value`. Identifiers are plain values: an int is numeric, a str is a name.
"""

from __future__ import annotations

from typing import Annotated, Final

import attrs
import xxhash

from shardsrv.errors import DecodeError, EncodeError
from shardsrv.wire.codec import (
    U8_CODEC,
    U16_CODEC,
    U32_CODEC,
    U64_CODEC,
    Blob,
    Enum8,
    Flag,
    Float32,
    Rest,
    Text,
)
from shardsrv.wire.constants import AckLevel, ConsumerKind, PartitioningKind, PollingKind
from shardsrv.wire.cursor import Cursor

Identifier = int | str
"""A numeric id (u32, 0-based) or a name (1..255 bytes of UTF-8, matched exactly)."""

NUMERIC: Final = 1
NAMED: Final = 2
NAME_CODEC: Final = Text(1, shortest=1)


class IdentifierCodec:
    minimum = 3

    def read(self, cursor: Cursor, what: str) -> Identifier:
        offset = cursor.position
        kind = cursor.u8()
        if kind == NAMED:
            return NAME_CODEC.read(cursor, what)
        if kind != NUMERIC:
            raise DecodeError(what, offset, "identifier kind 1 or 2", kind)
        length = cursor.u8()
        if length != 4:
            raise DecodeError(what, offset + 1, "numeric identifier of 4 bytes", length)
        return cursor.u32()

    def write(self, out: bytearray, value: Identifier, what: str) -> None:
        if isinstance(value, str):
            out.append(NAMED)
            NAME_CODEC.write(out, value, what)
        else:
            out += b"\x01\x04"
            U32_CODEC.write(out, value, what)


class IdBytes:
    """A client id: 16 bytes as on the wire (a little-endian u128)."""

    minimum = 16

    def read(self, cursor: Cursor, what: str) -> bytes:
        return bytes(cursor.take(16))

    def write(self, out: bytearray, value: bytes, what: str) -> None:
        if len(value) != 16:
            raise EncodeError(what=what, value=value)
        out += value


@attrs.frozen
class Consumer:
    """A plain consumer or a consumer group, by id or name."""

    kind: ConsumerKind
    id: Identifier

    def offset_key(self) -> int:
        """The u32 key of a plain consumer's stored offset: its number, or XXH32 of its name."""
        return self.id if isinstance(self.id, int) else xxhash.xxh32_intdigest(self.id.encode("utf-8"))


class ConsumerCodec:
    minimum = 4

    def read(self, cursor: Cursor, what: str) -> Consumer:
        return Consumer(CONSUMER_KIND_CODEC.read(cursor, what), IDENTIFIER_CODEC.read(cursor, what))

    def write(self, out: bytearray, value: Consumer, what: str) -> None:
        CONSUMER_KIND_CODEC.write(out, value.kind, what)
        IDENTIFIER_CODEC.write(out, value.id, what)


class OptionalPartitionCodec:
    """`u8 flag` (1 present, anything else absent), then a u32 in either case."""

    minimum = 5

    def read(self, cursor: Cursor, what: str) -> int | None:
        raw = cursor.take(5)
        return int.from_bytes(raw[1:], "little") if raw[0] == 1 else None

    def write(self, out: bytearray, value: int | None, what: str) -> None:
        out.append(0 if value is None else 1)
        U32_CODEC.write(out, value or 0, what)


@attrs.frozen
class Partitioning:
    """How a send picks its partition: `value` is None (balanced), the partition id (int) or the key (1..255 bytes)."""

    kind: PartitioningKind
    value: int | bytes | None = None

    @classmethod
    def to_partition(cls, partition: int) -> Partitioning:
        return cls(PartitioningKind.PARTITION_ID, partition)


class PartitioningCodec:
    minimum = 2

    def read(self, cursor: Cursor, what: str) -> Partitioning:
        offset = cursor.position
        kind = PARTITIONING_KIND_CODEC.read(cursor, what)
        if kind is PartitioningKind.MESSAGES_KEY:
            return Partitioning(kind, MESSAGES_KEY_CODEC.read(cursor, what))
        length, wanted = cursor.u8(), 4 if kind is PartitioningKind.PARTITION_ID else 0
        if length != wanted:
            raise DecodeError(what, offset + 1, wanted, length)
        return Partitioning(kind, cursor.u32() if wanted else None)

    def write(self, out: bytearray, value: Partitioning, what: str) -> None:
        PARTITIONING_KIND_CODEC.write(out, value.kind, what)
        if value.kind is PartitioningKind.MESSAGES_KEY and isinstance(value.value, bytes):
            MESSAGES_KEY_CODEC.write(out, value.value, what)
        elif value.kind is PartitioningKind.PARTITION_ID and isinstance(value.value, int):
            out.append(4)
            U32_CODEC.write(out, value.value, what)
        elif value.kind is PartitioningKind.BALANCED and value.value is None:
            out.append(0)
        else:
            raise EncodeError(what=what, value=value)


@attrs.frozen
class PollingStrategy:
    """Where a poll starts: `value` is an offset, or microseconds for a timestamp; 0 otherwise."""

    kind: PollingKind
    value: int = 0


class PollingStrategyCodec:
    minimum = 9

    def read(self, cursor: Cursor, what: str) -> PollingStrategy:
        return PollingStrategy(POLLING_KIND_CODEC.read(cursor, what), cursor.u64())

    def write(self, out: bytearray, value: PollingStrategy, what: str) -> None:
        POLLING_KIND_CODEC.write(out, value.kind, what)
        U64_CODEC.write(out, value.value, what)


CONSUMER_KIND_CODEC: Final = Enum8(ConsumerKind)
PARTITIONING_KIND_CODEC: Final = Enum8(PartitioningKind)
POLLING_KIND_CODEC: Final = Enum8(PollingKind)
MESSAGES_KEY_CODEC: Final = Blob(1, shortest=1)
IDENTIFIER_CODEC: Final = IdentifierCodec()
PARTITIONING_CODEC: Final = PartitioningCodec()

U8 = Annotated[int, U8_CODEC]
U16 = Annotated[int, U16_CODEC]
U32 = Annotated[int, U32_CODEC]
U64 = Annotated[int, U64_CODEC]
F32 = Annotated[float, Float32()]
Bool8 = Annotated[bool, Flag()]
ClientId = Annotated[bytes, IdBytes()]
Name = Annotated[str, NAME_CODEC]
Text8 = Annotated[str, Text(1)]
Text32 = Annotated[str, Text(4)]
Bytes32 = Annotated[bytes, Blob(4)]
RestBytes = Annotated[bytes, Rest()]
Ident = Annotated[Identifier, IDENTIFIER_CODEC]
ConsumerField = Annotated[Consumer, ConsumerCodec()]
OptionalPartition = Annotated[int | None, OptionalPartitionCodec()]
PartitioningField = Annotated[Partitioning, PARTITIONING_CODEC]
Strategy = Annotated[PollingStrategy, PollingStrategyCodec()]
Ack = Annotated[AckLevel, Enum8(AckLevel)]
