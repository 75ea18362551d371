"""C009: the offset of a group belongs to the group, not to the member that stored it."""

import pytest

from tests.support.client import Client
from tests.support.commands import create_group, group_offset, join_group, leave_group, poll_group, store_group_offset
from tests.support.node import Node


@pytest.mark.usefixtures("topic")
def test_the_next_member_goes_on(node: Node, client: Client) -> None:
    group = create_group(client, "s", "t", "g")
    client.send("s", "t", 0, [b"%d" % number for number in range(10)])
    with node.client() as first:
        join_group(first, "s", "t", "g")
        assert [message.offset for message in poll_group(first, "s", "t", "g", 0, count=5) or []] == [0, 1, 2, 3, 4]
        store_group_offset(first, "s", "t", "g", 0, 4)
        leave_group(first, "s", "t", "g")
    with node.client() as second:
        join_group(second, "s", "t", "g")
        assert [message.offset for message in poll_group(second, "s", "t", "g", 0) or []] == [5, 6, 7, 8, 9]
        assert group_offset(second, "s", "t", "g", 0) == 4
    assert group_offset(client, "s", "t", "g", 0) == 4
    assert client.get_offset("s", "t", 0, consumer=group) is None
