"""C017: one table of allow and deny, every operation against every right.

The table stands here once more, in the words of the protocol, apart from the server's. A user gets exactly one right
after the other and tries every command;
a command that is allowed may fail for another reason, one that is denied fails with 41 and nothing else. The node is
compared before and after.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.support import commands as c
from tests.support.batches import encode_batch
from tests.support.client import Client, Refused
from tests.support.frames import (
    CREATE_PARTITIONS,
    CREATE_STREAM,
    CREATE_TOPIC,
    DELETE_STREAM,
    PURGE_STREAM,
    PURGE_TOPIC,
    identifier,
    text,
)
from tests.support.node import Node

S, T = identifier("s"), identifier("t")
ST = S + T
ROOT = identifier(0)
COUNT = struct.Struct("<I")


@dataclass(frozen=True)
class Grants:
    """The flags that grant, by level; `anyone`: no right is needed."""

    of_server: tuple[str, ...] = ()
    of_stream: tuple[str, ...] = ()
    of_topic: tuple[str, ...] = ()
    anyone: bool = False


ANYONE = Grants(anyone=True)
SERVER = Grants(("manage_servers", "read_servers"))
USERS_WRITE = Grants(("manage_users",))
USERS_READ = Grants(("manage_users", "read_users"))
STREAM_CREATE = Grants(("manage_streams",))
STREAM_LIST = Grants(("manage_streams", "read_streams"))
STREAM_READ = Grants(("manage_streams", "read_streams"), ("manage_stream", "read_stream"))
STREAM_WRITE = Grants(("manage_streams",), ("manage_stream",))
TOPIC_LIST = Grants(
    ("manage_streams", "read_streams", "manage_topics", "read_topics"),
    ("manage_stream", "read_stream", "manage_topics", "read_topics"),
)
TOPIC_READ = Grants(TOPIC_LIST.of_server, TOPIC_LIST.of_stream, ("manage_topic", "read_topic"))
TOPIC_CREATE = Grants(("manage_streams", "manage_topics"), ("manage_stream", "manage_topics"))
TOPIC_WRITE = Grants(TOPIC_CREATE.of_server, TOPIC_CREATE.of_stream, ("manage_topic",))
POLL = Grants(
    ("poll_messages", "read_topics", "manage_topics", "read_streams", "manage_streams"),
    ("poll_messages", "manage_stream", "read_stream", "manage_topics", "read_topics"),
    ("manage_topic", "read_topic", "poll_messages"),
)
SEND = Grants(
    ("send_messages", "manage_streams", "manage_topics"),
    ("send_messages", "manage_stream", "manage_topics"),
    ("manage_topic", "send_messages"),
)

Run = Callable[[Client], object]


def read(code: int, body: bytes = b"") -> Run:
    return lambda client: client.read(code, body)


def change(operation: int, body: bytes) -> Run:
    return lambda client: client.change(operation, body)


CONSUMER = b"\1" + identifier(1) + ST + struct.pack("<BI", 1, 0)

TABLE: dict[str, tuple[Grants, Run]] = {
    "ping": (ANYONE, read(1)),
    "get_stats": (SERVER, read(10)),
    "get_snapshot": (SERVER, read(11, bytes([1, 1, 4]))),
    "get_cluster_metadata": (ANYONE, read(12)),
    "describe_options": (ANYONE, read(13, b"\1")),
    "get_me": (ANYONE, read(20)),
    "get_client": (SERVER, read(21, COUNT.pack(77))),
    "get_clients": (SERVER, read(22)),
    "get_user": (USERS_READ, read(31, ROOT)),
    "get_user, own": (ANYONE, read(31, identifier("user"))),
    "get_users": (USERS_READ, read(32)),
    "create_user": (USERS_WRITE, change(c.CREATE_USER, text("user") + text("secret") + b"\1\0")),
    "delete_user": (USERS_WRITE, change(c.DELETE_USER, ROOT)),
    "update_user": (USERS_WRITE, change(c.UPDATE_USER, ROOT + b"\0\0")),
    "update_permissions": (USERS_WRITE, change(c.UPDATE_PERMISSIONS, ROOT + b"\0")),
    "change_password": (USERS_WRITE, change(c.CHANGE_PASSWORD, ROOT + text("wrong") + text("new"))),
    "change_password, own": (ANYONE, change(c.CHANGE_PASSWORD, identifier("user") + text("secret") + text("secret"))),
    "get_personal_access_tokens": (ANYONE, read(41)),
    "create_personal_access_token": (ANYONE, change(c.CREATE_TOKEN, text("token") + bytes(8))),
    "delete_personal_access_token": (ANYONE, change(c.DELETE_TOKEN, text("token"))),
    "get_stream": (STREAM_READ, read(200, S)),
    "get_streams": (STREAM_LIST, read(201)),
    "create_stream": (STREAM_CREATE, change(CREATE_STREAM, text("s"))),
    "update_stream": (STREAM_WRITE, change(c.UPDATE_STREAM, S + text("s"))),
    "purge_stream": (STREAM_WRITE, change(PURGE_STREAM, S)),
    "get_topic": (TOPIC_READ, read(300, ST)),
    "get_topics": (TOPIC_LIST, read(301, S)),
    "create_topic": (TOPIC_CREATE, change(CREATE_TOPIC, S + COUNT.pack(1) + text("t"))),
    "update_topic": (TOPIC_WRITE, change(c.UPDATE_TOPIC, ST + text("t"))),
    "purge_topic": (TOPIC_WRITE, change(PURGE_TOPIC, ST)),
    "create_partitions": (TOPIC_WRITE, change(CREATE_PARTITIONS, ST + COUNT.pack(1))),
    "delete_partitions": (TOPIC_WRITE, change(c.DELETE_PARTITIONS, ST + COUNT.pack(999))),
    "delete_segments": (TOPIC_WRITE, lambda client: c.delete_segments(client, "s", "t", 0, 1)),
    "get_consumer_group": (TOPIC_READ, read(600, ST + identifier("g"))),
    "get_consumer_groups": (TOPIC_READ, read(601, ST)),
    "create_consumer_group": (TOPIC_READ, change(c.CREATE_GROUP, ST + text("g"))),
    "join_consumer_group": (TOPIC_READ, change(c.JOIN_GROUP, ST + identifier("g"))),
    "sync_consumer_group": (ANYONE, read(606, ST + identifier("g"))),
    "leave_consumer_group": (TOPIC_READ, change(c.LEAVE_GROUP, ST + identifier("g"))),
    "delete_consumer_group": (TOPIC_READ, change(c.DELETE_GROUP, ST + identifier("g"))),
    "send_messages": (SEND, lambda client: client.send_batch("s", "t", 0, 1, encode_batch([b"x"]))),
    "poll_messages": (POLL, read(100, CONSUMER + struct.pack("<BQIB", 1, 0, 1, 0))),
    "poll_messages_on_primary": (POLL, read(104, CONSUMER + struct.pack("<BQIB", 1, 0, 1, 0))),
    "get_poll_routing": (POLL, read(103, CONSUMER + struct.pack("<BQIB", 1, 0, 1, 0))),
    "get_consumer_offset": (POLL, read(120, CONSUMER)),
    "get_consumer_offset_routing": (POLL, read(123, CONSUMER)),
    "store_consumer_offset": (POLL, change(161, CONSUMER + struct.pack("<QB", 0, 1))),
    "delete_consumer_offset": (POLL, change(162, CONSUMER + b"\1")),
    "delete_topic": (TOPIC_WRITE, change(134, ST)),
    "delete_stream": (STREAM_WRITE, change(DELETE_STREAM, S)),
}
"""In an order in which what one command needs is there: the deletions come last."""

RIGHTS = [
    (),
    *[(0, right) for right in c.GLOBAL_RIGHTS],
    *[(1, right) for right in c.STREAM_RIGHTS],
    *[(2, right) for right in c.TOPIC_RIGHTS],
]


def encode(right: tuple[int, str] | tuple[()]) -> bytes:
    """Exactly this right: on the server, on stream 0, or on topic 0 of it."""
    if not right:
        return c.permissions()
    level, name = right
    return (
        c.permissions((name,)),
        c.permissions(of_stream={0: (name,)}),
        c.permissions(of_topic={(0, 0): (name,)}),
    )[level]


def allowed(grants: Grants, right: tuple[int, str] | tuple[()]) -> bool:
    if grants.anyone:
        return True
    return bool(right) and right[1] in (grants.of_server, grants.of_stream, grants.of_topic)[right[0]]


def build(root: Client) -> None:
    """Stream 0, topic 0, group 0, whatever is missing of them."""
    for make in (
        lambda: root.create_stream("s"),
        lambda: root.create_topic("s", "t"),
        lambda: c.create_group(root, "s", "t", "g"),
    ):
        try:
            make()
        except Refused as refused:
            assert refused.code in (1012, 2013, 5004)
    root.send("s", "t", 0, [b"x"])


def picture(root: Client) -> tuple[object, ...]:
    """What a denied command must not change."""
    return tuple(root.read(code, body) for code, body in ((200, S), (300, ST), (601, ST), (32, b"")))


def test_every_operation_against_every_right(node: Node) -> None:
    surprises = []
    with node.client() as root, Client(node.host, node.port) as user:
        build(root)
        c.create_user(root, "user", "secret", c.permissions())
        user.login("user", "secret")
        for right in RIGHTS:
            c.set_permissions(root, "user", encode(right))
            for name, (grants, run) in TABLE.items():
                build(root)
                before = picture(root)
                try:
                    run(user)
                    denied = False
                except Refused as refused:
                    denied = refused.code == 41
                if denied == allowed(grants, right):
                    surprises.append(f"{name} with {right}: {'denied' if denied else 'allowed'}")
                if denied and picture(root) != before:
                    surprises.append(f"{name} with {right}: denied, and something changed")
    assert len(TABLE) * len(RIGHTS) > 1000
    assert not surprises, "\n".join(surprises)


@pytest.mark.parametrize("name", ["get_stream", "poll_messages", "delete_topic"])
def test_not_found_comes_before_denied(node: Node, client: Client, name: str) -> None:
    c.create_user(client, "user", "secret", c.permissions())
    with Client(node.host, node.port) as user:
        user.login("user", "secret")
        try:
            TABLE[name][1](user)
        except Refused as refused:
            assert refused.code in (1009, 2010)
