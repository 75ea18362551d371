"""C010: the offsets of a group die with it, with its topic, and stay dead over a restart."""

import pytest

from tests.support.client import Client
from tests.support.commands import create_group, delete_group, delete_topic, group_offset, join_group, poll_group
from tests.support.node import Node


@pytest.mark.parametrize("how", ["group", "group, restart", "topic"])
def test_a_new_group_begins_at_the_start(node: Node, how: str) -> None:
    with node.client() as client:
        client.create_stream("s")
        for life in range(2):
            if life == 0 or how == "topic":
                client.create_topic("s", "t")
                client.send("s", "t", 0, [b"%d" % number for number in range(10)])
            create_group(client, "s", "t", "g")
            join_group(client, "s", "t", "g")
            assert group_offset(client, "s", "t", "g", 0) is None
            messages = poll_group(client, "s", "t", "g", 0, auto_commit=True)
            assert [message.offset for message in messages or []] == list(range(10))
            assert group_offset(client, "s", "t", "g", 0) == 9
            if how == "topic":
                delete_topic(client, "s", "t")
            else:
                delete_group(client, "s", "t", "g")
            if how == "group, restart":
                node.restart()
                client.close()
                client = Client(node.host, node.port)
                client.login()
        client.close()
