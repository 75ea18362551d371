"""C015: totals of topics, streams and the node always are the sums of what is readable."""

from tests.support.client import Client
from tests.support.commands import (
    delete_partitions,
    delete_topic,
    purge_topic,
    stream_facts,
    topic_facts,
    total_messages,
)
from tests.support.frames import CREATE_PARTITIONS, PURGE_STREAM, identifier
from tests.support.node import Node


def check(client: Client, wanted: dict[str, list[int]]) -> None:
    """``wanted``: messages of each partition, by topic."""
    size = messages = 0
    for name, counts in wanted.items():
        facts = topic_facts(client, "s", name)
        assert facts is not None
        read = []
        for partition in range(len(counts)):
            _, batches = client.poll_batches("s", name, partition, count=10_000)
            read.append((sum(batch.length for batch in batches), sum(len(batch.messages) for batch in batches)))
        assert [count for _, count in read] == counts
        assert [(partition.size, partition.messages) for partition in facts.partitions] == read
        assert (facts.size, facts.messages) == tuple(map(sum, zip(*read, strict=True))) if read else (0, 0)
        size += facts.size
        messages += facts.messages
    assert stream_facts(client, "s") == (size, messages) == total_messages(client)


def test_totals(node: Node, client: Client) -> None:
    client.create_stream("s")
    client.create_topic("s", "a")
    client.create_topic("s", "b", 2)
    client.send("s", "a", 0, [b"a"] * 100)
    client.send("s", "b", 0, [b"b"] * 15)
    client.send("s", "b", 1, [b"b"] * 25)
    check(client, {"a": [100], "b": [15, 25]})
    purge_topic(client, "s", "a")
    check(client, {"a": [0], "b": [15, 25]})
    delete_partitions(client, "s", "b", 1)
    check(client, {"a": [0], "b": [15]})
    node.restart()
    with node.client() as again:
        check(again, {"a": [0], "b": [15]})
        again.change(CREATE_PARTITIONS, identifier("s") + identifier("b") + b"\1\0\0\0")
        check(again, {"a": [0], "b": [15, 0]})
        again.send("s", "a", 0, [b"new"])
        delete_topic(again, "s", "b")
        check(again, {"a": [1]})
        again.change(PURGE_STREAM, identifier("s"))
        check(again, {"a": [0]})
