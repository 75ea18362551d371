"""C038: after a restart, or a kill, reading on with auto-commit while someone sends shows every message once, in
order."""

import threading

import pytest

from tests.support.frames import NEXT
from tests.support.node import Node

FIRST, TOTAL = 300, 1500


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("threshold", ["1", "100", "1000000"])
def test_reading_on(node: Node, end: str, threshold: str) -> None:
    with node.client() as client:
        client.create_stream("s")
        client.create_topic("s", "t", options={"messages_required_to_save": threshold})
        for start in range(0, FIRST, 10):
            client.send("s", "t", 0, [b"%d" % number for number in range(start, start + 10)])
    node.stop() if end == "stop" else node.kill()
    node.start()

    def produce() -> None:
        with node.client() as producer:
            for start in range(FIRST, TOTAL, 10):
                producer.send("s", "t", 0, [b"%d" % number for number in range(start, start + 10)])

    thread = threading.Thread(target=produce)
    with node.client() as consumer:
        thread.start()
        seen: list[int] = []
        while len(seen) < TOTAL:
            messages = consumer.poll("s", "t", 0, strategy=NEXT, count=7, auto_commit=True)
            seen += [int(message.payload) for message in messages]
            assert messages or thread.is_alive() or len(seen) == TOTAL
    thread.join()
    assert seen == list(range(TOTAL))
