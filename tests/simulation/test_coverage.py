"""Rows of decision tables: which ones runs are asked for, and that meeting one is noted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shardsrv.sim import coverage
from shardsrv.sim.cli import FLAGS, parser
from shardsrv.sim.moments import MOMENTS

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
SCRIPT = """
from random import Random
from shardsrv.sim import coverage
from shardsrv.sim.options import draw
from shardsrv.sim.world import World
coverage.measure()
World(draw(Random("4/options"), 4, 3, 5)).run()
print("\\n".join(sorted(coverage.MET)))
print(coverage.text())
"""


def test_rows_that_cannot_be_met_are_rows() -> None:
    assert set(coverage.UNREACHABLE) < set(coverage.rows())
    assert len(coverage.reachable()) == len(coverage.rows()) - len(coverage.UNREACHABLE)


def test_the_document_says_which_rows_cannot_be_met_and_why() -> None:
    table = DOCUMENT.split("| row | why runs do not meet it |\n|---|---|\n")[1]
    assert table.splitlines() == [f"| {row} | {why} |" for row, why in coverage.UNREACHABLE.items()]


def test_the_document_knows_the_flags() -> None:
    for flag in FLAGS:
        assert f"--{flag}" in DOCUMENT and f"--{flag}" in parser().format_help()


def test_moments_have_names_of_their_own() -> None:
    assert len({moment.label for moment in MOMENTS}) == len(MOMENTS)


@pytest.fixture(scope="module")
def measured() -> str:
    """What a process of its own prints: measuring replaces functions for good."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize(
    "row",
    [
        "superblock against snapshot: fresh boot, or never checkpointed",
        "damage of a log: whole",
        "directory of a partition: new partition",
        "metadata request: new number",
        "start view: adopted",
    ],
)
def test_what_a_run_meets_is_noted(measured: str, row: str) -> None:
    assert row in measured.splitlines()


def test_what_is_not_met_is_told_and_what_cannot_be_is_not_asked_for(measured: str) -> None:
    told = [line.removeprefix("  not met: ") for line in measured.splitlines() if line.startswith("  not met: ")]
    assert told and not set(told) & set(coverage.UNREACHABLE)
    assert "cannot be" not in measured, "a row that cannot be met was"


def test_a_row_that_should_not_be_met_and_was_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    row = next(iter(coverage.UNREACHABLE))
    monkeypatch.setitem(coverage.MET, row, 1)
    assert f"met, although it cannot be: {row}" in coverage.text()
