"""C003: a poll by time begins with the first message appended at or after it, also with encryption."""

import base64
import time
from pathlib import Path

import pytest

from tests.support.frames import BY_TIMESTAMP
from tests.support.node import Node

KEY = base64.b64encode(bytes(range(32))).decode()


@pytest.mark.parametrize("encrypted", [False, True])
def test_first_message_at_or_after_the_time(tmp_path: Path, encrypted: bool) -> None:
    environment = {"IGGY_SYSTEM_ENCRYPTION_ENABLED": "true", "IGGY_SYSTEM_ENCRYPTION_KEY": KEY} if encrypted else {}
    with Node(tmp_path, environment=environment) as node, node.client() as client:
        client.create_stream("s")
        client.create_topic("s", "t")
        for batch in range(3):
            client.send("s", "t", 0, [b"%d-%d" % (batch, number) for number in range(100)])
            time.sleep(0.05)
        second = client.poll("s", "t", 0, value=100, count=1)[0].timestamp
        last = client.poll("s", "t", 0, value=299, count=1)[0].timestamp

        at = client.poll("s", "t", 0, strategy=BY_TIMESTAMP, value=second, count=300)
        assert [message.offset for message in at] == list(range(100, 300))
        after = client.poll("s", "t", 0, strategy=BY_TIMESTAMP, value=second + 1, count=300)
        assert [message.offset for message in after] == list(range(200, 300))
        current, late = client.poll_batches("s", "t", 0, strategy=BY_TIMESTAMP, value=last + 1, count=300)
        assert (current, late) == (299, [])
