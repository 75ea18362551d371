"""A fresh node answers recorded exchanges as they were answered when recorded, but for deliberate deviations."""

from collections import Counter
from pathlib import Path

import pytest

from tests.support.node import Node
from tests.wire.conduct import deviations, recording
from tests.wire.conduct.recording import SINGLE_NODE_SOURCES, Exchange
from tests.wire.conduct.replay import Replayer

LEAST_COMPARED = 300


@pytest.fixture(scope="module")
def exchanges() -> list[Exchange]:
    return recording.load()


@pytest.fixture(scope="module")
def compared() -> Counter[str]:
    """Exchanges compared so far, by source."""
    return Counter()


@pytest.fixture(scope="module")
def exact() -> Counter[str]:
    """How many of them without any deviation, by source."""
    return Counter()


@pytest.fixture(scope="module")
def met() -> Counter[str]:
    """Deviations met so far, by class."""
    return Counter()


@pytest.mark.parametrize("source", SINGLE_NODE_SOURCES)
def test_answers_are_the_recorded_ones(
    source: str,
    exchanges: list[Exchange],
    compared: Counter[str],
    exact: Counter[str],
    met: Counter[str],
    tmp_path: Path,
) -> None:
    with Node(tmp_path) as node:
        report = Replayer(node.host, node.port, exchanges, deviations=deviations.load()).run(source)
        with node.client() as client:
            client.ping()
    compared[source] += report.compared
    exact[source] += report.exact
    met.update(report.deviations)
    differing = "\n".join(map(str, report.mismatches))
    assert not report.mismatches, f"{len(report.mismatches)} of {report.compared} differ:\n{differing}"


def test_enough_exchanges_were_compared(
    compared: Counter[str], exact: Counter[str], met: Counter[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if set(compared) != set(SINGLE_NODE_SOURCES):
        pytest.skip("not every source was replayed in this run")
    with capsys.disabled():
        print(f"\nconduct: {compared.total()} recorded exchanges compared, {exact.total()} without any deviation")
    assert compared.total() >= LEAST_COMPARED
    assert {one.name for one in deviations.load()} == set(met), "a class of deviations covers no exchange"
