"""Options of the test run.

``--long``     runs of tests that repeat rounds take ten times as many, and look at everything; every node is a fresh
               interpreter (`tests.support.nursery`)
``--samples``  with --long: how many of the disks that a power loss may leave (128; 1024 takes hours)
``--clients``  also run the tests of released clients, which install them from the package index
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.client import Client
from tests.support.node import Node

PAUSE = 0.02
"""Seconds between two looks at something that nobody tells a client about."""
MEMORY = Path("/dev/shm")
MEMORY_NEEDED = 1 << 30


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="repeat the rounds of fault tests 30 times instead of 3")
    parser.addoption("--samples", type=int, default=128, help="with --long: disks looked at for each power loss")
    parser.addoption("--clients", action="store_true", help="run the tests that install released clients")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--long"):
        os.environ.setdefault("SHARDSRV_TEST_EXEC", "1")
    config.addinivalue_line("markers", "clients: needs a released client from the package index; runs with --clients")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--clients"):
        return
    skip = pytest.mark.skip(reason="needs --clients")
    for item in items:
        if "clients" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def rounds(request: pytest.FixtureRequest) -> int:
    """How often a test of faults repeats its round."""
    return 30 if request.config.getoption("--long") else 3


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory for a node that no test takes the power from: in memory where the machine has room there."""
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < MEMORY_NEEDED:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="shardsrv-test-", dir=MEMORY) as directory:
        yield Path(directory)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A running node of one's own."""
    with Node(tmp_path) as running:
        yield running


@pytest.fixture
def client(node: Node) -> Iterator[Client]:
    """A connection to it, logged in as root."""
    with node.client() as connected:
        yield connected


@pytest.fixture(scope="session")
def eventually() -> Callable[..., None]:
    """Waits until a condition holds, and fails with its last value when it does not in time."""

    def wait(condition: Callable[[], object], seconds: float = 10.0) -> None:
        deadline = time.monotonic() + seconds
        while not (last := condition()):
            assert time.monotonic() < deadline, f"still {last!r} after {seconds} s"
            time.sleep(PAUSE)

    return wait
