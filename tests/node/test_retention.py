"""Retention by size: what stays is below the limit, numbers are what is readable, memory and descriptors are flat."""

from collections.abc import Callable
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from tests.support.commands import delete_segments, topic_facts
from tests.support.frames import FIRST
from tests.support.node import Node

MIB = 1024 * 1024
LIMIT = 4 * MIB
SEALED_OPEN = 64
"""Descriptors of sealed segments that a shard keeps open for readers, at most."""


def test_size_limit(tmp_path: Path, eventually: Callable[..., None], rounds: int) -> None:
    with Node(tmp_path, environment={"IGGY_DATA_MAINTENANCE_MESSAGES_INTERVAL": "100 ms"}) as node:
        with node.client() as client:
            client.create_stream("s")
            client.create_topic("s", "t", 2, {"segment_size": str(MIB), "max_topic_size": str(2 * LIMIT)})
            batch = [bytes(1000)] * 250

            def settled() -> bool:
                facts = topic_facts(client, "s", "t")
                return facts is not None and facts.partitions[0].size <= LIMIT

            def used() -> tuple[int, int]:
                processes = [psutil.Process(pid) for pid in node.shard_pids()]
                return sum(one.memory_info().rss for one in processes), sum(one.num_fds() for one in processes)

            sent = 0
            first_use = None
            for number in range(20 * rounds):
                for _ in range(8):
                    assert client.send("s", "t", 0, batch) == sent
                    sent += len(batch)
                if number == 10:
                    first_use = used()
            eventually(settled)
            last_use = used()
            assert first_use is not None
            assert last_use[0] < first_use[0] * 1.15 + 16 * MIB
            assert last_use[1] <= first_use[1] + SEALED_OPEN

            def small() -> bool:
                """Files go after the numbers: once a checkpoint is durable."""
                sizes = [path.stat().st_size for path in (node.data / "partitions").rglob("*.seg") if path.exists()]
                return sum(sizes) < LIMIT + 3 * MIB

            eventually(small)
        node.restart()
        with node.client() as client:
            facts = topic_facts(client, "s", "t")
            assert facts is not None
            partition = facts.partitions[0]
            oldest = client.poll("s", "t", 0, strategy=FIRST, count=1)[0].offset
            _, batches = client.poll_batches("s", "t", 0, strategy=FIRST, count=1_000_000)
            assert partition.current_offset == sent - 1
            assert partition.messages == sent - oldest == sum(len(one.messages) for one in batches)
            assert partition.size == sum(one.length for one in batches)
            delete_segments(client, "s", "t", 0, 1000)
            facts = topic_facts(client, "s", "t")
            assert facts is not None and facts.partitions[0].segments == 1, "the open segment stays"
            assert facts.partitions[0].current_offset == sent - 1
