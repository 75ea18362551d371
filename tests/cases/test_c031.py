"""C031: a topic made without an expiry or a size has those of the server, and they are obeyed."""

import struct
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.client import Client
from tests.support.commands import topic_facts
from tests.support.frames import GET_TOPIC, identifier
from tests.support.node import Node

MIB = 1024 * 1024


def expiry(client: Client, topic: str) -> int:
    """Microseconds, as the topic's record says."""
    return struct.unpack_from("<Q", client.read(GET_TOPIC, identifier("s") + identifier(topic)), 16)[0]


def test_defaults_of_the_server(tmp_path: Path, eventually: Callable[..., None]) -> None:
    environment = {
        "IGGY_TOPIC_MESSAGE_EXPIRY": "1 s",
        "IGGY_TOPIC_SEGMENT_SIZE": "1 MiB",
        "IGGY_DATA_MAINTENANCE_MESSAGES_INTERVAL": "200 ms",
    }
    with Node(tmp_path, environment=environment) as node:
        with node.client() as client:
            client.create_stream("s")
            client.create_topic("s", "default")
            client.create_topic("s", "never", options={"message_expiry": "never_expire"})
            client.create_topic("s", "own", options={"message_expiry": "1 h"})
        node.restart()
        with node.client() as client:
            assert expiry(client, "default") == 1_000_000
            assert expiry(client, "never") == 2**64 - 1
            assert expiry(client, "own") == 3_600_000_000
            for name in ("default", "never", "own"):
                for _ in range(3):
                    client.send("s", name, 0, [bytes(900 * 1024)])

            def messages(name: str) -> int:
                facts = topic_facts(client, "s", name)
                assert facts is not None
                return facts.messages

            eventually(lambda: messages("default") <= 1)
            time.sleep(0.5)
            assert messages("never") == messages("own") == 3
