"""C011: a partition moves to a new member only when its owner has committed what it polled, or its time is over."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.client import Client
from tests.support.commands import (
    create_group,
    group_members,
    join_group,
    leave_group,
    poll_group,
    store_group_offset,
    sync_group,
)
from tests.support.node import Node

TIMEOUT = 1.5


def prepare(client: Client) -> None:
    client.create_stream("s")
    client.create_topic("s", "t", 2)
    create_group(client, "s", "t", "g")
    for partition in range(2):
        client.send("s", "t", partition, [b"%d" % number for number in range(10)])


def assigned(client: Client) -> list[int]:
    found = sync_group(client, "s", "t", "g")
    assert found is not None
    return found[1]


@pytest.fixture
def short(tmp_path: Path) -> Node:
    return Node(tmp_path, environment={"IGGY_CONSUMER_GROUP_REBALANCING_TIMEOUT": f"{int(TIMEOUT * 1000)} ms"})


def test_the_owner_commits(node: Node, eventually: Callable[..., None]) -> None:
    with node.client() as first, node.client() as second:
        prepare(first)
        join_group(first, "s", "t", "g")
        seen = {
            (partition, message.offset)
            for partition in range(2)
            for message in poll_group(first, "s", "t", "g", partition) or []
        }
        join_group(second, "s", "t", "g")
        assert assigned(second) == [] and assigned(first) == [0]
        assert group_members(first, "s", "t", "g") == {0: [0, 1], 1: []}
        assert poll_group(second, "s", "t", "g", 1) is None
        assert poll_group(first, "s", "t", "g", 1) is None, "a partition that is handed over is not polled"
        store_group_offset(first, "s", "t", "g", 1, 9)
        eventually(lambda: assigned(second) == [1])
        first.send("s", "t", 0, [b"new"])
        first.send("s", "t", 1, [b"new"])
        store_group_offset(first, "s", "t", "g", 0, 9)
        later = [(0, message.offset) for message in poll_group(first, "s", "t", "g", 0) or []]
        later += [(1, message.offset) for message in poll_group(second, "s", "t", "g", 1) or []]
        assert later == [(0, 10), (1, 10)] and not seen & set(later)


def test_the_owner_never_commits(short: Node, eventually: Callable[..., None]) -> None:
    with short, short.client() as first, short.client() as second:
        prepare(first)
        join_group(first, "s", "t", "g")
        poll_group(first, "s", "t", "g", 1)
        store_group_offset(first, "s", "t", "g", 1, 3)
        began = time.monotonic()
        join_group(second, "s", "t", "g")
        assert assigned(second) == []
        eventually(lambda: assigned(second) == [1])
        assert time.monotonic() - began >= TIMEOUT * 0.9
        assert [message.offset for message in poll_group(second, "s", "t", "g", 1) or []] == [4, 5, 6, 7, 8, 9]


def test_the_owner_leaves(node: Node) -> None:
    with node.client() as first, node.client() as second:
        prepare(first)
        join_group(first, "s", "t", "g")
        poll_group(first, "s", "t", "g", 1)
        join_group(second, "s", "t", "g")
        leave_group(first, "s", "t", "g")
        assert assigned(second) == [0, 1]
        assert len(poll_group(second, "s", "t", "g", 1) or []) == 10


def test_nothing_polled_moves_at_once(node: Node, eventually: Callable[..., None]) -> None:
    with node.client() as first, node.client() as second:
        prepare(first)
        join_group(first, "s", "t", "g")
        join_group(second, "s", "t", "g")
        eventually(lambda: assigned(second) == [1] and assigned(first) == [0], 2.0)
