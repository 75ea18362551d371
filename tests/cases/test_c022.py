"""C022: what was acknowledged can be read at once, by anybody."""

from tests.support.client import Client
from tests.support.node import Node

ROUNDS = 3000


def test_read_behind_the_acknowledgement(node: Node, client: Client, rounds: int) -> None:
    client.create_stream("s")
    client.create_topic("s", "t", options={"messages_required_to_save": "7"})
    with node.client() as reader:
        for number in range(ROUNDS * (rounds // 3)):
            payload = b"%d" % number
            offset = client.send("s", "t", 0, [payload])
            found = reader.poll("s", "t", 0, value=offset, count=1)
            assert [(message.offset, message.payload) for message in found] == [(offset, payload)]
