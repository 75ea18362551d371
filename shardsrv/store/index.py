"""The sparse index of a segment: where a walk for an offset, a time or an op begins.

File, beside the segment it belongs to; little-endian:

    Off Len Field
      0   8 magic "SHRDIDX1"
      8   2 version u16 = 1
     10   2 entry length u16 = 32
     12   4 count u32
     16   8 first_op u64
     24   8 XXH3-64 of all entries
     32  32 x count: offset u64, timestamp u64, op u64, position u64

An entry stands for the first SendMessages that begins at or after each 64 KiB of the file. Invariants: positions, ops
and timestamps rise strictly; every entry is true of the segment for ever, because stored bytes never change: a file
that covers only a prefix of its segment makes walks longer and never wrong; cutting a segment unlinks its index first.
Never needed for correctness: a missing or bad file is made again by a walk. Pure.
"""

from __future__ import annotations

import itertools
import struct
import sys
from array import array
from bisect import bisect_right
from collections import OrderedDict
from typing import Final

from shardsrv._core import xxh3
from shardsrv.errors import Damaged

MAGIC: Final = b"SHRDIDX1"
VERSION: Final = 1
STRIDE: Final = 65536
ENTRY: Final = 32
_HEADER: Final = struct.Struct("<8sHHIQQ")
assert _HEADER.size == 32


class SparseIndex:
    """Four parallel columns of u64, and `due`: the first file position whose SendMessages gets the next entry."""

    __slots__ = ("due", "offsets", "ops", "positions", "timestamps")

    def __init__(self) -> None:
        self.offsets = array("Q")
        self.timestamps = array("Q")
        self.ops = array("Q")
        self.positions = array("Q")
        self.due = 0

    def __len__(self) -> int:
        return len(self.positions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SparseIndex) and self.columns() == other.columns()

    __hash__ = None  # type: ignore[assignment]

    def columns(self) -> tuple[array[int], array[int], array[int], array[int]]:
        """Offsets, timestamps, ops, positions."""
        return self.offsets, self.timestamps, self.ops, self.positions

    def add(self, offset: int, timestamp: int, op: int, position: int) -> None:
        """Enter the SendMessages at ``position``. The caller has checked ``position >= due``."""
        self.offsets.append(offset)
        self.timestamps.append(timestamp)
        self.ops.append(op)
        self.positions.append(position)
        self.due = (position // STRIDE + 1) * STRIDE

    def cut(self, size: int) -> None:
        """Forget entries at or behind file position ``size``."""
        while self.positions and self.positions[-1] >= size:
            for column in self.columns():
                column.pop()
        self.due = (self.positions[-1] // STRIDE + 1) * STRIDE if self.positions else 0

    def by_offset(self, offset: int) -> int | None:
        """Position of the last entry at or below ``offset``."""
        return self._before(self.offsets, offset)

    def by_timestamp(self, timestamp: int) -> int | None:
        """Position of the last entry at or before ``timestamp`` (microseconds)."""
        return self._before(self.timestamps, timestamp)

    def by_op(self, op: int) -> int | None:
        """Position of the last entry at or below ``op``."""
        return self._before(self.ops, op)

    def _before(self, column: array[int], value: int) -> int | None:
        found = bisect_right(column, value) - 1
        return self.positions[found] if found >= 0 else None

    def encode(self, first_op: int) -> bytes:
        """The file."""
        table = array("Q", bytes(ENTRY * len(self)))
        for number, column in enumerate(self.columns()):
            table[number::4] = column
        if sys.byteorder == "big":
            table.byteswap()
        entries = table.tobytes()
        return _HEADER.pack(MAGIC, VERSION, ENTRY, len(self), first_op, xxh3(entries)) + entries

    @classmethod
    def decode(cls, data: bytes, first_op: int, path: str = "") -> SparseIndex:
        """Read a file. Raises `Damaged` when anything does not hold; the caller then makes the index by a walk."""
        if len(data) < _HEADER.size:
            raise Damaged(path, 0, None, _HEADER.size, len(data))
        magic, version, entry, count, found_op, stored = _HEADER.unpack_from(data)
        if (magic, version, entry, found_op) != (MAGIC, VERSION, ENTRY, first_op):
            raise Damaged(
                path, 0, None, f"{MAGIC!r} {VERSION} {ENTRY} {first_op}", f"{magic!r} {version} {entry} {found_op}"
            )
        entries = data[_HEADER.size :]
        if len(entries) != count * ENTRY or xxh3(entries) != stored:
            raise Damaged(path, _HEADER.size, None, stored, xxh3(entries))
        table = array("Q", entries)
        if sys.byteorder == "big":
            table.byteswap()
        index = cls()
        index.offsets, index.timestamps, index.ops, index.positions = table[0::4], table[1::4], table[2::4], table[3::4]
        if any(_falls(column) for column in index.columns()[1:]):
            raise Damaged(path, _HEADER.size, None, "rising entries", "falling entries")
        index.due = (index.positions[-1] // STRIDE + 1) * STRIDE if count else 0
        return index


def _falls(column: array[int]) -> bool:
    return any(left >= right for left, right in itertools.pairwise(column))


class IndexCache:
    """Indexes of sealed segments, by path; the least recently used goes first. One per shard.

    ``limit`` counts entries, not indexes: an entry is 32 bytes, so the default bounds the cache at 16 MiB.
    """

    def __init__(self, limit: int = 1 << 19) -> None:
        self._limit = limit
        self._held: OrderedDict[str, SparseIndex] = OrderedDict()
        self._entries = 0

    def get(self, path: str) -> SparseIndex | None:
        """The index of the segment at ``path``, if held."""
        index = self._held.get(path)
        if index is not None:
            self._held.move_to_end(path)
        return index

    def put(self, path: str, index: SparseIndex) -> None:
        """Hold ``index``; it may be the one that goes when it alone is above the limit."""
        self.forget(path)
        self._held[path] = index
        self._entries += len(index)
        while self._entries > self._limit and self._held:
            _, dropped = self._held.popitem(last=False)
            self._entries -= len(dropped)

    def forget(self, path: str) -> None:
        """Drop the index of ``path``, if held."""
        index = self._held.pop(path, None)
        if index is not None:
            self._entries -= len(index)
