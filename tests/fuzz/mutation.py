"""Mutations of bytes that know what formats are made of: bits, lengths, counts, edges of integers, cuts, splices."""

import random
from collections.abc import Sequence

EDGES = (0, 1, 2, 4, 5, 255, 256, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
WIDE_EDGES = (*EDGES, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
SMALL_EDGES = (0, 1, 2, 4, 0x7F, 0x80, 0xFE, 0xFF)
GROWTH_MAX = 4096
"""Bytes that one mutation adds at most."""
STACKED = (1, 1, 2, 3, 5)
"""How many mutations one sample gets."""


class Mutator:
    """Makes samples out of samples. The same seed gives the same samples."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self._ways = (
            self._flip, self._byte, self._number, self._number, self._nudge, self._cut, self._grow, self._repeat,
            self._remove, self._splice,
        )  # fmt: skip

    def below(self, limit: int) -> int:
        """A number of 0..limit - 1; 0 when there is none."""
        return int(self.dice.random() * limit)

    def mutate(self, sample: bytes, other: bytes) -> bytearray:
        """A changed copy of ``sample``, perhaps with parts of ``other``."""
        data = bytearray(sample)
        for _ in range(STACKED[self.below(len(STACKED))]):
            self._ways[self.below(len(self._ways))](data, other)
        return data

    def mutate_fields(self, sample: bytes, fields: Sequence[tuple[int, int]]) -> bytearray:
        """A copy with other values in one to three of ``fields`` (offset, size)."""
        data = bytearray(sample)
        for _ in range(1 + self.below(3) if fields else 0):
            at, size = fields[self.below(len(fields))]
            if self.below(4) == 0:
                data[at] ^= 1 << self.below(8)
            else:
                self.number_at(data, at, size)
        return data

    def number_at(self, data: bytearray, at: int, width: int) -> None:
        """Write an edge, a random number or something near the length at a place."""
        choice = self.below(4)
        if choice == 0:
            value = len(data) + self.below(9) - 4
        elif choice == 1:
            value = self.dice.getrandbits(8 * width)
        else:
            value = WIDE_EDGES[self.below(len(WIDE_EDGES))]
        data[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "little")

    def _flip(self, data: bytearray, other: bytes) -> None:
        if data:
            data[self.below(len(data))] ^= 1 << self.below(8)

    def _byte(self, data: bytearray, other: bytes) -> None:
        if data:
            data[self.below(len(data))] = SMALL_EDGES[self.below(len(SMALL_EDGES))]

    def _number(self, data: bytearray, other: bytes) -> None:
        width = (2, 4, 4, 8, 16)[self.below(5)]
        if len(data) >= width:
            self.number_at(data, self.below(len(data) - width + 1), width)

    def _nudge(self, data: bytearray, other: bytes) -> None:
        """One more or one less: what is a length then no longer fits."""
        if data:
            at = self.below(len(data))
            data[at] = (data[at] + (1 if self.below(2) else -1)) % 256

    def _cut(self, data: bytearray, other: bytes) -> None:
        del data[self.below(len(data) + 1) :]

    def _grow(self, data: bytearray, other: bytes) -> None:
        more = self.below(1 << self.below(GROWTH_MAX.bit_length())) + 1
        data += bytes(more) if self.below(2) else self.dice.randbytes(more)

    def _repeat(self, data: bytearray, other: bytes) -> None:
        start = self.below(len(data) + 1)
        piece = data[start : start + self.below(64) + 1]
        data[start:start] = piece

    def _remove(self, data: bytearray, other: bytes) -> None:
        start = self.below(len(data) + 1)
        del data[start : start + self.below(16) + 1]

    def _splice(self, data: bytearray, other: bytes) -> None:
        data[self.below(len(data) + 1) :] = other[self.below(len(other) + 1) :]
