"""What a power loss decides on a simulated disk: names and directories, the points of choice, and how they are drawn.

Invariant: equal points and equal sources give equal combinations; option 0 of a point is what is durable, its last what
is seen.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Sequence

import attrs

from shardsrv.sim.disk_file import SimFile

BLOCK = 4096
"""Bytes of a page, and of a misdirected write."""


class SimDirectory:
    """One directory: names as seen and as they are durable."""

    __slots__ = ("durable", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, SimFile | SimDirectory] = {}
        self.durable: dict[str, SimFile | SimDirectory] = {}


@attrs.frozen(eq=False)
class NameChange:
    """Names changed by one call, all or none of them: (directory, name, what it names now or None)."""

    sequence: int
    effects: tuple[tuple[SimDirectory, str, SimFile | SimDirectory | None], ...]


@attrs.frozen(eq=False)
class ChoicePoint:
    """One thing that a power loss decides: `options` outcomes, the first is what is durable, and the sequence at which
    each arose. `owner` is a `NameChange` or a `SimFile`; `sector` None stands for the length of a file."""

    owner: NameChange | SimFile
    sector: int | None
    sequences: tuple[int, ...]

    @property
    def options(self) -> int:
        return len(self.sequences)


def draw(points: Sequence[ChoicePoint], source: random.Random) -> list[int]:
    """One legal combination. The manner is drawn first, so that rare combinations (all lost, a moment in time, whole
    writes, whole pages) do occur."""
    manner = source.randrange(7)
    if manner == 0:
        return [0] * len(points)
    if manner == 1:
        return [point.options - 1 for point in points]
    if manner == 2:
        return moment(points, source.randint(0, max((point.sequences[-1] for point in points), default=0)))
    if manner == 3:
        writes = {sequence: source.random() < 0.5 for point in points for sequence in point.sequences[1:]}
        return [max(i for i, each in enumerate(point.sequences) if i == 0 or writes[each]) for point in points]
    if manner == 4:
        pages: dict[tuple[int, int], float] = {}
        for point in points:
            pages.setdefault(_page(point), source.random())
        return [int(pages[_page(point)] * point.options) for point in points]
    names_kept = source.random() < 0.5
    return [
        (point.options - 1 if names_kept else 0)
        if manner == 5 and isinstance(point.owner, NameChange)
        else source.randrange(point.options)
        for point in points
    ]


def _page(point: ChoicePoint) -> tuple[int, int]:
    if point.sector is None or not isinstance(point.owner, SimFile):
        return id(point.owner), -1
    return id(point.owner), point.sector * point.owner.sector // BLOCK


def moment(points: Sequence[ChoicePoint], sequence: int) -> list[int]:
    """The combination in which exactly what happened up to ``sequence`` is on the disk."""
    return [max(i for i, each in enumerate(point.sequences) if i == 0 or each <= sequence) for point in points]


def combinations(points: Sequence[ChoicePoint], limit: int, source: random.Random) -> Iterator[Sequence[int]]:
    if math.prod(point.options for point in points) <= limit:
        yield from itertools.product(*(range(point.options) for point in points))
        return
    last = [point.options - 1 for point in points]
    moments = sorted({sequence for point in points for sequence in point.sequences})
    every = -(-len(moments) // max(1, limit // 2))
    fixed = [[0] * len(points), last, *(moment(points, each) for each in moments[::every])]
    seen = dict.fromkeys(tuple(each) for each in fixed)
    yield from seen
    for _ in range(4 * limit):
        drawn = tuple(draw(points, source))
        if drawn not in seen:
            seen[drawn] = None
            yield drawn
        if len(seen) >= limit:
            return


def reachable_files(root: SimDirectory, changes: Iterable[NameChange], open_files: Iterable[SimFile]) -> list[SimFile]:
    """Every file that a name leads to, now or as it is durable or after any of ``changes``, and those that are open."""
    found: dict[SimFile, None] = {}
    visited: dict[SimDirectory, None] = {}

    def add(node: SimFile | SimDirectory) -> None:
        if isinstance(node, SimFile):
            found[node] = None
        elif node not in visited:
            visited[node] = None
            for below in [*node.entries.values(), *node.durable.values()]:
                add(below)

    add(root)
    for change in changes:
        for _, _, node in change.effects:
            if node is not None:
                add(node)
    for file in open_files:
        found[file] = None
    return list(found)


def durable_file(root: SimDirectory, path: str) -> SimFile | None:
    """The file that ``path`` names on the disk, whatever memory shows; None while no durable name leads there."""
    node: SimFile | SimDirectory | None = root
    for name in path.split("/"):
        if name:
            node = node.durable.get(name) if isinstance(node, SimDirectory) else None
    return node if isinstance(node, SimFile) else None
