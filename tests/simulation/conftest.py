"""Options and small sizes for tests on simulated disks."""

import pytest

from shardsrv.store import groups
from tests.support.power_loss import TOTAL


@pytest.fixture(scope="session")
def long(request: pytest.FixtureRequest) -> bool:
    """Whether to look at everything (``--long``) and not at a subset that takes seconds."""
    return bool(request.config.getoption("--long"))


@pytest.fixture(scope="session")
def samples(request: pytest.FixtureRequest) -> int:
    """How many of the disks that a power loss may leave are looked at, at each moment that leaves more; 0 without
    ``--long``: a few, as each test says."""
    return int(request.config.getoption("--samples")) if request.config.getoption("--long") else 0


@pytest.fixture
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Group tables that grow by one pair at a time: 8 KiB instead of 512."""
    monkeypatch.setattr(groups, "GROWTH", 1)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if TOTAL:
        line = f"power lost at {TOTAL['moments']:,} moments, {TOTAL['disks']:,} different disks recovered and judged"
        terminalreporter.write_line(line)
