"""C005: segments rolled before and after a start expire alike; nothing younger goes and offsets stay."""

import time
from collections.abc import Callable
from pathlib import Path

from tests.support.client import Client
from tests.support.commands import topic_facts
from tests.support.frames import FIRST
from tests.support.node import Node

EXPIRY_SECONDS = 2.0
SEGMENT = 1024 * 1024
BATCH = [bytes(32 * 1024)] * 8
"""A quarter of a segment."""


def fill(client: Client) -> None:
    for _ in range(4 * 3 + 1):
        client.send("s", "t", 0, BATCH)


def check_numbers(client: Client) -> int:
    """Numbers equal what is readable; returns the first offset."""
    facts = topic_facts(client, "s", "t")
    assert facts is not None
    oldest = client.poll("s", "t", 0, strategy=FIRST, count=1)
    # A segment that the last batch filled exactly is sealed, and goes too: then nothing is left.
    first = oldest[0].offset if oldest else facts.partitions[0].current_offset + 1
    assert facts.partitions[0].messages == facts.partitions[0].current_offset + 1 - first
    count = 0
    size = 0
    start = first
    while True:
        _, batches = client.poll_batches("s", "t", 0, value=start, count=100_000)
        if not batches:
            break
        size += sum(batch.length for batch in batches)
        count += sum(len(batch.messages) for batch in batches)
        start = batches[-1].messages[-1].offset + 1
    assert (count, size) == (facts.partitions[0].messages, facts.partitions[0].size)
    return first


def test_old_and_new_segments_expire(tmp_path: Path, eventually: Callable[..., None]) -> None:
    environment = {"IGGY_DATA_MAINTENANCE_MESSAGES_INTERVAL": "200 ms"}
    with Node(tmp_path, environment=environment) as node:
        sent = 0
        for life in range(2):
            with node.client() as client:
                if life == 0:
                    client.create_stream("s")
                    options = {"segment_size": str(SEGMENT), "message_expiry": f"{int(EXPIRY_SECONDS)} s"}
                    client.create_topic("s", "t", options=options)
                for _ in range(2):
                    fill(client)
                    sent += 13 * 8
                    began = time.monotonic()
                    young = check_numbers(client)
                    assert sent - young >= 13 * 8, "nothing that was just sent may go"

                    def segments(connection: Client = client) -> bool:
                        facts = topic_facts(connection, "s", "t")
                        return facts is not None and facts.partitions[0].segments == 1

                    eventually(segments, EXPIRY_SECONDS * 4)
                    assert time.monotonic() - began >= EXPIRY_SECONDS * 0.9
                    first = check_numbers(client)
                    assert young < first <= sent
                    assert client.send("s", "t", 0, [b"next"]) == sent
                    sent += 1
            node.restart()
