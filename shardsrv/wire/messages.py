"""Requests and replies about messages: send, poll, flush.

Body of a send: `u32 metadata_length, stream identifier, topic identifier, partitioning, u32 messages_count, batch`;
metadata_length covers everything between itself and the batch, exactly. The batch itself is opaque here, see
`shardsrv.wire.batch`.
"""

from typing import Annotated, Self

import attrs

from shardsrv.errors import DecodeError
from shardsrv.wire.codec import Counted
from shardsrv.wire.codes import CommandCode
from shardsrv.wire.constants import PARTITION_RESYNC
from shardsrv.wire.cursor import Buffer, Cursor
from shardsrv.wire.message import Message, Nested, Reply, Request
from shardsrv.wire.primitives import (
    IDENTIFIER_CODEC,
    PARTITIONING_CODEC,
    U8,
    U32,
    U32_CODEC,
    U64,
    Bool8,
    ConsumerField,
    Ident,
    Identifier,
    OptionalPartition,
    Partitioning,
    PartitioningField,
    RestBytes,
    Strategy,
)


@attrs.frozen
class SendMessages(Request):
    """`messages_count` as the request says it; `batch` as it came, unchecked (`batch.verify_sent_batch`)."""

    code = CommandCode.SEND_MESSAGES

    stream: Ident
    topic: Ident
    partitioning: PartitioningField
    messages_count: U32
    batch: RestBytes

    @classmethod
    def read(cls, cursor: Cursor) -> Self:
        length = cursor.u32()
        metadata = Cursor(cursor.take(length))
        stream, topic, partitioning = read_send_target(metadata)
        messages_count = metadata.u32()
        if metadata.remaining:
            raise DecodeError("SendMessages.metadata_length", 0, metadata.position, length)
        return cls(stream, topic, partitioning, messages_count, bytes(cursor.rest()))

    def write(self, out: bytearray) -> None:
        metadata = bytearray()
        IDENTIFIER_CODEC.write(metadata, self.stream, "SendMessages.stream")
        IDENTIFIER_CODEC.write(metadata, self.topic, "SendMessages.topic")
        PARTITIONING_CODEC.write(metadata, self.partitioning, "SendMessages.partitioning")
        U32_CODEC.write(metadata, self.messages_count, "SendMessages.messages_count")
        out += len(metadata).to_bytes(4, "little")
        out += metadata
        out += self.batch


def read_send_target(cursor: Cursor) -> tuple[Identifier, Identifier, Partitioning]:
    """Stream, topic and partitioning at the cursor; raises DecodeError."""
    return (
        IDENTIFIER_CODEC.read(cursor, "SendMessages.stream"),
        IDENTIFIER_CODEC.read(cursor, "SendMessages.topic"),
        PARTITIONING_CODEC.read(cursor, "SendMessages.partitioning"),
    )


def decode_send_target(key: Buffer) -> tuple[Identifier, Identifier, Partitioning]:
    """The target of a send from its raw bytes (the key of a target cache), which it fills; raises DecodeError."""
    cursor = Cursor(key)
    target = read_send_target(cursor)
    if cursor.remaining:
        raise DecodeError("send target", cursor.position, "the end", f"{cursor.remaining} more bytes")
    return target


@attrs.frozen
class PollMessages(Request):
    code = CommandCode.POLL_MESSAGES

    consumer: ConsumerField
    stream: Ident
    topic: Ident
    partition: OptionalPartition
    strategy: Strategy
    count: U32
    auto_commit: Bool8


@attrs.frozen
class GetPollRouting(PollMessages):
    """Asks which node serves this poll; the body is the poll's."""

    code = CommandCode.GET_POLL_ROUTING


@attrs.frozen
class PollMessagesOnPrimary(PollMessages):
    """A poll sent to the partition's primary on an attached connection."""

    code = CommandCode.POLL_MESSAGES_ON_PRIMARY


@attrs.frozen
class FlushUnsavedBuffer(Request):
    code = CommandCode.FLUSH_UNSAVED_BUFFER

    stream: Ident
    topic: Ident
    partition: U32
    fsync: U8


@attrs.frozen
class SendConfirmation(Message):
    """Where a batch went: `base_offset` is the offset of its first message."""

    stream: U32
    topic: U32
    partition: U32
    base_offset: U64


@attrs.frozen
class SendReply(Reply):
    """0 or 1 confirmations; a body of zero bytes means none."""

    codes = (CommandCode.SEND_MESSAGES,)

    confirmations: Annotated[tuple[SendConfirmation, ...], Counted(4, Nested(SendConfirmation))] = ()

    @classmethod
    def decode(cls, buffer: Buffer) -> Self:
        return super().decode(buffer) if len(buffer) else cls()


@attrs.frozen
class PollReply(Reply):
    """`records` are batches back to back (`batch.batches_of`), `current_offset` the committed offset, 0 when empty."""

    codes = (CommandCode.POLL_MESSAGES, CommandCode.POLL_MESSAGES_ON_PRIMARY)

    partition: U32
    current_offset: U64
    messages_count: U32
    records: RestBytes = b""

    @classmethod
    def resync(cls) -> Self:
        """The empty poll that tells a group member to ask for its assignment again."""
        return cls(PARTITION_RESYNC, 0, 0)
