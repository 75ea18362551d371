"""C025: many tiny messages, one a request and many in flight, take far fewer writes than messages."""

import threading
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from tests.support.client import Client
from tests.support.node import Node

SENDERS, EACH = 8, 1000


def test_tiny_messages(node: Node, client: Client, tmp_path: Path) -> None:
    client.create_stream("s")
    client.create_topic("s", "t", options={"messages_required_to_save": "100000"})

    def writes() -> int:
        return sum(psutil.Process(pid).io_counters().write_count for pid in node.shard_pids())

    def produce(sender: int) -> None:
        with node.client() as producer:
            for number in range(EACH):
                producer.send("s", "t", 0, [b"%d:%d" % (sender, number)])

    before = writes()
    threads = [threading.Thread(target=produce, args=(sender,)) for sender in range(SENDERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Answers are writes too: one for each message and no more; what the log takes comes on top, and is shared.
    assert writes() - before < 2.5 * SENDERS * EACH
    node.restart()
    with node.client() as again:
        found = [message.payload for message in again.poll_all("s", "t", 0, 5000)]
    assert len(found) == len(set(found)) == SENDERS * EACH
    for sender in range(SENDERS):
        mine = [payload for payload in found if payload.startswith(b"%d:" % sender)]
        assert mine == [b"%d:%d" % (sender, number) for number in range(EACH)]
