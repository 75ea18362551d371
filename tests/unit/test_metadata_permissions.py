"""Rights: every flag against every right, written out here a second time; and the order not found, denied, done."""

from __future__ import annotations

import pytest

from shardsrv.plane.metadata.permissions import Right, allowed, granted
from shardsrv.wire.constants import Operation
from shardsrv.wire.permissions import (
    GLOBAL_FLAGS,
    STREAM_FLAGS,
    TOPIC_FLAGS,
    GlobalPermissions,
    Permissions,
    StreamPermissions,
    TopicPermissions,
)
from shardsrv.wire.streams import CreateStream, DeleteStream
from shardsrv.wire.topics import CreateTopic, DeleteTopic
from shardsrv.wire.users import CreateUser, DeleteUser, UpdatePermissions
from tests.support.metadata import Driver, new_plane

GRANTED_GLOBALLY = {
    "manage_servers": {Right.SERVER_INFO},
    "read_servers": {Right.SERVER_INFO},
    "manage_users": {Right.WRITE_USERS, Right.READ_USERS},
    "read_users": {Right.READ_USERS},
    "manage_streams": set(Right) - {Right.SERVER_INFO, Right.WRITE_USERS, Right.READ_USERS},
    "read_streams": {Right.LIST_STREAMS, Right.READ_STREAM, Right.LIST_TOPICS, Right.READ_TOPIC, Right.POLL},
    "manage_topics": {
        Right.LIST_TOPICS,
        Right.READ_TOPIC,
        Right.CREATE_TOPIC,
        Right.WRITE_TOPIC,
        Right.POLL,
        Right.SEND,
    },
    "read_topics": {Right.LIST_TOPICS, Right.READ_TOPIC, Right.POLL},
    "poll_messages": {Right.POLL},
    "send_messages": {Right.SEND},
}
GRANTED_BY_STREAM = {
    "manage_stream": {
        Right.READ_STREAM,
        Right.WRITE_STREAM,
        Right.LIST_TOPICS,
        Right.READ_TOPIC,
        Right.CREATE_TOPIC,
        Right.WRITE_TOPIC,
        Right.POLL,
        Right.SEND,
    },
    "read_stream": {Right.READ_STREAM, Right.LIST_TOPICS, Right.READ_TOPIC, Right.POLL},
    "manage_topics": {
        Right.LIST_TOPICS,
        Right.READ_TOPIC,
        Right.CREATE_TOPIC,
        Right.WRITE_TOPIC,
        Right.POLL,
        Right.SEND,
    },
    "read_topics": {Right.LIST_TOPICS, Right.READ_TOPIC, Right.POLL},
    "poll_messages": {Right.POLL},
    "send_messages": {Right.SEND},
}
GRANTED_BY_TOPIC = {
    "manage_topic": {Right.READ_TOPIC, Right.WRITE_TOPIC, Right.POLL, Right.SEND},
    "read_topic": {Right.READ_TOPIC, Right.POLL},
    "poll_messages": {Right.POLL},
    "send_messages": {Right.SEND},
}


def rights_of(permissions: Permissions, stream: int | None = 3, topic: int | None = 4) -> set[Right]:
    return {right for right in Right if granted(permissions, right, stream, topic)}


@pytest.mark.parametrize("flag", GLOBAL_FLAGS)
def test_global_flags(flag: str) -> None:
    permissions = Permissions(GlobalPermissions(**{flag: True}))
    assert rights_of(permissions) == rights_of(permissions, None, None) == GRANTED_GLOBALLY[flag]


@pytest.mark.parametrize("flag", STREAM_FLAGS)
def test_stream_flags_count_on_their_stream_only(flag: str) -> None:
    permissions = Permissions(streams={3: StreamPermissions(**{flag: True})})  # type: ignore[arg-type]
    assert rights_of(permissions) == rights_of(permissions, 3, None) == GRANTED_BY_STREAM[flag]
    assert rights_of(permissions, 2, 4) == rights_of(permissions, None, None) == set()


@pytest.mark.parametrize("flag", TOPIC_FLAGS)
def test_topic_flags_count_on_their_topic_only(flag: str) -> None:
    permissions = Permissions(streams={3: StreamPermissions(topics={4: TopicPermissions(**{flag: True})})})
    assert rights_of(permissions) == GRANTED_BY_TOPIC[flag]
    assert rights_of(permissions, 3, 5) == rights_of(permissions, 2, 4) == rights_of(permissions, 3, None) == set()


def test_root_has_every_right_and_a_stranger_none() -> None:
    state = new_plane().state
    assert all(allowed(state, 0, right, 1, 1) for right in Right)
    assert not any(allowed(state, 1, right, 1, 1) for right in Right)


def test_not_found_comes_before_denied() -> None:
    driver = Driver()
    driver.run(Operation.CREATE_STREAM, CreateStream("s"))
    driver.run(Operation.CREATE_USER, CreateUser("nobody", "secret", 1))
    assert driver.run(Operation.DELETE_STREAM, DeleteStream("x"), 1)[0] == 1009
    assert driver.run(Operation.DELETE_STREAM, DeleteStream("s"), 1)[0] == 41
    assert driver.run(Operation.DELETE_TOPIC, DeleteTopic("s", "x"), 1)[0] == 2010
    assert driver.run(Operation.DELETE_USER, DeleteUser("x"), 1)[0] == 20
    assert driver.run(Operation.DELETE_USER, DeleteUser("nobody"), 1)[0] == 41
    assert driver.plane.state.find_stream("s") is not None


def test_permissions_count_from_the_entry_on_that_gives_them() -> None:
    driver = Driver()
    driver.run(Operation.CREATE_STREAM, CreateStream("s"))
    driver.run(Operation.CREATE_USER, CreateUser("worker", "secret", 1))
    topic = CreateTopic("s", 1, "t")
    assert driver.run(Operation.CREATE_TOPIC, topic, 1)[0] == 41
    given = Permissions(streams={0: StreamPermissions(manage_topics=True)})
    assert driver.run(Operation.UPDATE_PERMISSIONS, UpdatePermissions("worker", given))[0] == 0
    assert driver.run(Operation.CREATE_TOPIC, topic, 1)[0] == 0
    driver.run(Operation.DELETE_USER, DeleteUser("worker"))
    assert driver.run(Operation.DELETE_TOPIC, DeleteTopic("s", "t"), 1)[0] == 41
    assert driver.plane.state.find_user("worker") is None
