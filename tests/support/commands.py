"""Commands of users, tokens, consumer groups, topics and segments, as functions over a test client.

Bodies are written here field by field, as `tests.support.client` does for the rest: nothing of the server is used.
"""

import struct
from dataclasses import dataclass

import xxhash

from tests.support.batches import Message, decode_batches
from tests.support.client import Client
from tests.support.frames import (
    DELETE_OFFSET,
    DELETE_TOPIC,
    GET_OFFSET,
    GET_STATS,
    GET_STREAM,
    GET_TOPIC,
    NEXT,
    POLL,
    PROTOCOL_VERSION,
    PURGE_TOPIC,
    REGISTER,
    STORE_OFFSET,
    identifier,
    option_block,
    text,
)

UPDATE_STREAM, UPDATE_TOPIC, DELETE_PARTITIONS, DELETE_SEGMENTS = 129, 133, 137, 138
CREATE_GROUP, DELETE_GROUP = 139, 140
CREATE_USER, UPDATE_USER, DELETE_USER, CHANGE_PASSWORD, UPDATE_PERMISSIONS = 141, 142, 143, 144, 145
CREATE_TOKEN, DELETE_TOKEN, JOIN_GROUP, LEAVE_GROUP = 146, 147, 148, 149
GET_USER, GET_USERS, GET_TOKENS, GET_GROUP, GET_GROUPS, SYNC_GROUP = 31, 32, 41, 600, 601, 606
POLL_ON_PRIMARY = 104
RESYNC = 0xFFFFFFFF

GLOBAL_RIGHTS = (
    "manage_servers", "read_servers", "manage_users", "read_users", "manage_streams", "read_streams", "manage_topics",
    "read_topics", "poll_messages", "send_messages",
)  # fmt: skip
STREAM_RIGHTS = ("manage_stream", "read_stream", "manage_topics", "read_topics", "poll_messages", "send_messages")
TOPIC_RIGHTS = ("manage_topic", "read_topic", "poll_messages", "send_messages")

Name = int | str


def permissions(
    of_server: tuple[str, ...] = (),
    of_stream: dict[int, tuple[str, ...]] | None = None,
    of_topic: dict[tuple[int, int], tuple[str, ...]] | None = None,
) -> bytes:
    """Permissions as the wire has them; a topic's rights need no entry in ``of_stream``."""
    topics = of_topic or {}
    streams = sorted({*(of_stream or {}), *(stream for stream, _ in topics)})
    out = bytes(name in of_server for name in GLOBAL_RIGHTS) + bytes([bool(streams)])
    for number, stream in enumerate(streams):
        granted = (of_stream or {}).get(stream, ())
        out += struct.pack("<I", stream) + bytes(name in granted for name in STREAM_RIGHTS)
        mine = sorted(topic for owner, topic in topics if owner == stream)
        out += bytes([bool(mine)])
        for index, topic in enumerate(mine):
            out += struct.pack("<I", topic) + bytes(name in topics[stream, topic] for name in TOPIC_RIGHTS)
            out += bytes([index + 1 < len(mine)])
        out += bytes([number + 1 < len(streams)])
    return out


# --- users and tokens


def create_user(client: Client, name: str, password: str, granted: bytes | None = None, status: int = 1) -> int:
    """Returns the id of the user."""
    rights = b"\0" if granted is None else b"\1" + struct.pack("<I", len(granted)) + granted
    payload = client.change(CREATE_USER, text(name) + text(password) + bytes([status]) + rights)
    return struct.unpack_from("<I", payload)[0]


def delete_user(client: Client, user: Name) -> None:
    client.change(DELETE_USER, identifier(user))


def set_status(client: Client, user: Name, status: int) -> None:
    client.change(UPDATE_USER, identifier(user) + b"\0\1" + bytes([status]))


def change_password(client: Client, user: Name, current: str, new: str) -> None:
    client.change(CHANGE_PASSWORD, identifier(user) + text(current) + text(new))


def set_permissions(client: Client, user: Name, granted: bytes | None) -> None:
    rights = b"\0" if granted is None else b"\1" + struct.pack("<I", len(granted)) + granted
    client.change(UPDATE_PERMISSIONS, identifier(user) + rights)


def create_token(client: Client, name: str, expiry: int = 0) -> str:
    """Returns the text of the token. ``expiry`` in microseconds, 0: never."""
    return client.change(CREATE_TOKEN, text(name) + struct.pack("<Q", expiry))[1:].decode()


def delete_token(client: Client, name: str) -> None:
    client.change(DELETE_TOKEN, text(name))


def tokens(client: Client) -> dict[str, int]:
    """Names of one's own tokens with the time at which each ends."""
    data = client.read(GET_TOKENS)
    found, at = {}, 0
    while at < len(data):
        length = data[at]
        found[data[at + 1 : at + 1 + length].decode()] = struct.unpack_from("<Q", data, at + 1 + length)[0]
        at += 9 + length
    return found


def login_with_token(client: Client, token: str) -> None:
    client.request = 0
    body = struct.pack("<I", PROTOCOL_VERSION) + text("shardsrv-tests") + text("1") + text(token) + bytes(4)
    frame = client.exchange(REGISTER, body, request=0, checksum=xxhash.xxh3_64_intdigest(body))
    payload = client._accepted(frame)
    client.session = int.from_bytes(payload[4:12], "little")


# --- streams, topics, segments


def delete_topic(client: Client, stream: Name, topic: Name) -> None:
    client.change(DELETE_TOPIC, identifier(stream) + identifier(topic))


def purge_topic(client: Client, stream: Name, topic: Name) -> None:
    client.change(PURGE_TOPIC, identifier(stream) + identifier(topic))


def update_topic(client: Client, stream: Name, topic: Name, name: str, options: dict[str, str]) -> None:
    client.change(UPDATE_TOPIC, identifier(stream) + identifier(topic) + text(name) + option_block(options))


def delete_partitions(client: Client, stream: Name, topic: Name, count: int) -> None:
    client.change(DELETE_PARTITIONS, identifier(stream) + identifier(topic) + struct.pack("<I", count))


def delete_segments(client: Client, stream: Name, topic: Name, partition: int, count: int) -> None:
    client.request += 1
    body = identifier(stream) + identifier(topic) + struct.pack("<II", partition, count)
    frame = client.exchange(DELETE_SEGMENTS, body, request=client.request)
    assert frame.operation == 68, f"the reply to a deletion of segments has operation {frame.operation}"
    client._accepted(frame)


@dataclass(frozen=True)
class PartitionFacts:
    segments: int
    current_offset: int
    size: int
    messages: int


@dataclass(frozen=True)
class TopicFacts:
    size: int
    messages: int
    partitions: tuple[PartitionFacts, ...]


def topic_facts(client: Client, stream: Name, topic: Name) -> TopicFacts | None:
    data = client.read(GET_TOPIC, identifier(stream) + identifier(topic))
    if not data:
        return None
    count = struct.unpack_from("<I", data, 12)[0]
    size, messages = struct.unpack_from("<QQ", data, 33)
    found = [struct.unpack_from("<IQIQQQ", data, len(data) - 40 * (count - index)) for index in range(count)]
    return TopicFacts(size, messages, tuple(PartitionFacts(row[2], row[3], row[4], row[5]) for row in found))


def stream_facts(client: Client, stream: Name) -> tuple[int, int]:
    """(bytes, messages) of a stream."""
    return struct.unpack_from("<QQ", client.read(GET_STREAM, identifier(stream)), 16)


def total_messages(client: Client) -> tuple[int, int]:
    """(bytes, messages) of the node's statistics."""
    data = client.read(GET_STATS)
    return struct.unpack_from("<Q", data, 68)[0], struct.unpack_from("<Q", data, 92)[0]


# --- consumer groups


def _place(stream: Name, topic: Name, group: Name) -> bytes:
    return identifier(stream) + identifier(topic) + identifier(group)


def create_group(client: Client, stream: Name, topic: Name, name: str) -> int:
    """Returns the id of the group."""
    payload = client.change(CREATE_GROUP, identifier(stream) + identifier(topic) + text(name))
    return struct.unpack_from("<I", payload)[0]


def delete_group(client: Client, stream: Name, topic: Name, group: Name) -> None:
    client.change(DELETE_GROUP, _place(stream, topic, group))


def join_group(client: Client, stream: Name, topic: Name, group: Name) -> None:
    client.change(JOIN_GROUP, _place(stream, topic, group))


def leave_group(client: Client, stream: Name, topic: Name, group: Name) -> None:
    client.change(LEAVE_GROUP, _place(stream, topic, group))


def sync_group(client: Client, stream: Name, topic: Name, group: Name) -> tuple[int, list[int]] | None:
    """(generation, partitions that may be polled); None for a client that is no member."""
    data = client.read(SYNC_GROUP, _place(stream, topic, group))
    if not data:
        return None
    generation, count = struct.unpack_from("<QI", data)
    return generation, list(struct.unpack_from(f"<{count}I", data, 12))


def group_members(client: Client, stream: Name, topic: Name, group: Name) -> dict[int, list[int]] | None:
    """Partitions of each member by member id; None for a group that does not exist."""
    data = client.read(GET_GROUP, _place(stream, topic, group))
    if not data:
        return None
    members = struct.unpack_from("<I", data, 8)[0]
    at = 13 + data[12]
    found = {}
    for _ in range(members):
        member, count = struct.unpack_from("<II", data, at)
        found[member] = list(struct.unpack_from(f"<{count}I", data, at + 8))
        at += 8 + 4 * count
    return found


def poll_group(
    client: Client,
    stream: Name,
    topic: Name,
    group: Name,
    partition: int,
    *,
    count: int = 1000,
    strategy: int = NEXT,
    value: int = 0,
    auto_commit: bool = False,
    code: int = POLL,
) -> list[Message] | None:
    """Messages for a member; None when it is told to ask for its assignment again."""
    body = (
        b"\2"
        + identifier(group)
        + identifier(stream)
        + identifier(topic)
        + struct.pack("<BIBQIB", 1, partition, strategy, value, count, auto_commit)
    )
    data = client.read(code, body)
    if struct.unpack_from("<I", data)[0] == RESYNC:
        return None
    return [message for batch in decode_batches(data[16:]) for message in batch.messages]


def _group_offset(stream: Name, topic: Name, group: Name, partition: int) -> bytes:
    return b"\2" + identifier(group) + identifier(stream) + identifier(topic) + struct.pack("<BI", 1, partition)


def store_group_offset(client: Client, stream: Name, topic: Name, group: Name, partition: int, offset: int) -> None:
    client.change(STORE_OFFSET, _group_offset(stream, topic, group, partition) + struct.pack("<QB", offset, 1))


def delete_group_offset(client: Client, stream: Name, topic: Name, group: Name, partition: int) -> None:
    client.change(DELETE_OFFSET, _group_offset(stream, topic, group, partition) + b"\1")


def group_offset(client: Client, stream: Name, topic: Name, group: Name, partition: int) -> int | None:
    """The stored offset of a group, None when nothing is stored."""
    data = client.read(GET_OFFSET, _group_offset(stream, topic, group, partition))
    return struct.unpack_from("<Q", data, 12)[0] if data else None
