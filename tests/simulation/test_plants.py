"""The harness around planted bugs: what counts as found."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from shardsrv.sim import plants
from shardsrv.sim.plant_list import PLANTS

PLANT = next(plant for plant in PLANTS if plant.name == "canary")
SUMMARY = "{} runs, 1 violations, and so on"


class Runs:
    """Stands for the processes of the harness: with the plant every seed from ``red`` on is red, without it those of
    ``also``."""

    def __init__(self, red: int, also: tuple[int, ...]) -> None:
        self.red = red
        self.also = also
        self.tried: list[tuple[int, int]] = []

    def __call__(self, root: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        if "--seed" in arguments:
            seed = int(arguments[arguments.index("--seed") + 1])
            return subprocess.CompletedProcess(arguments, int(seed in self.also), "", "")
        count, first = (int(arguments[arguments.index(flag) + 1]) for flag in ("--seeds", "--first-seed"))
        self.tried.append((first, count))
        red = max(first, self.red)
        if red >= first + count:
            return subprocess.CompletedProcess(arguments, 0, f"{count} runs, 0 violations", "")
        lines = f"VIOLATION seed {red}: durability: gone\n{SUMMARY.format(red - first + 1)}\n"
        return subprocess.CompletedProcess(arguments, 1, lines, "")


def found(monkeypatch: pytest.MonkeyPatch, red: int, also: tuple[int, ...] = ()) -> tuple[plants.Outcome, Runs]:
    runs = Runs(red, also)
    monkeypatch.setattr(plants, "_run", runs)
    return plants.try_plant(PLANT, first_seed=100, seeds=10), runs


def test_a_red_seed_that_is_green_without_the_plant_is_a_find(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, runs = found(monkeypatch, 103)
    assert (outcome.found, outcome.seeds) == (True, 4)
    assert runs.tried == [(100, 10)]


def test_a_seed_that_is_red_without_the_plant_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, runs = found(monkeypatch, 103, also=(103, 104))
    assert (outcome.found, outcome.seeds) == (True, 6)
    assert runs.tried == [(100, 10), (104, 6), (105, 5)]


def test_a_plant_that_only_seeds_find_that_are_red_anyway_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, _ = found(monkeypatch, 108, also=(108, 109))
    assert (outcome.found, outcome.seeds) == (False, 10)
    assert "2 seeds are red without it too" in outcome.text


def test_a_plant_whose_run_breaks_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = subprocess.CompletedProcess([], 1, "seeds 100..109\n", "Traceback\nNameError: no such name\n")
    monkeypatch.setattr(plants, "_run", lambda root, arguments: broken)
    outcome = plants.try_plant(PLANT, first_seed=100, seeds=10)
    assert not outcome.found
    assert outcome.text == "the run breaks: NameError: no such name"
