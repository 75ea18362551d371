"""docs/seed-rows.md is true as far as a machine can tell: every row once, every module there, every test collected and
run; and each mutation of tools/row_mutations.toml still stands where it says."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "seed-rows.md"
TOOL = runpy.run_path(str(ROOT / "tools" / "mutate_rows.py"))

RANGES = {"S0": 55, "S1": 30, "S2": 151}
"""Each document's rows, from 01 on."""
MISSING = "Not built: "
ELSEWHERE = "Does not apply: "


@attrs.frozen
class Row:
    """A line of a table: ``modules`` below the package, ``tests`` below tests/, ``note`` the text behind them."""

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    note: str

    @property
    def kind(self) -> str:
        """What the page counts it as."""
        if self.note.startswith(ELSEWHERE):
            return "does not apply"
        if not self.note:
            return "proven"
        return "proven in part" if self.tests else "not built"


def rows(text: str) -> list[Row]:
    """The rows of the page, in order."""
    found = []
    for line in text.splitlines():
        match = re.fullmatch(r"\| (S\d-\d+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|", line)
        if match:
            name, _, modules, proof = match.groups()
            tests = re.findall(r"`([\w/]+\.py::\w+)`", proof)
            note = re.sub(r"`[\w/]+\.py::\w+`", "", proof).lstrip(" ,.")
            found.append(Row(name, tuple(re.findall(r"`([^`]+)`", modules)), tuple(tests), note))
    return found


ROWS = rows(DOCUMENT.read_text(encoding="utf-8"))
TESTS = sorted({test for row in ROWS for test in row.tests})
MUTATIONS = TOOL["read"]()


def test_every_row_stands_once() -> None:
    expected = [f"{document}-{number:02}" for document, last in RANGES.items() for number in range(1, last + 1)]
    assert len(expected) == 236
    assert sorted(row.name for row in ROWS) == sorted(expected)


def test_a_row_has_a_proof_or_says_why_not() -> None:
    for row in ROWS:
        assert not row.note or row.note.startswith((MISSING, ELSEWHERE)), (row.name, row.note)
        assert bool(row.tests) == bool(row.modules), f"{row.name}: module and test go together"
        assert row.tests or row.note, row.name


def test_the_page_counts_its_rows() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    said = {label: int(count) for label, count in re.findall(r"^\| ([a-z ]+) \| (\d+) \|$", text, re.MULTILINE)}
    kinds = [row.kind for row in ROWS]
    assert said == {kind: kinds.count(kind) for kind in ("proven", "proven in part", "not built", "does not apply")}


def test_every_module_is_there() -> None:
    named = {module for row in ROWS for module in row.modules}
    assert {module for module in named if not (ROOT / "shardsrv" / module).is_file()} == set()


@cache
def collected() -> frozenset[str]:
    """Node ids below tests/ of everything in the files that the page names, without parameters."""
    files = sorted({test.split("::")[0] for test in [*TESTS, *(mutation.test for mutation in MUTATIONS)]})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-o", "addopts="]
    done = subprocess.run(
        [*command, *(f"tests/{file}" for file in files)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return frozenset(line.split("[")[0].removeprefix("tests/") for line in done.stdout.splitlines() if "::" in line)


def test_every_test_is_collected() -> None:
    assert set(TESTS) - collected() == set()


def left_out(text: str, name: str) -> str:
    """The mark by which a test of a file may be skipped or expected to fail; empty when there is none."""
    tree = ast.parse(text)
    marks: list[ast.expr] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            marks += node.decorator_list
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            marks.append(node.value)
    found = re.search(r"mark\.(skipif|skip|xfail|clients)\b", " ".join(ast.unparse(mark) for mark in marks))
    return found[1] if found else ""


@pytest.mark.parametrize("test", TESTS)
def test_no_test_is_left_out(test: str) -> None:
    file, name = test.split("::")
    assert left_out((ROOT / "tests" / file).read_text(encoding="utf-8"), name) == ""


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        ("@pytest.mark.skip\ndef test_a(): ...", "skip"),
        ("@pytest.mark.parametrize('x', [1])\n@pytest.mark.skipif(True, reason='')\ndef test_a(x): ...", "skipif"),
        ("pytestmark = pytest.mark.xfail\ndef test_a(): ...", "xfail"),
        ("pytestmark = [pytest.mark.clients]\ndef test_a(): ...", "clients"),
        ("@pytest.mark.skip\ndef test_b(): ...\ndef test_a(): ...", ""),
    ],
)
def test_a_mark_is_found(text: str, mark: str) -> None:
    assert left_out(text, "test_a") == mark


# --- mutations --------------------------------------------------------------------------------------------------------


def test_every_mutation_stands_where_it_says() -> None:
    stale = {(mutation.row, mutation.file): TOOL["occurrences"](mutation) for mutation in MUTATIONS}
    assert {place: count for place, count in stale.items() if count != 1} == {}
    assert all(mutation.old != mutation.new for mutation in MUTATIONS)


def test_mutations_are_of_rows_and_of_their_tests() -> None:
    named = {row.name: row.tests for row in ROWS}
    assert [mutation for mutation in MUTATIONS if mutation.test not in named[mutation.row]] == []
    assert len({mutation.row for mutation in MUTATIONS}) >= 150


def test_a_mutation_is_noticed_by_its_test(tmp_path: Path) -> None:
    """One of them, so that the tool itself is tried; and one that changes nothing, which no test may notice."""
    TOOL["copy_to"](tmp_path)
    mutation = next(mutation for mutation in MUTATIONS if mutation.row == "S2-30")
    outcome = TOOL["attempt"](mutation, tmp_path)
    assert outcome.noticed, outcome.text
    harmless = attrs.evolve(mutation, new=f"{mutation.old}\n        ")
    assert not TOOL["attempt"](harmless, tmp_path).noticed
    assert TOOL["attempt"](attrs.evolve(mutation, old="no such text"), tmp_path).text.startswith("stale")
