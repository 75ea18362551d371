"""Writes the tables of docs/consensus.md from the data that the replica decides by.

    PYTHONPATH=. python tools/print_consensus_tables.py            exit code 1 when the document is out of date
    PYTHONPATH=. python tools/print_consensus_tables.py --write    brings it up to date

Each table stands between the lines `<!-- table: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import attrs

from shardsrv.vsr import merge, preflight, quorum, start_view, trust

DOCUMENT = Path(__file__).parent.parent / "docs" / "consensus.md"
_PLACE = re.compile(r"<!-- table: (.*?) -->\n.*?<!-- end -->", re.DOTALL)
ACTIONS = {
    preflight.EXECUTE: "execute",
    preflight.REPEAT: "repeat the reply",
    preflight.REFUSE: "refuse",
    preflight.EVICT: "evict",
    preflight.SILENCE: "silence",
}


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cells(row: Sequence[bool | None]) -> list[str]:
    """Facts of a row in words; an empty cell accepts anything."""
    return ["" if want is None else "yes" if want else "no" for want in row]


def labelled(facts: Sequence[str], rows: Sequence[tuple[Sequence[bool | None], str]]) -> str:
    """A table whose rows are named by their verdict."""
    return markdown((*facts, "verdict"), [[*cells(row), label] for row, label in rows])


def request_rows() -> list[list[str]]:
    """The rows of the at-most-once table."""
    rows = []
    for row, decision in preflight.REQUEST_TABLE:
        action = ACTIONS[decision.action] + (f" ({int(decision.code)})" if decision.code else "")
        rows.append([decision.label, *cells(row), action])
    return rows


def tables() -> dict[str, str]:
    """Every table by its name."""
    facts = [field.name.replace("_", " ") for field in attrs.fields(preflight.Facts)]
    return {
        "quorums": markdown(
            ("members", "replication, view change", "nack"),
            [(str(n), str(quorum.replication_quorum(n)), str(quorum.nack_quorum(n))) for n in range(1, 8)],
        ),
        "merge of an op": markdown(
            ("row", *merge.OP_FACTS, "verdict"),
            [[label, *cells(row), verdict] for row, verdict, label in merge.OP_TABLE],
        ),
        "StartView": labelled(start_view.START_VIEW_FACTS, start_view.START_VIEW_TABLE),
        "trust": labelled(trust.TRUST_FACTS, trust.TRUST_TABLE),
        "role": labelled(preflight.ROLE_FACTS, preflight.ROLE_TABLE),
        "metadata request": markdown(("row", *facts, "decision"), request_rows()),
    }


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
