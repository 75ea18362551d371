"""C002: a poll by time finds messages that were just sent, and the same ones after a restart."""

import time

from tests.support.client import Client
from tests.support.frames import BY_TIMESTAMP
from tests.support.node import Node


def test_poll_by_time_before_and_after_a_restart(node: Node, client: Client) -> None:
    client.create_stream("s")
    client.create_topic("s", "t", options={"messages_required_to_save": "100000"})
    for number in range(10):
        client.send("s", "t", 0, [b"m%d" % number])
        time.sleep(0.02)
    (fifth,) = client.poll("s", "t", 0, value=5, count=1)
    wanted = [b"m%d" % number for number in range(5, 10)]

    def found(connection: Client) -> list[bytes]:
        messages = connection.poll("s", "t", 0, strategy=BY_TIMESTAMP, value=fifth.timestamp, count=100)
        return [message.payload for message in messages]

    assert found(client) == wanted
    node.restart()
    with node.client() as again:
        assert found(again) == wanted
