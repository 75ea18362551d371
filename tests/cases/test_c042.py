"""C042: a session's last request is answered again after a restart, and nothing is done twice."""

import struct

import pytest

from tests.support.batches import encode_batch
from tests.support.client import Client, Evicted
from tests.support.frames import CREATE_STREAM, SEND_MESSAGES, send_body, text
from tests.support.node import Node


def test_the_last_request_again(node: Node) -> None:
    with node.client() as client:
        client.create_stream("s")
        client.create_topic("s", "t")
        body = send_body("s", "t", 0, 1, encode_batch([b"once"]))
        client.request += 1
        first = client.exchange(SEND_MESSAGES, body, request=client.request)
        again = client.exchange(SEND_MESSAGES, body, request=client.request)
        assert first.body == again.body and first.status == again.status == 0
        client.change(CREATE_STREAM, text("other"))
        repeated = client.exchange(CREATE_STREAM, text("other"), request=client.request)
        assert repeated.result == 0, "a retry gets the reply of the first time"
        assert struct.unpack_from("<I", repeated.payload)[0] == 1
        old = (client.client, client.session)
    node.restart()
    with node.client() as client:
        assert [message.payload for message in client.poll("s", "t", 0)] == [b"once"]
        assert client.create_stream("third") == 2
    with Client(node.host, node.port) as stranger:
        # The session of before belongs to no connection any more.
        stranger.client, stranger.session = old
        with pytest.raises(Evicted) as evicted:
            stranger.change(CREATE_STREAM, text("fourth"))
        assert evicted.value.reason == 1


def test_a_smaller_table_of_clients(node: Node) -> None:
    for _ in range(5):
        node.client().close()
    held = [node.client() for _ in range(5)]
    node.kill()
    node.environment["IGGY_METADATA_CLIENTS_TABLE_MAX"] = "2"
    node.environment["SHARDSRV_METADATA_CLIENTS_TABLE_MAX"] = "2"
    try:
        node.start()
    except Exception:
        assert "clients" in node.log_tail(), "a refusal says why"
    else:
        with node.client() as client:
            client.create_stream("s")
    for client in held:
        client.close()
