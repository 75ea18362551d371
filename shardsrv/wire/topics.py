"""Requests and replies about topics, partitions and segments.

`message_expiry` in microseconds and `max_topic_size` in bytes: 2**64-1 = never, unlimited. `current_offset` is 0 both
for an empty partition and for one message.
"""

from typing import Annotated

import attrs

from shardsrv.errors import DecodeError
from shardsrv.wire.codec import Counted, Enum8, UntilEnd
from shardsrv.wire.codes import CommandCode
from shardsrv.wire.constants import Compression
from shardsrv.wire.message import Message, Nested, Reply, Request
from shardsrv.wire.options import ReplyOptions, RequestOptions
from shardsrv.wire.primitives import U32, U64, Ident, Name


@attrs.frozen
class GetTopic(Request):
    code = CommandCode.GET_TOPIC

    stream: Ident
    topic: Ident


@attrs.frozen
class GetTopics(Request):
    code = CommandCode.GET_TOPICS

    stream: Ident


@attrs.frozen
class CreateTopic(Request):
    code = CommandCode.CREATE_TOPIC

    stream: Ident
    partitions_count: U32
    name: Name
    options: RequestOptions = ()


@attrs.frozen
class DeleteTopic(Request):
    code = CommandCode.DELETE_TOPIC

    stream: Ident
    topic: Ident


@attrs.frozen
class UpdateTopic(Request):
    """The name is always set; an option that is absent stays as it is."""

    code = CommandCode.UPDATE_TOPIC

    stream: Ident
    topic: Ident
    name: Name
    options: RequestOptions = ()


@attrs.frozen
class PurgeTopic(Request):
    code = CommandCode.PURGE_TOPIC

    stream: Ident
    topic: Ident


@attrs.frozen
class CreatePartitions(Request):
    code = CommandCode.CREATE_PARTITIONS

    stream: Ident
    topic: Ident
    partitions_count: U32


@attrs.frozen
class DeletePartitions(Request):
    code = CommandCode.DELETE_PARTITIONS

    stream: Ident
    topic: Ident
    partitions_count: U32


@attrs.frozen
class DeleteSegments(Request):
    """Drops up to `segments_count` of the oldest sealed segments of one partition."""

    code = CommandCode.DELETE_SEGMENTS

    stream: Ident
    topic: Ident
    partition: U32
    segments_count: U32


@attrs.frozen
class TopicHeader(Message):
    """`options` are those that the client set, `derived_options` the rest of the catalogue with their values."""

    id: U32
    created_at: U64
    partitions_count: U32
    message_expiry: U64
    compression_algorithm: Annotated[Compression, Enum8(Compression)]
    max_topic_size: U64
    size_bytes: U64
    messages_count: U64
    name: Name
    options: ReplyOptions = ()
    derived_options: ReplyOptions = ()


@attrs.frozen
class PartitionRecord(Message):
    id: U32
    created_at: U64
    segments_count: U32
    current_offset: U64
    size_bytes: U64
    messages_count: U64


@attrs.frozen
class TopicDetailsReply(Reply):
    codes = (CommandCode.GET_TOPIC, CommandCode.CREATE_TOPIC)
    absent_when_empty = True

    topic: TopicHeader
    partitions: Annotated[tuple[PartitionRecord, ...], UntilEnd(Nested(PartitionRecord))]

    def check(self, offset: int) -> None:
        if len(self.partitions) != self.topic.partitions_count:
            raise DecodeError("partitions", offset, self.topic.partitions_count, len(self.partitions))


@attrs.frozen
class TopicsReply(Reply):
    codes = (CommandCode.GET_TOPICS,)

    topics: Annotated[tuple[TopicHeader, ...], Counted(4, Nested(TopicHeader))]
