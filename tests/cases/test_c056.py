"""C056: a full disk refuses sends, serves everything else, starts again, and takes sends as soon as a topic is gone."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.batches import encode_batch
from tests.support.client import Client, Refused
from tests.support.commands import delete_topic
from tests.support.node import Node

SIZE = 200 << 20
MESSAGES = 100
BATCH = encode_batch([bytes(10_000)] * MESSAGES)
OPTIONS = {"segment_size": str(8 << 20)}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 200 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system of one's own here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(client: Client, topic: str) -> tuple[int, int]:
    """Send until one is refused; (messages acknowledged, code of the refusal)."""
    acknowledged = 0
    while True:
        try:
            assert client.send_batch("s", topic, 0, MESSAGES, BATCH) == acknowledged
        except Refused as refused:
            return acknowledged, refused.code
        acknowledged += MESSAGES
        assert acknowledged * 10_000 < 2 * SIZE, "more was acknowledged than the disk has room for"


def check_reads(client: Client, topic: str, acknowledged: int) -> None:
    """All that was acknowledged is there, and nothing of what was refused."""
    offset = 0
    while messages := client.poll("s", topic, 0, value=offset, count=1000):
        assert [message.offset for message in messages] == list(range(offset, offset + len(messages)))
        offset += len(messages)
    assert offset == acknowledged


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a file system")
def test_a_full_disk_refuses_sends_and_nothing_else(small_disk: Path) -> None:
    node = Node(small_disk)
    with node:
        with node.client() as client:
            client.create_stream("s")
            for topic in ("big", "other"):
                client.create_topic("s", topic, 1, OPTIONS)
            acknowledged, code = fill(client, "big")
            print(f"{acknowledged} messages, then {code}")
            assert acknowledged * 10_000 > SIZE // 2
            check_reads(client, "big", acknowledged)
            with pytest.raises(Refused):
                client.send_batch("s", "other", 0, MESSAGES, BATCH)
        for _ in range(2):
            node.restart()
            with node.client() as client:
                check_reads(client, "big", acknowledged)
        node.kill()
        node.start()
        with node.client() as client:
            check_reads(client, "big", acknowledged)
            for topic in ("big", "other"):
                with pytest.raises(Refused):
                    client.send_batch("s", topic, 0, MESSAGES, BATCH)
            delete_topic(client, "s", "big")
            assert client.send_batch("s", "other", 0, MESSAGES, BATCH) == 0
            client.create_topic("s", "big", 1, OPTIONS)
            assert client.send_batch("s", "big", 0, MESSAGES, BATCH) == 0
        assert node.stop() == 0
