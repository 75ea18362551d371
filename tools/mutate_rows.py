"""Shows that the tests named in docs/seed-rows.md fail when the behaviour of their row is removed.

    python tools/mutate_rows.py                  every mutation of tools/row_mutations.toml
    python tools/mutate_rows.py --row S2-19      those of some rows
    python tools/mutate_rows.py --list           what there is

Each mutation goes into a copy of package and tests in which ordinary modules have no compiled form, so that what runs
is what was changed. Its test must then fail: not a test that cannot be collected, not one that does not end. First all
named tests run in a copy without a mutation, where they must pass, or nothing that follows would prove anything. The
exit code is 0 when everything is as it should be.

Fields of a mutation: ``row``; ``file`` below the package; ``old``, text that stands there exactly once, and ``new`` in
its place; ``test``, a node id below tests/.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import attrs

ROOT: Final = Path(__file__).resolve().parents[1]
DATA: Final = ROOT / "tools" / "row_mutations.toml"
COPIED: Final = ("shardsrv", "tests", "docs", "tools", "pyproject.toml", "README.md")
TIMEOUT: Final = 600
"""Seconds for one test, on a machine that is busy with others."""
FAILED: Final = 1
"""Exit code of pytest: tests ran, and some failed."""


@attrs.frozen
class Mutation:
    """See the module."""

    row: str
    file: str
    test: str
    old: str
    new: str


@attrs.frozen
class Outcome:
    """What came of a mutation: ``noticed`` by its test, which said ``text``."""

    mutation: Mutation
    noticed: bool
    text: str


def read(path: Path = DATA) -> list[Mutation]:
    """The mutations of a file."""
    with path.open("rb") as file:
        return [Mutation(**row) for row in tomllib.load(file)["mutation"]]


def occurrences(mutation: Mutation, root: Path = ROOT) -> int:
    """How often the old text stands in its file; anything but 1 is stale."""
    return (root / "shardsrv" / mutation.file).read_text(encoding="utf-8").count(mutation.old)


def _ignored(directory: str, names: list[str]) -> list[str]:
    """What stays out of a copy: compiled forms of ordinary modules, and their C sources."""
    beside = set(names)
    return [
        name
        for name in names
        if name.endswith(".c") or (name.endswith(".so") and f"{name.split('.')[0]}.py" in beside)
    ]


def copy_to(target: Path, source: Path = ROOT) -> None:
    """Package and tests, interpreted where they can be; times stay, so that what is compiled to bytecode counts."""
    for name in COPIED:
        path = source / name
        if path.is_dir():
            shutil.copytree(path, target / name, ignore=_ignored)
        elif path.exists():
            shutil.copy2(path, target / name)


def run_tests(root: Path, tests: Sequence[str], stop: bool = True) -> tuple[int, str]:
    """(exit code, output) of some tests in a copy."""
    environment = dict(os.environ, PYTHONPATH=str(root), PYTHONHASHSEED="0")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--no-header"]
    done = subprocess.run(
        [*command, *(["-x"] if stop else []), *(f"tests/{test}" for test in tests)],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def attempt(mutation: Mutation, base: Path) -> Outcome:
    """Plant a mutation into a copy of ``base`` and run its test."""
    if occurrences(mutation, base) != 1:
        return Outcome(mutation, False, f"stale: the old text stands {occurrences(mutation, base)} times")
    with tempfile.TemporaryDirectory(prefix="row-") as directory:
        root = Path(directory)
        copy_to(root, base)
        target = root / "shardsrv" / mutation.file
        target.write_text(target.read_text(encoding="utf-8").replace(mutation.old, mutation.new), encoding="utf-8")
        try:
            code, output = run_tests(root, [mutation.test])
        except subprocess.TimeoutExpired:
            return Outcome(mutation, False, f"does not end within {TIMEOUT} s")
    return Outcome(mutation, code == FAILED, said(output) if code else "passes")


def said(output: str) -> str:
    """The line of a pytest run that says what was wrong."""
    lines = output.splitlines()
    errors = [line[1:].strip() for line in lines if line.startswith("E ")]
    return (errors or [line for line in lines if line.strip()] or ["nothing"])[0][:120]


def control(base: Path, mutations: Sequence[Mutation]) -> bool:
    """Whether every named test passes where nothing was changed; also leaves bytecode for the copies."""
    tests = list(dict.fromkeys(mutation.test for mutation in mutations))
    code, output = run_tests(base, tests, stop=False)
    print(f"control: {len(tests)} tests {'pass' if code == 0 else 'DO NOT PASS'} without a mutation", flush=True)
    if code:
        print(output)
    return code == 0


def main(argv: list[str] | None = None) -> int:
    """See the module."""
    flags = argparse.ArgumentParser(prog="mutate_rows", description="Plant a bug a row; its test must notice.")
    flags.add_argument("--row", action="append", default=[], help="only mutations of this row")
    flags.add_argument("--list", action="store_true", help="rows, files and tests")
    flags.add_argument("--workers", type=int, default=2, help="mutations tried at once")
    arguments = flags.parse_args(argv)
    chosen = [mutation for mutation in read() if not arguments.row or mutation.row in arguments.row]
    if arguments.list:
        print("\n".join(f"{mutation.row}  {mutation.file}  {mutation.test}" for mutation in chosen))
        return 0
    with tempfile.TemporaryDirectory(prefix="rows-") as directory:
        base = Path(directory)
        copy_to(base)
        if not chosen or not control(base, chosen):
            return 1
        noticed = 0
        with ThreadPoolExecutor(arguments.workers) as pool:
            for outcome in pool.map(lambda mutation: attempt(mutation, base), chosen):
                noticed += outcome.noticed
                flag = "" if outcome.noticed else "  <-- NOT NOTICED"
                print(f"{outcome.mutation.row} {outcome.mutation.test}: {outcome.text}{flag}", flush=True)
    rows = len({mutation.row for mutation in chosen})
    print(f"{noticed} of {len(chosen)} mutations noticed, {rows} rows")
    return 0 if noticed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
