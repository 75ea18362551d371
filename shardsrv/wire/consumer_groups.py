"""Requests and replies about consumer groups. A member id is a slot number; `generation` rises with every rebalance."""

from typing import Annotated

import attrs

from shardsrv.errors import DecodeError
from shardsrv.wire.codec import U32_CODEC, Counted, UntilEnd
from shardsrv.wire.codes import CommandCode
from shardsrv.wire.message import Message, Nested, Reply, Request
from shardsrv.wire.primitives import U32, U64, Ident, Name

Partitions = Annotated[tuple[int, ...], Counted(4, U32_CODEC)]


@attrs.frozen
class GetConsumerGroup(Request):
    code = CommandCode.GET_CONSUMER_GROUP

    stream: Ident
    topic: Ident
    group: Ident


@attrs.frozen
class GetConsumerGroups(Request):
    code = CommandCode.GET_CONSUMER_GROUPS

    stream: Ident
    topic: Ident


@attrs.frozen
class CreateConsumerGroup(Request):
    code = CommandCode.CREATE_CONSUMER_GROUP

    stream: Ident
    topic: Ident
    name: Name


@attrs.frozen
class DeleteConsumerGroup(Request):
    code = CommandCode.DELETE_CONSUMER_GROUP

    stream: Ident
    topic: Ident
    group: Ident


@attrs.frozen
class JoinConsumerGroup(Request):
    code = CommandCode.JOIN_CONSUMER_GROUP

    stream: Ident
    topic: Ident
    group: Ident


@attrs.frozen
class LeaveConsumerGroup(Request):
    code = CommandCode.LEAVE_CONSUMER_GROUP

    stream: Ident
    topic: Ident
    group: Ident


@attrs.frozen
class SyncConsumerGroup(Request):
    """Asks for the partitions that the calling member may poll now."""

    code = CommandCode.SYNC_CONSUMER_GROUP

    stream: Ident
    topic: Ident
    group: Ident


@attrs.frozen
class GroupRecord(Message):
    """`partitions_count` is the topic's."""

    id: U32
    partitions_count: U32
    members_count: U32
    name: Name


@attrs.frozen
class MemberRecord(Message):
    id: U32
    partitions: Partitions


@attrs.frozen
class GroupDetailsReply(Reply):
    codes = (CommandCode.GET_CONSUMER_GROUP, CommandCode.CREATE_CONSUMER_GROUP)
    absent_when_empty = True

    group: GroupRecord
    members: Annotated[tuple[MemberRecord, ...], UntilEnd(Nested(MemberRecord))] = ()

    def check(self, offset: int) -> None:
        if len(self.members) != self.group.members_count:
            raise DecodeError("members", offset, self.group.members_count, len(self.members))


@attrs.frozen
class GroupsReply(Reply):
    codes = (CommandCode.GET_CONSUMER_GROUPS,)

    groups: Annotated[tuple[GroupRecord, ...], UntilEnd(Nested(GroupRecord))]


@attrs.frozen
class AssignmentReply(Reply):
    """A body of zero bytes means that the caller is not a member."""

    codes = (CommandCode.SYNC_CONSUMER_GROUP,)
    absent_when_empty = True

    generation: U64
    partitions: Partitions = ()
