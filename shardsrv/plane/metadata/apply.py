"""One committed entry applied to the state: the table of operations and the one function that uses it.

Invariants: the result is a function of the state and the entry alone; a refusal leaves the state and the changes as
they were and is itself the committed outcome; an operation that this release does not know is never passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs

from shardsrv.errors import OurFault, PeerFault
from shardsrv.plane.metadata import groups, streams, tokens, topics, users
from shardsrv.plane.metadata.changes import Change
from shardsrv.plane.metadata.commands import (
    ChangePasswordResolved,
    CompleteHandOver,
    CreatePartitionsResolved,
    CreateTokenResolved,
    CreateTopicResolved,
    CreateUserResolved,
    RemoveMember,
)
from shardsrv.plane.metadata.entry import Entry
from shardsrv.plane.metadata.state import MetadataState
from shardsrv.wire.constants import Operation
from shardsrv.wire.consumer_groups import (
    CreateConsumerGroup,
    DeleteConsumerGroup,
    JoinConsumerGroup,
    LeaveConsumerGroup,
)
from shardsrv.wire.message import Message
from shardsrv.wire.replies import SUCCESS, refusal
from shardsrv.wire.streams import CreateStream, DeleteStream, PurgeStream, UpdateStream
from shardsrv.wire.topics import DeletePartitions, DeleteTopic, PurgeTopic, UpdateTopic
from shardsrv.wire.users import DeletePersonalAccessToken, DeleteUser, UpdatePermissions, UpdateUser


@attrs.frozen(slots=True)
class Command:
    """How an operation's body is read, and what applies it: it returns the reply's payload or raises a PeerFault."""

    body: type[Message]
    run: Callable[[Entry, Any], bytes]


COMMANDS: Final[dict[int, Command]] = {
    Operation.CREATE_STREAM: Command(CreateStream, streams.create_stream),
    Operation.UPDATE_STREAM: Command(UpdateStream, streams.update_stream),
    Operation.DELETE_STREAM: Command(DeleteStream, streams.delete_stream),
    Operation.PURGE_STREAM: Command(PurgeStream, streams.purge_stream),
    Operation.CREATE_TOPIC_WITH_ASSIGNMENTS: Command(CreateTopicResolved, topics.create_topic),
    Operation.UPDATE_TOPIC: Command(UpdateTopic, topics.update_topic),
    Operation.DELETE_TOPIC: Command(DeleteTopic, topics.delete_topic),
    Operation.PURGE_TOPIC: Command(PurgeTopic, topics.purge_topic),
    Operation.CREATE_PARTITIONS_WITH_ASSIGNMENTS: Command(CreatePartitionsResolved, topics.create_partitions),
    Operation.DELETE_PARTITIONS: Command(DeletePartitions, topics.delete_partitions),
    Operation.CREATE_USER: Command(CreateUserResolved, users.create_user),
    Operation.UPDATE_USER: Command(UpdateUser, users.update_user),
    Operation.DELETE_USER: Command(DeleteUser, users.delete_user),
    Operation.CHANGE_PASSWORD: Command(ChangePasswordResolved, users.change_password),
    Operation.UPDATE_PERMISSIONS: Command(UpdatePermissions, users.update_permissions),
    Operation.CREATE_PERSONAL_ACCESS_TOKEN: Command(CreateTokenResolved, tokens.create_token),
    Operation.DELETE_PERSONAL_ACCESS_TOKEN: Command(DeletePersonalAccessToken, tokens.delete_token),
    Operation.CREATE_CONSUMER_GROUP: Command(CreateConsumerGroup, groups.create_group),
    Operation.DELETE_CONSUMER_GROUP: Command(DeleteConsumerGroup, groups.delete_group),
    Operation.JOIN_CONSUMER_GROUP: Command(JoinConsumerGroup, groups.join_group),
    Operation.LEAVE_CONSUMER_GROUP: Command(LeaveConsumerGroup, groups.leave_group),
    Operation.REMOVE_CONSUMER_GROUP_MEMBER: Command(RemoveMember, groups.remove_member),
    Operation.COMPLETE_CONSUMER_GROUP_REVOCATION: Command(CompleteHandOver, groups.complete_hand_over),
}
"""By operation as it stands in the log."""


def apply(state: MetadataState, prepare: Any, changes: list[Change]) -> bytes:
    """The reply body (result section and payload) of a committed entry; empty for a session operation.

    `prepare` has `op`, `timestamp`, `operation`, `user_id`, `client`, `body` and, as `request_checksum_high`, the
    session. What the owners of partitions must do is appended to `changes`. A register ends what older sessions of
    the client id were members of, a logout what its own session was. Raises OurFault for an operation that no release
    before this one has put into a log.
    """
    client, session = prepare.client, prepare.request_checksum_high
    if prepare.operation == Operation.REGISTER:
        groups.end_session(state, changes, client)
        return b""
    if prepare.operation == Operation.LOGOUT:
        groups.end_session(state, changes, client, session)
        return b""
    command = COMMANDS.get(prepare.operation)
    if command is None:
        raise OurFault(f"metadata entry {prepare.op} has operation {prepare.operation}")
    caused: list[Change] = []
    entry = Entry(prepare.op, prepare.timestamp, prepare.user_id, client, session, state, caused)
    try:
        payload = command.run(entry, command.body.decode(prepare.body))
    except PeerFault as error:
        return refusal(error.code)
    changes += caused
    return SUCCESS + payload
