"""Planting bugs: a mutation goes into a copy of the package, which runs interpreted in a process of its own.

Owns the copies and the harness around `plant_list`. Invariants: nothing of the product knows of plants; a mutation
whose old text does not stand exactly once in its file is stale and counts as not found; compiled forms of pure modules
are left out of a copy, so that what runs is what was changed; a red seed counts for a plant only when the same run
without the mutation is green; the canary must be red, else the harness proves nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs

from shardsrv.sim.plant_list import PLANTS, Plant

PACKAGE: Final = Path(__file__).resolve().parents[1]
SEEDS_MAX: Final = 60
SECONDS: Final = 20
TIMEOUT: Final = 1200
CONTROL: Final = Plant("control", "", "", "", (1, 3), "control")


@attrs.frozen
class Outcome:
    """What came of one plant: ``found`` after ``seeds`` seeds, with the line that says what was violated."""

    plant: Plant
    found: bool
    seeds: int
    text: str

    @property
    def good(self) -> bool:
        """Whether this is what should have come of it."""
        return self.found != (self.plant.kind == "control")


class Stale(Exception):
    """The old text of a plant does not stand exactly once in its file."""


@contextmanager
def planted(plant: Plant) -> Iterator[Path]:
    """A directory with a copy of the package in which ``plant`` is. Raises `Stale`."""
    with tempfile.TemporaryDirectory(prefix="plant-") as directory:
        root = Path(directory)
        for path in sorted(PACKAGE.rglob("*")):
            compiled = path.suffix == ".so"
            stem = path.name.split(".")[0]
            if not path.is_file() or "__pycache__" in path.parts or path.suffix not in (".py", ".so", ".toml"):
                continue
            if compiled and path.with_name(f"{stem}.py").exists():
                continue
            target = root / "shardsrv" / path.relative_to(PACKAGE)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        if plant.file:
            target = root / "shardsrv" / plant.file
            text = target.read_text()
            if text.count(plant.old) != 1:
                raise Stale(f"{plant.name}: the old text stands {text.count(plant.old)} times in {plant.file}")
            target.write_text(text.replace(plant.old, plant.new))
        yield root


def _run(root: Path, arguments: list[str], hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, PYTHONPATH=str(root), PYTHONHASHSEED=hash_seed, PYTHONDONTWRITEBYTECODE="1")
    return subprocess.run(
        [sys.executable, "-m", "shardsrv.sim", *arguments],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def try_plant(plant: Plant, first_seed: int, seeds: int = SEEDS_MAX, seconds: int = SECONDS) -> Outcome:
    """Run seeds with ``plant`` until one is red."""
    try:
        with planted(plant) as root:
            if plant.kind == "determinism":
                return _compare(plant, root, first_seed, seconds)
            return _search(plant, root, first_seed, seeds, seconds)
    except Stale as stale:
        return Outcome(plant, False, 0, f"stale: {stale}")


def _search(plant: Plant, root: Path, first_seed: int, seeds: int, seconds: int) -> Outcome:
    """Look for a seed that is red with the plant and green without it."""
    used = 0
    also: list[str] = []
    for members in plant.members:
        flags = ["--seconds", str(seconds), "--replicas", str(members), *plant.flags]
        left = seeds
        while left > 0:
            first = first_seed + seeds - left
            try:
                done = _run(root, ["--seeds", str(left), "--first-seed", str(first), "--stop", *flags])
            except subprocess.TimeoutExpired:
                return Outcome(plant, plant.kind != "control", used, "the run does not end")
            tried = _seeds_used(done.stdout, left)
            used += tried
            left -= tried
            if done.stderr:
                # An error that is no defect a run would report: the mutation itself does not work.
                return Outcome(plant, plant.kind == "control", used, f"the run breaks: {done.stderr.splitlines()[-1]}")
            lines = [line for line in done.stdout.splitlines() if line.startswith("VIOLATION")]
            if not lines:
                break
            if plant.kind == "control" or _green_without(lines[0], flags):
                return Outcome(plant, True, used, lines[0])
            also.append(lines[0])
    text = f"not found ({len(also)} seeds are red without it too: {also[0]})" if also else "not found"
    return Outcome(plant, False, used, text)


def _green_without(violation: str, flags: list[str]) -> bool:
    """Whether the seed of a line of `VIOLATION` is green when nothing is planted."""
    seed = violation.split()[2].rstrip(":")
    with planted(CONTROL) as root:
        return _run(root, ["--seed", seed, *flags]).returncode == 0


def _seeds_used(output: str, seeds: int) -> int:
    for line in output.splitlines():
        words = line.split()
        if len(words) > 1 and words[1] == "runs,":
            return int(words[0])
    return seeds


def _compare(plant: Plant, root: Path, first_seed: int, seconds: int) -> Outcome:
    """Two processes with different hashes of text must go the same way."""
    arguments = ["--seeds", "5", "--first-seed", str(first_seed), "--seconds", str(seconds), "--digest"]
    arguments += ["--replicas", str(plant.members[0])]
    traces = [_run(root, arguments, hash_seed).stdout for hash_seed in ("0", "1", "2")]
    differ = len(dict.fromkeys(traces)) > 1
    return Outcome(plant, differ, 5, "traces differ" if differ else "traces are equal")


def try_all(names: list[str], first_seed: int, seeds: int, workers: int) -> bool:
    """Try plants, print each outcome and the sum; whether all of them are as they should be."""
    chosen = [each for each in PLANTS if not names or each.name in names]
    if not names:
        chosen = [CONTROL, *chosen]
    good = 0
    with ThreadPoolExecutor(workers) as pool:
        for outcome in pool.map(lambda plant: try_plant(plant, first_seed, seeds), chosen):
            good += outcome.good
            word = "found" if outcome.found else "not found"
            flag = "" if outcome.good else "  <-- WRONG"
            print(f"{outcome.plant.name}: {word} after {outcome.seeds} seeds: {outcome.text}{flag}", flush=True)
    print(f"{good} of {len(chosen)} as they should be, first seed {first_seed}")
    return good == len(chosen)
