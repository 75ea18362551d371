"""C058: a send that is repeated because its reply was lost is stored once, and every reply names the same place."""

from tests.support.batches import encode_batch
from tests.support.client import Client
from tests.support.frames import SEND_MESSAGES, send_body
from tests.support.node import Node


def test_a_retry_is_stored_once(node: Node, client: Client) -> None:
    client.create_stream("s")
    client.create_topic("s", "t", 2)
    for number in range(50):
        body = send_body("s", "t", number % 2, 2, encode_batch([b"%d" % number, b"%d again" % number]))
        client.request += 1
        answers = [client.exchange(SEND_MESSAGES, body, request=client.request) for _ in range(3)]
        assert {answer.status for answer in answers} == {0}
        assert len({answer.body for answer in answers}) == 1
    for partition in range(2):
        wanted = [payload for number in range(partition, 50, 2) for payload in (b"%d" % number, b"%d again" % number)]
        assert [message.payload for message in client.poll_all("s", "t", partition)] == wanted
    older = send_body("s", "t", 0, 1, encode_batch([b"another body under an older number"]))
    answer = client.exchange(SEND_MESSAGES, older, request=3)
    assert answer.status == 0, "another batch under an old number is no retry: clients of before reuse numbers"
