"""Metadata survives kills while it is written and while checkpoints of it are taken."""

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.client import Client, Refused
from tests.support.frames import ConnectionLost
from tests.support.node import Node
from tests.support.replies import Cursor, stream_record

CHECKPOINT_BYTES = 64 << 10
ENVIRONMENT = {"IGGY_METADATA_CHECKPOINT_BYTES": str(CHECKPOINT_BYTES)}
"""A checkpoint every few hundred streams instead of every sixteen mebibytes."""
GET_STREAMS = 201
TRANSIENT = frozenset({57, 58})


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path, environment=ENVIRONMENT) as running:
        yield running


def stream_names(client: Client) -> list[str]:
    """Names of all streams, in the order of their ids, which must rise."""
    cursor = Cursor(client.read(GET_STREAMS))
    records = []
    while cursor:
        records.append(stream_record(cursor))
    identities = [record["id"] for record in records]
    assert identities == sorted(set(identities))
    return [record["name"] for record in records]


class Maker(threading.Thread):
    """Creates streams, deletes every third again, and remembers which of it was acknowledged."""

    def __init__(self, node: Node, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.node = node
        self.kept: set[str] = set()
        self.deleted: set[str] = set()
        self.doubtful: set[str] = set()
        self.acknowledged = 0
        self.progress = threading.Condition()
        self.failure: BaseException | None = None

    def run(self) -> None:
        number = 0
        try:
            with self.node.client() as client:
                while True:
                    self._step(client, f"{self.name}-{number}", delete=number % 3 == 2)
                    number += 1
        except (ConnectionLost, OSError):
            pass  # the node was killed: what was under way stays doubtful
        except BaseException as error:
            self.failure = error
        finally:
            with self.progress:
                self.progress.notify_all()

    def await_acknowledged(self, count: int, timeout: float = 60.0) -> None:
        with self.progress:
            self.progress.wait_for(lambda: self.acknowledged >= count or not self.is_alive(), timeout)
        assert self.acknowledged >= count, f"{self.name}: {self.acknowledged} of {count}, failure {self.failure!r}"

    def ended(self, timeout: float = 20.0) -> None:
        self.join(timeout)
        assert not self.is_alive(), f"{self.name} still waits for an answer"
        if self.failure is not None:
            raise self.failure

    def _step(self, client: Client, name: str, *, delete: bool) -> None:
        self.doubtful.add(name)
        try:
            client.create_stream(name)
            if delete:
                client.delete_stream(name)
        except Refused as refusal:
            if refusal.code not in TRANSIENT:
                raise
            return
        self.doubtful.discard(name)
        (self.deleted if delete else self.kept).add(name)
        with self.progress:
            self.acknowledged += 1
            self.progress.notify_all()


def test_acknowledged_streams_survive_kills(node: Node, rounds: int) -> None:
    makers: list[Maker] = []
    for number in range(rounds):
        running = [Maker(node, f"round {number} maker {index}") for index in range(3)]
        makers += running
        for maker in running:
            maker.start()
        enough = random.Random(number).randint(60, 200)
        for maker in running:
            maker.await_acknowledged(enough)
        node.kill()
        for maker in running:
            maker.ended()
        node.start()
        with node.client() as client:
            names = stream_names(client)
        assert len(names) == len(set(names))
        kept = set().union(*(maker.kept for maker in makers))
        deleted = set().union(*(maker.deleted for maker in makers))
        doubtful = set().union(*(maker.doubtful for maker in makers))
        assert kept <= set(names), f"lost: {sorted(kept - set(names))[:5]}"
        assert not deleted & set(names), f"back again: {sorted(deleted & set(names))[:5]}"
        assert set(names) - kept <= doubtful


def test_a_snapshot_ahead_of_its_pairing_does_not_stop_a_start(node: Node) -> None:
    """The state of a node killed after it replaced the snapshot and before the superblock named the new one."""
    metadata = node.data / "metadata"
    superblocks = {path: path.read_bytes() for path in metadata.glob("superblock.*")}
    snapshot = metadata / "snapshot.bin"
    before = snapshot.stat().st_mtime_ns
    made: list[str] = []
    with node.client() as client:
        while snapshot.stat().st_mtime_ns == before:
            made.append(f"stream {len(made)}")
            client.create_stream(made[-1])
            assert len(made) < 20 * CHECKPOINT_BYTES // 256, "no checkpoint was taken"
    node.kill()
    for path in metadata.glob("superblock.*"):
        if path in superblocks:
            path.write_bytes(superblocks[path])
        else:
            path.unlink()
    node.start()
    with node.client() as client:
        assert stream_names(client) == made
        last = client.create_stream("after")
    assert last == len(made)
