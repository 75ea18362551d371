"""docs/consensus.md shows the tables as they are."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PRINTER = runpy.run_path(str(ROOT / "tools" / "print_consensus_tables.py"))
DOCUMENT = (ROOT / "docs" / "consensus.md").read_text(encoding="utf-8")


def test_the_document_is_up_to_date() -> None:
    assert PRINTER["rendered"](DOCUMENT) == DOCUMENT, "run python tools/print_consensus_tables.py --write"


def test_every_table_has_its_place() -> None:
    assert sorted(re.findall(r"<!-- table: (.*?) -->", DOCUMENT)) == sorted(PRINTER["tables"]())


def test_every_module_that_the_document_names_is_there() -> None:
    parts = DOCUMENT.split("## Rules")[0]
    for name in re.findall(r"`(\w+)`", parts.split("|---|---|")[1]):
        assert (ROOT / "shardsrv" / "vsr" / f"{name}.py").exists(), name


def test_a_table_that_changed_is_noticed() -> None:
    assert PRINTER["rendered"](DOCUMENT.replace("lost within the window", "something else")) == DOCUMENT
