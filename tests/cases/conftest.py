"""A running node for each case, and waiting for what happens beside requests."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.client import Client
from tests.support.node import Node

PAUSE = 0.02
"""Seconds between two looks at something that nobody tells a client about."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path) as running:
        yield running


@pytest.fixture
def client(node: Node) -> Iterator[Client]:
    with node.client() as connected:
        yield connected


@pytest.fixture
def topic(client: Client) -> None:
    """Stream ``s`` with topic ``t`` of one partition."""
    client.create_stream("s")
    client.create_topic("s", "t")


@pytest.fixture(scope="session")
def eventually() -> Callable[..., None]:
    """Waits until a condition holds, and fails with its last value when it does not in time."""

    def wait(condition: Callable[[], object], seconds: float = 10.0) -> None:
        deadline = time.monotonic() + seconds
        while not (last := condition()):
            assert time.monotonic() < deadline, f"still {last!r} after {seconds} s"
            time.sleep(PAUSE)

    return wait
