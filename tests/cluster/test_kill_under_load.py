"""kill -9 of one node of three under load: service goes on, and every node ends with everything acknowledged, once."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.load import STREAM, TOPIC, Ledger, Producer
from tests.support.client import Evicted, Message, Refused
from tests.support.cluster import Cluster, ClusterNode
from tests.support.frames import ConnectionLost

PARTITIONS = 3
PRODUCERS = 6
BATCHES = 15
SERVICE_BACK_SECONDS = 20.0
"""Bound on the time from a kill until every producer has been acknowledged again; heartbeats are 2 s in tests."""


class Survivor(Producer):
    """A producer that goes on with its next messages on another node when its connection is lost or refused."""

    def __init__(self, cluster: Cluster, ledger: Ledger, partition: int, name: str) -> None:
        super().__init__(cluster.nodes[0], ledger, partition, name)
        self.cluster = cluster
        self.number = 0
        self.chance = random.Random(name)

    def run(self) -> None:
        try:
            while not self.finish.is_set():
                self._work(self.chance.choice(self.cluster.nodes))
        except BaseException as error:
            self.failure = error
        finally:
            with self.progress:
                self.progress.notify_all()

    def _work(self, node: ClusterNode) -> None:
        try:
            with node.client(timeout=5.0) as client:
                while not self.finish.is_set():
                    payloads = [b"%s-%d" % (self.identity, self.number + index) for index in range(self.number % 3 + 1)]
                    self.number += len(payloads)
                    before = self.acknowledged
                    self._send(client, payloads)
                    if self.acknowledged == before:
                        return
        except (ConnectionLost, OSError, Evicted):
            return
        except Refused as refusal:
            if refusal.code not in (57, 58):
                raise


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as running:
        with running.client(running.leader()) as client:
            client.create_stream(STREAM)
            client.create_topic(STREAM, TOPIC, PARTITIONS)
        yield running


def read(cluster: Cluster, node: ClusterNode) -> list[list[Message]] | None:
    try:
        with node.client(timeout=20.0) as client:
            return [client.poll_all(STREAM, TOPIC, partition) for partition in range(PARTITIONS)]
    except (ConnectionLost, OSError, Evicted, Refused):
        return None


def check(cluster: Cluster, ledger: Ledger) -> None:
    """All nodes end with the same messages, and with everything that was acknowledged."""
    seen: list[list[list[Message]]] = []

    def same() -> bool:
        found = [read(cluster, node) for node in cluster.nodes]
        seen[:] = [messages for messages in found if messages is not None]
        return len(seen) == len(cluster.nodes) and all(messages == seen[0] for messages in seen)

    cluster.until(same, timeout=120.0)
    wrong = [line for partition in range(PARTITIONS) for line in ledger.check(partition, seen[0][partition])]
    shown = "\n".join(wrong[:20])
    count = ledger.acknowledged()
    assert not wrong, f"{len(wrong)} findings after {count} acknowledgements:\n{shown}\n{cluster.logs()}"


@pytest.mark.parametrize("victims", ["leader", "any"])
def test_what_was_acknowledged_survives(
    cluster: Cluster, victims: str, rounds: int, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger()
    times = []
    for number in range(rounds):
        producers = [
            Survivor(cluster, ledger, index % PARTITIONS, f"round {number} producer {index}")
            for index in range(PRODUCERS)
        ]
        for producer in producers:
            producer.start()
        for producer in producers:
            producer.await_acknowledged(BATCHES, 60.0)
        victim = cluster.leader() if victims == "leader" else cluster.nodes[number % len(cluster.nodes)]
        victim.kill()
        killed_at = time.monotonic()
        for producer in producers:
            producer.await_acknowledged(producer.acknowledged + 1, 60.0)
        times.append(time.monotonic() - killed_at)
        for producer in producers:
            producer.finish.set()
            producer.ended(60.0)
        victim.start()
        check(cluster, ledger)
    with capsys.disabled():
        shown = ", ".join(f"{seconds:.2f} s" for seconds in times)
        print(f"\n{victims} killed: all producers acknowledged again after {shown}; {ledger.acknowledged()} messages")
    assert max(times) < SERVICE_BACK_SECONDS
