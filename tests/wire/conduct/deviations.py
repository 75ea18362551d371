"""Where the project answers differently on purpose: classes of exchanges, each with its reason.

``deviations.json`` holds at most 40 classes. A class names exchanges by ``seq``, ``codes``, ``notes`` (how a note
starts) and ``sources``; all that are given must match. ``reason_text`` says why. What it changes:

``skip``          the exchange needs something that is not served; it is neither sent nor counted
``status``        a reply with this status and an empty body is expected; parents are not made
``operation``     with ``status``: the operation of that reply, where it is not that of the request
``result``        a reply with this code in the result section is expected, 0 for success
``served``        a reply with status 0 is expected, its payload is not compared
``reason``        an eviction with this reason is expected
``as_source``     the answer that another source recorded under the same note is expected
``drop_options``  these keys of option blocks and of the catalogue are not compared
``drop_fields``   these fields of the reply are not compared
``outcome``       ``silence`` or ``closed`` is expected
``undo``          ``delete_topic``: what the exchange made is removed again, so that later ids are the recorded ones
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.wire.conduct.recording import Exchange

CLASSES = Path(__file__).with_name("deviations.json")
LIMIT = 40


@dataclass(frozen=True, slots=True)
class Deviation:
    """One class, as written in the file."""

    name: str
    reason: str
    seqs: frozenset[int] | None
    codes: frozenset[int] | None
    notes: tuple[str, ...]
    sources: frozenset[str] | None
    change: dict[str, Any]

    def covers(self, exchange: Exchange) -> bool:
        return (
            (self.seqs is None or exchange.seq in self.seqs)
            and (self.codes is None or exchange.code in self.codes)
            and (not self.notes or exchange.note.startswith(self.notes))
            and (self.sources is None or exchange.source in self.sources)
        )


def load(path: Path = CLASSES) -> list[Deviation]:
    """Every class of the file. Raises ``ValueError`` when it holds too many, or one without a reason or a change."""
    classes = [_deviation(entry) for entry in json.loads(path.read_text())]
    if len(classes) > LIMIT:
        raise ValueError(f"{len(classes)} classes of deviations, at most {LIMIT} are allowed")
    return classes


def _deviation(entry: dict[str, Any]) -> Deviation:
    selectors = {"seq", "codes", "notes", "sources"}
    change = {key: value for key, value in entry.items() if key not in selectors | {"name", "reason_text"}}
    if not entry.get("reason_text") or not change or not selectors & entry.keys():
        raise ValueError(f"the class {entry.get('name')!r} lacks a reason, a change or a selector")
    return Deviation(
        name=entry["name"],
        reason=entry["reason_text"],
        seqs=frozenset(entry["seq"]) if "seq" in entry else None,
        codes=frozenset(entry["codes"]) if "codes" in entry else None,
        notes=tuple(entry.get("notes", ())),
        sources=frozenset(entry["sources"]) if "sources" in entry else None,
        change=change,
    )
