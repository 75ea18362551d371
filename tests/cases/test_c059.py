"""C059: a topic that is deleted and made again under traffic gives real answers, and no hang."""

import threading
import time

from tests.support.client import Client, Refused
from tests.support.commands import delete_topic
from tests.support.node import Node

ROUNDS = 30
SECONDS = 2.0
"""An answer takes no longer than this."""


def test_deleted_and_made_again(node: Node, client: Client) -> None:
    client.create_stream("s")
    client.create_topic("s", "t")
    stop = threading.Event()
    slow: list[float] = []
    codes: set[int] = set()
    accepted: list[tuple[bytes, int]] = []

    def produce() -> None:
        with node.client() as producer:
            number = 0
            while not stop.is_set():
                began = time.monotonic()
                payload = b"%d" % number
                try:
                    accepted.append((payload, producer.send("s", "t", 0, [payload])))
                except Refused as refused:
                    codes.add(refused.code)
                slow.append(time.monotonic() - began)
                number += 1

    def consume() -> None:
        with node.client() as consumer:
            while not stop.is_set():
                try:
                    consumer.poll("s", "t", 0, auto_commit=True)
                except Refused as refused:
                    codes.add(refused.code)

    threads = [threading.Thread(target=produce), threading.Thread(target=consume)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(ROUNDS):
            delete_topic(client, "s", "t")
            client.create_topic("s", "t")
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert not any(thread.is_alive() for thread in threads), "a request hangs"
    assert max(slow) < SECONDS
    assert codes <= {20, 57, 58, 1009, 2010, 3007}
    last = dict(accepted)
    left = client.poll_all("s", "t", 0)
    assert [message.offset for message in left] == list(range(len(left))), "the new topic begins at 0"
    assert all(last.get(message.payload) == message.offset for message in left)
