"""docs/recovery.md shows the tables as they are; docs/safety.md and the README say the same of an acknowledgement."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PRINTER = runpy.run_path(str(ROOT / "tools" / "print_recovery_tables.py"))
DOCUMENT = (ROOT / "docs" / "recovery.md").read_text(encoding="utf-8")


def test_the_document_is_up_to_date() -> None:
    assert PRINTER["rendered"](DOCUMENT) == DOCUMENT, "run python tools/print_recovery_tables.py --write"


def test_every_table_has_its_place() -> None:
    assert sorted(re.findall(r"<!-- table: (.*?) -->", DOCUMENT)) == sorted(PRINTER["tables"]())


def test_a_table_that_changed_is_noticed() -> None:
    assert PRINTER["rendered"](DOCUMENT.replace("torn by a kill", "something else")) == DOCUMENT


def test_what_an_acknowledgement_means_is_said_in_the_same_words() -> None:
    def table(name: str) -> list[str]:
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        first = next(number for number, line in enumerate(lines) if line.startswith("| policy of the "))
        return lines[first : first + 5]

    assert table("README.md") == table("docs/safety.md")
    assert "| metadata commands |" in table("README.md")[-1]


def test_tests_that_the_documents_name_are_there() -> None:
    for name in ("docs/recovery.md", "docs/safety.md"):
        for path in re.findall(r"`(tests/[\w/*.]+\.py)`", (ROOT / name).read_text(encoding="utf-8")):
            assert list(ROOT.glob(path)), (name, path)
