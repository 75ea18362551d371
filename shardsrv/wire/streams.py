"""Requests and replies about streams. Times are microseconds, sizes bytes; counters are sums over the topics."""

from typing import Annotated

import attrs

from shardsrv.errors import DecodeError
from shardsrv.wire.codec import UntilEnd
from shardsrv.wire.codes import CommandCode
from shardsrv.wire.message import Nested, Reply, Request
from shardsrv.wire.options import ReplyOptions, RequestOptions
from shardsrv.wire.primitives import U32, U64, Ident, Name
from shardsrv.wire.topics import TopicHeader


@attrs.frozen
class GetStream(Request):
    code = CommandCode.GET_STREAM

    stream: Ident


@attrs.frozen
class GetStreams(Request):
    code = CommandCode.GET_STREAMS


@attrs.frozen
class CreateStream(Request):
    code = CommandCode.CREATE_STREAM

    name: Name
    options: RequestOptions = ()


@attrs.frozen
class DeleteStream(Request):
    code = CommandCode.DELETE_STREAM

    stream: Ident


@attrs.frozen
class UpdateStream(Request):
    code = CommandCode.UPDATE_STREAM

    stream: Ident
    name: Name
    options: RequestOptions = ()


@attrs.frozen
class PurgeStream(Request):
    code = CommandCode.PURGE_STREAM

    stream: Ident


@attrs.frozen
class StreamRecord(Reply):
    """A stream, alone as the reply to its creation and inside the others."""

    codes = (CommandCode.CREATE_STREAM,)

    id: U32
    created_at: U64
    topics_count: U32
    size_bytes: U64
    messages_count: U64
    name: Name
    options: ReplyOptions = ()


@attrs.frozen
class StreamDetailsReply(Reply):
    codes = (CommandCode.GET_STREAM,)
    absent_when_empty = True

    stream: StreamRecord
    topics: Annotated[tuple[TopicHeader, ...], UntilEnd(Nested(TopicHeader))]

    def check(self, offset: int) -> None:
        if len(self.topics) != self.stream.topics_count:
            raise DecodeError("topics", offset, self.stream.topics_count, len(self.topics))


@attrs.frozen
class StreamsReply(Reply):
    codes = (CommandCode.GET_STREAMS,)

    streams: Annotated[tuple[StreamRecord, ...], UntilEnd(Nested(StreamRecord))]
