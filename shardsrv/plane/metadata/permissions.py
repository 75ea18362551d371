"""Who may do what: one table of rights, one function.

Source: the evaluation table of the permissions codec. A right is granted by any of its flags: global, in the entry of
the stream, in the entry of the topic. Root passes everything. A user that does not exist (any more), and one without
permissions, has no right. Denial is code 41. Callers resolve the target first: not found comes before denied.
"""

from __future__ import annotations

import enum
from typing import Final

import attrs

from shardsrv.errors import RequestRefused
from shardsrv.plane.metadata.state import ROOT_ID, MetadataState
from shardsrv.wire.error_codes import ErrorCode
from shardsrv.wire.permissions import Permissions


class Right(enum.Enum):
    """What a request needs. Rights on a stream or topic are asked for with its id."""

    SERVER_INFO = "server info"
    WRITE_USERS = "write users"
    READ_USERS = "read users"
    CREATE_STREAM = "create stream"
    LIST_STREAMS = "list streams"
    READ_STREAM = "get stream"
    WRITE_STREAM = "update, delete, purge stream"
    LIST_TOPICS = "list topics"
    READ_TOPIC = "get topic, consumer groups"
    CREATE_TOPIC = "create topic"
    WRITE_TOPIC = "update, delete, purge topic, partitions, segments"
    POLL = "poll, consumer offsets"
    SEND = "send"


@attrs.frozen(slots=True)
class Grants:
    """The flags that grant a right, by level."""

    of_server: tuple[str, ...]
    of_stream: tuple[str, ...] = ()
    of_topic: tuple[str, ...] = ()


_TOPIC_READERS: Final = Grants(
    ("manage_streams", "read_streams", "manage_topics", "read_topics"),
    ("manage_stream", "read_stream", "manage_topics", "read_topics"),
    ("manage_topic", "read_topic"),
)

GRANTS: Final[dict[Right, Grants]] = {
    Right.SERVER_INFO: Grants(("manage_servers", "read_servers")),
    Right.WRITE_USERS: Grants(("manage_users",)),
    Right.READ_USERS: Grants(("manage_users", "read_users")),
    Right.CREATE_STREAM: Grants(("manage_streams",)),
    Right.LIST_STREAMS: Grants(("manage_streams", "read_streams")),
    Right.READ_STREAM: Grants(("manage_streams", "read_streams"), ("manage_stream", "read_stream")),
    Right.WRITE_STREAM: Grants(("manage_streams",), ("manage_stream",)),
    Right.LIST_TOPICS: Grants(_TOPIC_READERS.of_server, _TOPIC_READERS.of_stream),
    Right.READ_TOPIC: _TOPIC_READERS,
    Right.CREATE_TOPIC: Grants(("manage_streams", "manage_topics"), ("manage_stream", "manage_topics")),
    Right.WRITE_TOPIC: Grants(
        ("manage_streams", "manage_topics"), ("manage_stream", "manage_topics"), ("manage_topic",)
    ),
    Right.POLL: Grants(
        ("poll_messages", "read_topics", "manage_topics", "read_streams", "manage_streams"),
        ("poll_messages", "manage_stream", "read_stream", "manage_topics", "read_topics"),
        ("manage_topic", "read_topic", "poll_messages"),
    ),
    Right.SEND: Grants(
        ("send_messages", "manage_streams", "manage_topics"),
        ("send_messages", "manage_stream", "manage_topics"),
        ("manage_topic", "send_messages"),
    ),
}


def _any_flag(owner: object, names: tuple[str, ...]) -> bool:
    return any(getattr(owner, name) for name in names)


def granted(permissions: Permissions, right: Right, stream: int | None = None, topic: int | None = None) -> bool:
    """Whether these permissions grant a right, on the stream and topic with these ids."""
    grants = GRANTS[right]
    if _any_flag(permissions.global_permissions, grants.of_server):
        return True
    of_stream = None if stream is None else permissions.streams.get(stream)
    if of_stream is None:
        return False
    if _any_flag(of_stream, grants.of_stream):
        return True
    of_topic = None if topic is None else of_stream.topics.get(topic)
    return of_topic is not None and _any_flag(of_topic, grants.of_topic)


def allowed(
    state: MetadataState, user_id: int, right: Right, stream: int | None = None, topic: int | None = None
) -> bool:
    """Whether a user has a right."""
    if user_id == ROOT_ID:
        return True
    user = state.users.get(user_id)
    return user is not None and user.permissions is not None and granted(user.permissions, right, stream, topic)


def require(
    state: MetadataState, user_id: int, right: Right, stream: int | None = None, topic: int | None = None
) -> None:
    """Raises RequestRefused (41) unless the user has the right."""
    if not allowed(state, user_id, right, stream, topic):
        raise RequestRefused(ErrorCode.UNAUTHORIZED, user=user_id, right=right.value, stream=stream, topic=topic)
