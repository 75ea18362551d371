"""The planted bugs, read from `plants.toml`: source mutations that break one promise each, for fresh seeds to find.

Fields of a plant: ``file`` below the package; ``old``, text that stands there exactly once (else the plant is stale),
and ``new`` in its place; ``members``, the cluster sizes whose runs are to find it; ``flags`` of the command line for
these runs; ``kind`` "violation" (the default), "determinism" for what only the traces of two processes can show, or
"canary", which proves that the harness reports red runs.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

import attrs


@attrs.frozen
class Plant:
    """One planted bug; see the module."""

    name: str
    file: str
    old: str
    new: str
    members: tuple[int, ...] = (3,)
    kind: str = "violation"
    flags: tuple[str, ...] = ()


def read(path: Path) -> tuple[Plant, ...]:
    """The plants of a file. Raises `ValueError` for a name that stands twice."""
    with path.open("rb") as file:
        rows = tomllib.load(file)["plant"]
    lists = ("members", "flags")
    fields = [{key: tuple(value) if key in lists else value for key, value in row.items()} for row in rows]
    plants = tuple(Plant(**row) for row in fields)
    if len({plant.name for plant in plants}) != len(plants):
        raise ValueError("a name stands twice")
    return plants


PLANTS: Final = read(Path(__file__).with_name("plants.toml"))
