"""Encryption at rest: what clients see is as sent, what lies on disk is not, and another key is told apart."""

import base64
from pathlib import Path

import pytest

from tests.support.batches import encode_batch
from tests.support.client import Refused
from tests.support.frames import NEXT, SEND_MESSAGES, send_body
from tests.support.node import Node

KEY = base64.b64encode(b"k" * 32).decode()
OTHER = base64.b64encode(b"o" * 32).decode()
MARK = b"in the clear"


def environment(key: str) -> dict[str, str]:
    return {"IGGY_SYSTEM_ENCRYPTION_ENABLED": "true", "IGGY_SYSTEM_ENCRYPTION_KEY": key}


def test_stored_encrypted_and_read_in_the_clear(tmp_path: Path) -> None:
    with Node(tmp_path, environment=environment(KEY)) as node:
        with node.client() as client:
            client.create_stream("s")
            client.create_topic("s", "t", 2)
            payloads = [MARK + b"%d" % number for number in range(50)]
            client.send("s", "t", 0, payloads)
            large = [MARK * 20_000, b"x", MARK * 1000]
            client.send("s", "t", 1, large)
            body = send_body("s", "t", 0, 1, encode_batch([MARK + b"retried"]))
            client.request += 1
            answers = {client.exchange(SEND_MESSAGES, body, request=client.request).body for _ in range(2)}
            assert len(answers) == 1
            wanted = [*payloads, MARK + b"retried"]
            assert [message.payload for message in client.poll("s", "t", 0)] == wanted
            assert [message.payload for message in client.poll("s", "t", 0, value=20, count=3)] == payloads[20:23]
            assert [message.payload for message in client.poll("s", "t", 1)] == large
        node.restart()
        with node.client() as client:
            assert [message.payload for message in client.poll("s", "t", 1)] == large
        node.stop()
        segments = list((node.data / "partitions").rglob("*.seg"))
        assert segments and not any(MARK in path.read_bytes() for path in segments)
        shown = "".join(path.read_text() for path in (node.data / "runtime").glob("*.toml"))
        assert KEY not in shown and KEY not in node.log_path.read_text()

        node.environment.update(environment(OTHER))
        node.start()
        with node.client() as client:
            with pytest.raises(Refused) as refused:
                client.poll("s", "t", 0, strategy=NEXT, auto_commit=True)
            assert (refused.value.code, refused.value.channel) == (72, "status")
            assert client.get_offset("s", "t", 0) is None, "what cannot be opened is not consumed"
            client.create_topic("s", "new")
            client.send("s", "new", 0, [b"under the other key"])
            assert [message.payload for message in client.poll("s", "new", 0)] == [b"under the other key"]


@pytest.mark.parametrize("key", ["", "short", base64.b64encode(bytes(16)).decode()])
def test_a_bad_key_is_refused_at_start(tmp_path: Path, key: str) -> None:
    node = Node(tmp_path, environment=environment(key))
    with pytest.raises(Exception, match="the node ended"):
        node.start()
    assert "system.encryption.key" in node.log_tail()
    assert not key or key not in node.log_tail().replace("system.encryption.key", "")
