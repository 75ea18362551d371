"""Numbers that no earlier life of this member has used: 128 bits, never 0, drawn from a seed that the shell hands in.

Invariant: the sequence is a function of the seed alone, so a run of the simulator repeats; two seeds that differ give
sequences that do not meet but by chance.
"""

from __future__ import annotations

from shardsrv._core import xxh3


class Nonces:
    """The sequence of ``seed`` (u128)."""

    __slots__ = ("_count", "_seed")

    def __init__(self, seed: int) -> None:
        self._seed = seed.to_bytes(16, "little")
        self._count = 0

    def draw(self) -> int:
        """The next number; the low bit is always set, so that 0 can mean none."""
        self._count += 1
        low = xxh3(self._seed + self._count.to_bytes(8, "little") + b"\0")
        high = xxh3(self._seed + self._count.to_bytes(8, "little") + b"\1")
        return high << 64 | low | 1
