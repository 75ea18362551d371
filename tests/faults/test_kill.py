"""A node that is killed under load keeps every acknowledged message: once, in order, without a gap in the offsets."""

import itertools
import os
import random
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.load import STREAM, TOPIC, TRANSIENT, Ledger, Producer
from tests.support.client import Client, Refused
from tests.support.frames import ConnectionLost
from tests.support.node import Node

PARTITIONS = 3
PRODUCERS = 4
SERVICE_BACK_SECONDS = 2.0
"""Bound on the time from the death of a shard until every partition takes messages again."""
RETRY_MILLISECONDS = 2

Kill = Callable[[Node, int], object]
KILLS: dict[str, Kill] = {
    "supervisor": lambda node, _number: node.kill_supervisor(),
    "all": lambda node, _number: node.kill(),
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path) as running:
        with running.client() as client:
            client.create_stream(STREAM)
            client.create_topic(STREAM, TOPIC, PARTITIONS)
        yield running


def load(node: Node, ledger: Ledger, number: int) -> list[Producer]:
    """Producers that have got going: each holds a few acknowledgements, a different number in every round."""
    producers = [
        Producer(node, ledger, index % PARTITIONS, f"round {number} producer {index}") for index in range(PRODUCERS)
    ]
    for producer in producers:
        producer.start()
    enough = random.Random(number).randint(20, 200)
    for producer in producers:
        producer.await_acknowledged(enough)
    return producers


def check(node: Node, ledger: Ledger) -> None:
    """Read every partition back and compare it with the ledger."""
    with node.client() as client:
        wrong = [
            line
            for partition in range(PARTITIONS)
            for line in ledger.check(partition, client.poll_all(STREAM, TOPIC, partition))
        ]
    shown = "\n".join(wrong[:20])
    assert not wrong, (
        f"{len(wrong)} findings after {ledger.acknowledged()} acknowledgements:\n{shown}\n{node.log_tail()}"
    )


@pytest.mark.parametrize("victim", sorted(KILLS))
def test_what_was_acknowledged_survives_a_kill(node: Node, victim: str, rounds: int) -> None:
    ledger = Ledger()
    for number in range(rounds):
        producers = load(node, ledger, number)
        KILLS[victim](node, number)
        for producer in producers:
            producer.ended()
        node.start()
        check(node, ledger)
    assert ledger.acknowledged() >= rounds * PRODUCERS * 20


def test_a_killed_shard_is_back_by_itself(node: Node, rounds: int, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = Ledger()
    times = []
    for number in range(rounds):
        producers = load(node, ledger, number)
        supervisor = node.pid
        killed_at = time.monotonic()
        node.kill_shard(number)
        await_every_partition(node, ledger, number)
        times.append(time.monotonic() - killed_at)
        for producer in producers:
            producer.finish.set()
            producer.ended()
        assert node.pid == supervisor
        check(node, ledger)
        # A clean stop and start in between: the pauses of the supervisor grow with deaths that follow each other.
        assert node.stop() == 0
        node.start()
        check(node, ledger)
    with capsys.disabled():
        print(f"\nservice back after the kill of a shard: {', '.join(f'{seconds:.2f} s' for seconds in times)}")
    assert max(times) < SERVICE_BACK_SECONDS


def await_every_partition(node: Node, ledger: Ledger, number: int, timeout: float = 20.0) -> None:
    """Return as soon as a new connection could log in and send to every partition; every try is in the ledger."""
    deadline = time.monotonic() + timeout
    supervisor = os.pidfd_open(node.pid)
    try:
        ended = select.poll()
        ended.register(supervisor, select.POLLIN)
        for attempt in itertools.count():
            if sent_everywhere(node, ledger, f"round {number} probe {attempt}"):
                return
            assert not ended.poll(RETRY_MILLISECONDS), f"the supervisor ended too\n{node.log_tail()}"
            assert time.monotonic() < deadline, f"no service within {timeout} s\n{node.log_tail()}"
    finally:
        os.close(supervisor)


def sent_everywhere(node: Node, ledger: Ledger, name: str) -> bool:
    """Whether a new connection could log in and send one message to each partition."""
    try:
        with Client(node.host, node.port, timeout=5.0) as client:
            client.login()
            for partition in range(PARTITIONS):
                payload = f"{name} partition {partition}".encode()
                ledger.try_send(partition, name.encode(), [payload])
                ledger.confirm(partition, client.send(STREAM, TOPIC, partition, [payload]), [payload])
    except (OSError, ConnectionLost):
        return False
    except Refused as refusal:
        if refusal.code not in TRANSIENT:
            raise
        return False
    return True
