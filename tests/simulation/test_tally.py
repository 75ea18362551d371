"""The ledger's tally: an hour counts only with everything that makes it a loaded one, and says what it lacks."""

import json
from pathlib import Path
from typing import Any

import pytest

from shardsrv.sim.cli import main
from shardsrv.sim.ledger import lacks

HOUR: dict[str, Any] = {
    "release": "abc",
    "seed": 7,
    "members": 5,
    "simulated_seconds": 3601.0,
    "wall_seconds": 240.0,
    "answered": {"send": 90_000, "create_topic": 900},
    "committed": 100_000,
    "faults": {"kill": 10, "power": 8, "partition": 1, "sync error": 1, "frames lost": 50},
    "view_changes": 2,
    "transfers": 3,
    "older_clients": 3,
    "newer_clients": 3,
    "violation": None,
}


def test_an_hour_with_everything_counts() -> None:
    assert lacks(HOUR) == []


@pytest.mark.parametrize(
    "change, name",
    [
        ({"simulated_seconds": 3599.0}, "an hour"),
        ({"members": 1}, "3 or 5 members"),
        ({"committed": 99_999}, "100000 commits"),
        ({"answered": {"send": 90_000}}, "both planes"),
        ({"faults": {**HOUR["faults"], "kill": 9}}, "20 faults"),
        ({"faults": {**HOUR["faults"], "kill": 18, "power": 0}}, "a crash with lost writes"),
        ({"faults": {**HOUR["faults"], "kill": 11, "partition": 0}}, "a partition"),
        ({"faults": {**HOUR["faults"], "kill": 11, "sync error": 0}}, "a disk fault"),
        ({"view_changes": 1}, "view changes"),
        ({"newer_clients": 0}, "both generations of clients"),
        ({"violation": "offsets: a gap"}, "no violation"),
    ],
)
def test_an_hour_that_lacks_one_thing_does_not_count(change: dict[str, Any], name: str) -> None:
    assert lacks(HOUR | change) == [name]


def test_tally_sums_what_counts_and_names_what_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = tmp_path / "ledger"
    ledger.write_text("".join(json.dumps(run) + "\n" for run in (HOUR, HOUR, HOUR | {"seed": 8, "committed": 5})))
    assert main(["--tally", str(ledger)]) == 0
    text = capsys.readouterr().out
    assert "3 runs, 0 violations; 2 loaded hours" in text
    assert "committed 200,000, faults 40" in text
    assert "seed 8 lacks 100000 commits" in text
