"""Which bytes of a transfer are asked for, here, or still to come: a bounded window that moves over the artifacts.

Invariants: at most ``chunks`` requests are open; positions go through the artifacts in manifest order; a chunk counts
only if it answers an open request at exactly its position and is not longer than asked; progress is the number of
bytes without a hole from the beginning, so nothing that comes twice, empty or out of order is progress by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

Piece = tuple[int, int, int]
"""(artifact index, offset, length)."""


class PullWindow:
    """``lengths`` of the artifacts, ``held`` bytes of each that need not be fetched, ``chunk_max`` bytes a request."""

    __slots__ = ("_base", "_chunk_max", "_chunks", "_index", "_lengths", "_offset", "_open", "_starts")

    def __init__(self, lengths: Sequence[int], held: Sequence[int], chunk_max: int, chunks: int) -> None:
        self._lengths = tuple(lengths)
        self._starts = [min(have, length) for have, length in zip(held, lengths, strict=True)]
        self._chunk_max = chunk_max
        self._chunks = chunks
        self._base = [0]
        for length in self._lengths:
            self._base.append(self._base[-1] + length)
        self._open: dict[tuple[int, int], int] = {}
        self._index = -1
        self._offset = 0
        self._next_artifact()

    def _next_artifact(self) -> None:
        """Move on to the next artifact of which anything is missing."""
        self._index += 1
        while self._index < len(self._lengths) and self._starts[self._index] >= self._lengths[self._index]:
            self._index += 1
        self._offset = self._starts[self._index] if self._index < len(self._lengths) else 0

    @property
    def total(self) -> int:
        """Bytes of all artifacts."""
        return self._base[-1]

    @property
    def contiguous(self) -> int:
        """Bytes that are here without a hole, from the beginning of the first artifact."""
        if self._open:
            return min(self._base[index] + offset for index, offset in self._open)
        return self._base[self._index] + self._offset if self._index < len(self._lengths) else self.total

    @property
    def complete(self) -> bool:
        """Whether nothing is missing and nothing is asked for."""
        return not self._open and self._index >= len(self._lengths)

    @property
    def waits(self) -> bool:
        """Whether an answer is to come."""
        return bool(self._open)

    def ask(self, busy: int) -> list[Piece]:
        """New requests, as far as the window has room beside ``busy`` chunks that are being written."""
        pieces: list[Piece] = []
        while len(self._open) + busy < self._chunks and self._index < len(self._lengths):
            length = min(self._chunk_max, self._lengths[self._index] - self._offset)
            self._open[(self._index, self._offset)] = length
            pieces.append((self._index, self._offset, length))
            self._offset += length
            if self._offset >= self._lengths[self._index]:
                self._next_artifact()
        return pieces

    def open_pieces(self) -> list[Piece]:
        """The requests without an answer, lowest position first: what is asked for again."""
        return [(index, offset, self._open[index, offset]) for index, offset in sorted(self._open)]

    def accept(self, index: int, offset: int, length: int) -> list[Piece] | None:
        """A chunk of ``length`` bytes came. None: it answers nothing, drop it. Else what is left of its request, to be
        asked for at once (a server with a smaller frame limit sends less)."""
        asked = self._open.get((index, offset))
        if asked is None or not 0 < length <= asked:
            return None
        del self._open[index, offset]
        if length == asked:
            return []
        rest = (index, offset + length, asked - length)
        self._open[rest[0], rest[1]] = rest[2]
        return [rest]
