"""C016: beyond the limits of ids a request is refused, and no two partitions share a log."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.client import Client, Refused, topic_body
from tests.support.commands import topic_facts
from tests.support.frames import CREATE_TOPIC, identifier, text
from tests.support.node import Node

TOPICS = 4096
CLIENTS = 16


@pytest.fixture
def node(place: Path) -> Iterator[Node]:
    """Thousands of commands: none has to wait for a disk."""
    with Node(place) as running:
        yield running


def test_more_topics_than_ids(node: Node, client: Client) -> None:
    client.create_stream("s")
    assert client.create_topic("s", "first") == 0

    def create(part: int) -> list[int]:
        # What is tried is the ids: these need no partition.
        bodies = [topic_body("s", f"t{number}", 0) for number in range(1 + part, TOPICS - 1, CLIENTS)]
        with node.client() as one:
            return [int.from_bytes(payload[:4], "little") for payload in one.changes(CREATE_TOPIC, bodies)]

    with ThreadPoolExecutor(CLIENTS) as pool:
        made = [number for numbers in pool.map(create, range(CLIENTS)) for number in numbers]
    assert sorted(made) == list(range(1, TOPICS - 1))
    assert client.create_topic("s", "last") == TOPICS - 1
    with pytest.raises(Refused) as refused:
        client.create_topic("s", "one more")
    assert (refused.value.code, refused.value.channel) == (2021, "result")
    client.create_stream("other")
    with pytest.raises(Refused) as refused:
        client.change(CREATE_TOPIC, identifier("other") + (1001).to_bytes(4, "little") + text("wide"))
    assert (refused.value.code, refused.value.channel) == (2015, "status")
    assert topic_facts(client, "other", "wide") is None
    assert client.create_topic("other", "narrow") == 0, "a refusal burns no id"
    client.send("s", 0, 0, [b"first"])
    client.send("s", TOPICS - 1, 0, [b"last"])
    for connection in (client, None):
        if connection is None:
            node.restart()
            connection = node.client()
        for topic, payload in ((0, b"first"), (TOPICS - 1, b"last")):
            assert [message.payload for message in connection.poll("s", topic, 0)] == [payload]
    connection.close()
