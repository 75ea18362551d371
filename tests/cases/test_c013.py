"""C013: creating a group whose name exists is refused and leaves the live group alone."""

import pytest

from tests.support.client import Client, Refused
from tests.support.commands import create_group, group_members, group_offset, join_group, poll_group
from tests.support.node import Node


def test_a_name_that_exists(node: Node, client: Client) -> None:
    client.create_stream("s")
    client.create_topic("s", "t", 2)
    create_group(client, "s", "t", "g")
    with node.client() as other:
        for member in (client, other):
            join_group(member, "s", "t", "g")
        members = group_members(client, "s", "t", "g")
        client.send("s", "t", 0, [b"one"])
        assert len(poll_group(client, "s", "t", "g", 0, auto_commit=True) or []) == 1
        with node.client() as third, pytest.raises(Refused) as refused:
            create_group(third, "s", "t", "g")
        assert (refused.value.code, refused.value.channel) == (5004, "result")
        assert group_members(client, "s", "t", "g") is not None and len(members or {}) == 2
        assert group_offset(client, "s", "t", "g", 0) == 0
        client.send("s", "t", 0, [b"two"])
        assert [message.payload for message in poll_group(client, "s", "t", "g", 0) or []] == [b"two"]
