"""Requests and replies about consumer offsets. An absent partition reads partition 0; a write must name one."""

import attrs

from shardsrv.wire.codes import CommandCode
from shardsrv.wire.message import Reply, Request
from shardsrv.wire.primitives import U32, U64, Ack, ConsumerField, Ident, OptionalPartition


@attrs.frozen
class GetConsumerOffset(Request):
    code = CommandCode.GET_CONSUMER_OFFSET

    consumer: ConsumerField
    stream: Ident
    topic: Ident
    partition: OptionalPartition


@attrs.frozen
class GetConsumerOffsetRouting(GetConsumerOffset):
    """Asks which node takes this consumer's offset writes; the body is the leading part of the write."""

    code = CommandCode.GET_CONSUMER_OFFSET_ROUTING


@attrs.frozen
class StoreConsumerOffset(Request):
    code = CommandCode.STORE_CONSUMER_OFFSET

    consumer: ConsumerField
    stream: Ident
    topic: Ident
    partition: OptionalPartition
    offset: U64
    ack: Ack


@attrs.frozen
class DeleteConsumerOffset(Request):
    code = CommandCode.DELETE_CONSUMER_OFFSET

    consumer: ConsumerField
    stream: Ident
    topic: Ident
    partition: OptionalPartition
    ack: Ack


@attrs.frozen
class ConsumerOffsetReply(Reply):
    """`current_offset` is the partition's committed offset; a body of zero bytes means that nothing is stored."""

    codes = (CommandCode.GET_CONSUMER_OFFSET,)
    absent_when_empty = True

    partition: U32
    current_offset: U64
    stored_offset: U64
