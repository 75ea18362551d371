"""Writes the tables of docs/recovery.md from the data that the store decides by.

    PYTHONPATH=. python tools/print_recovery_tables.py            prints nothing; exit code 1 when the document is out
    of date
    PYTHONPATH=. python tools/print_recovery_tables.py --write    brings it up to date

Each table stands between the lines `<!-- table: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardsrv.store import recovery
from shardsrv.store.outcomes import BIT_ROT, POWER_LOSS

DOCUMENT = Path(__file__).parent.parent / "docs" / "recovery.md"
_PLACE = re.compile(r"<!-- table: (.*?) -->\n.*?<!-- end -->", re.DOTALL)
DECISIONS = (recovery.LOG_DAMAGE, recovery.SLOT_PAIR, recovery.PAIRING, recovery.PARTITION_DIRECTORY)


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def decision_table(table: recovery.Table[Any]) -> str:
    """The rows of a decision table; an empty cell accepts anything."""
    heads = ["row", *(name for name, _ in table.facts), "decision"]
    rows = []
    for row in table.rows:
        facts = [" or ".join(map(text, accepted)) if accepted is not None else "" for accepted in row.when]
        rows.append([row.label, *facts, text(row.decision)])
    return markdown(heads, rows)


def text(value: Any) -> str:
    """A fact or a decision in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, enum.Enum):
        return str(value.value)
    if value is None:
        return "go on"
    return f"refuse: {value.__name__}"


def tables() -> dict[str, str]:
    """Every table by its name."""
    found = {table.name: decision_table(table) for table in DECISIONS}
    found["outcomes of a power loss"] = markdown(
        ("while", "what a start may find", "in every one of them"),
        [(row.change, "; ".join(row.outcomes), row.kept) for row in POWER_LOSS],
    )
    found["rot"] = markdown(
        ("record", "told by", "reaction"), [(row.record, row.seen, row.reaction) for row in BIT_ROT]
    )
    return found


def rendered(document: str) -> str:
    """``document`` with its tables as they are now. Raises `KeyError` for a name that is no table."""
    printed = tables()
    return _PLACE.sub(lambda place: f"<!-- table: {place[1]} -->\n{printed[place[1]]}\n<!-- end -->", document)


def main() -> int:
    document = DOCUMENT.read_text(encoding="utf-8")
    wanted = rendered(document)
    if "--write" in sys.argv[1:]:
        DOCUMENT.write_text(wanted, encoding="utf-8")
        return 0
    return 0 if wanted == document else 1


if __name__ == "__main__":
    sys.exit(main())
