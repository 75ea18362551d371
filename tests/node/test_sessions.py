"""Sessions that end by the node's will, and connections that act for a member."""

import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import commands as c
from tests.support.client import Client, Evicted, Refused
from tests.support.frames import CREATE_STREAM, GET_ME, identifier, text
from tests.support.node import Node

ATTACH, POLL_ROUTING, OFFSET_ROUTING, FLUSH = 14, 103, 123, 102


def group(node: Node, client: Client) -> None:
    client.create_stream("s")
    client.create_topic("s", "t", 2)
    c.create_group(client, "s", "t", "g")


def test_sessions_of_a_deleted_user_end(node: Node, client: Client) -> None:
    client.create_stream("s")
    client.create_topic("s", "t")
    c.create_user(client, "anna", "secret", c.permissions(("manage_streams",)))
    with Client(node.host, node.port) as anna:
        anna.login("anna", "secret")
        anna.create_stream("of anna")
        c.create_group(client, "s", "t", "g")
        c.join_group(anna, "s", "t", "g")
        c.delete_user(client, "anna")
        assert c.create_user(client, "bert", "secret", c.permissions(("manage_streams",))) == 1
        with pytest.raises(Evicted) as evicted:
            anna.create_stream("of bert")
        assert evicted.value.reason == 1
        with pytest.raises(Refused) as refused:
            anna.read(GET_ME)
        assert refused.value.code == 40
        with pytest.raises(Evicted):
            anna.login("anna", "secret")
    assert c.group_members(client, "s", "t", "g") == {}


def test_silent_members_are_evicted_and_others_not(tmp_path: Path, eventually: Callable[..., None]) -> None:
    with Node(tmp_path, environment={"IGGY_HEARTBEAT_INTERVAL": "500 ms"}) as node:  # noqa: SIM117
        with node.client() as watcher, node.client() as silent, node.client() as lively:
            group(node, watcher)
            c.join_group(silent, "s", "t", "g")
            c.join_group(lively, "s", "t", "g")

            def alone() -> bool:
                lively.ping()
                return c.group_members(watcher, "s", "t", "g") == {1: [0, 1]}

            began = time.monotonic()
            eventually(alone, 5.0)
            assert time.monotonic() - began >= 0.5
            assert silent.connection.receive().eviction_reason == 13
            silent.login()
            c.join_group(silent, "s", "t", "g")
            time.sleep(1.5)
            watcher.ping()


def test_memberships_end_with_their_connection_and_with_the_node(
    node: Node, client: Client, eventually: Callable[..., None]
) -> None:
    group(node, client)
    member = node.client()
    c.join_group(member, "s", "t", "g")
    member.close()
    eventually(lambda: c.group_members(client, "s", "t", "g") == {})
    with node.client() as member:
        c.join_group(member, "s", "t", "g")
        assert c.group_members(client, "s", "t", "g") == {0: [0, 1]}
        node.kill()
    node.start()
    with node.client() as again:
        eventually(lambda: c.group_members(again, "s", "t", "g") == {})


def test_a_connection_polls_for_the_member_it_is_attached_to(node: Node, client: Client) -> None:
    group(node, client)
    client.send("s", "t", 0, [b"one", b"two"])
    c.join_group(client, "s", "t", "g")
    where = b"\2" + identifier("g") + identifier("s") + identifier("t") + struct.pack("<BI", 1, 0)
    poll = where + struct.pack("<BQIB", 5, 0, 10, 1)
    route = client.read(POLL_ROUTING, poll)
    assert route[:16] == client.client and struct.unpack_from("<Q", route, 16)[0] == client.session
    assert client.read(OFFSET_ROUTING, where)[:16] == client.client
    with node.client() as data:
        with pytest.raises(Refused) as refused:
            data.read(POLL_ROUTING, poll)
        assert refused.value.code == 5009
        assert c.poll_group(data, "s", "t", "g", 0, code=c.POLL_ON_PRIMARY) is None
        with pytest.raises(Refused) as refused:
            data.read(ATTACH, route[:16] + struct.pack("<QQ", client.session + 1, 0))
        assert refused.value.code == 40
        with pytest.raises(Refused) as refused:
            data.read(ATTACH, route[:24] + struct.pack("<Q", 2**40))
        assert refused.value.code == 58
        assert data.read(ATTACH, route[:32]) == b""
        messages = c.poll_group(data, "s", "t", "g", 0, auto_commit=True, code=c.POLL_ON_PRIMARY)
        assert [message.payload for message in messages or []] == [b"one", b"two"]
        c.store_group_offset(data, "s", "t", "g", 0, 0)
        assert c.group_offset(client, "s", "t", "g", 0) == 0
        c.leave_group(client, "s", "t", "g")
        assert c.poll_group(data, "s", "t", "g", 0, code=c.POLL_ON_PRIMARY) is None


def test_another_user_may_not_attach(node: Node, client: Client) -> None:
    group(node, client)
    c.create_user(client, "anna", "secret")
    with Client(node.host, node.port) as anna:
        anna.login("anna", "secret")
        with pytest.raises(Refused) as refused:
            anna.read(ATTACH, client.client + struct.pack("<QQ", client.session, 0))
        assert refused.value.code == 40


def test_users_and_logins(node: Node, client: Client) -> None:
    for name, password, code in (("ab", "secret", 43), ("x" * 51, "secret", 43), ("iggy", "secret", 46)):
        with pytest.raises(Refused) as refused:
            c.create_user(client, name, password)
        assert (refused.value.code, refused.value.channel) == (code, "result")
    c.create_user(client, "anna", "secret")
    token = ""
    with Client(node.host, node.port) as anna:
        anna.login("anna", "secret")
        token = c.create_token(anna, "token")
        c.change_password(anna, "anna", "secret", "other")
        with pytest.raises(Refused) as refused:
            c.change_password(anna, "anna", "secret", "third")
        assert refused.value.code == 42
    c.set_status(client, "anna", 2)
    for log_in, reason in (
        (lambda k: k.login("anna", "other"), 9),
        (lambda k: c.login_with_token(k, token), 11),
        (lambda k: c.login_with_token(k, "no such token"), 10),
        (lambda k: k.login("nobody", "secret"), 9),
    ):
        with Client(node.host, node.port) as anna, pytest.raises(Evicted) as evicted:
            log_in(anna)
        assert evicted.value.reason == reason
    c.set_status(client, "anna", 1)
    with Client(node.host, node.port) as anna:
        c.login_with_token(anna, token)
        with pytest.raises(Refused) as refused:
            anna.change(CREATE_STREAM, text("denied"))
        assert (refused.value.code, refused.value.channel) == (41, "result")
    for change in (lambda: c.delete_user(client, 0), lambda: c.set_permissions(client, 0, None)):
        with pytest.raises(Refused) as refused:
            change()
        assert refused.value.code in (48, 49)
    with pytest.raises(Refused) as refused:
        client.read(FLUSH, identifier("s") + identifier("t") + bytes(5))
    assert refused.value.code == 5
