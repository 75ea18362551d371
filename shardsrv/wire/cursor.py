"""A bounded little-endian reader over one buffer: the only way a decoder of this room touches bytes.

Invariants: a read either returns the whole value and moves on, or raises Truncated and consumes nothing; nothing is
allocated by a length that has not been checked against the bytes left; `take` and `rest` return views, never copies.
"""

from __future__ import annotations

import struct
from typing import Final

from shardsrv.errors import Truncated

Buffer = bytes | bytearray | memoryview

_U16: Final = struct.Struct("<H").unpack_from
_U32: Final = struct.Struct("<I").unpack_from
_U64: Final = struct.Struct("<Q").unpack_from
_F32: Final = struct.Struct("<f").unpack_from


class Cursor:
    """Reads `data` from byte 0. `position` is the offset of the next byte to read."""

    __slots__ = ("_data", "_end", "position")

    def __init__(self, data: Buffer) -> None:
        view = memoryview(data)
        self._data = view if view.format == "B" and view.ndim == 1 else view.cast("B")
        self._end = len(self._data)
        self.position = 0

    @property
    def remaining(self) -> int:
        """Bytes left."""
        return self._end - self.position

    def _truncated(self, what: str, length: int) -> Truncated:
        return Truncated(what, self.position, length, self._end - self.position)

    # The bound is checked in each method and not in a shared one: a call costs more than the read.

    def u8(self) -> int:
        start = self.position
        if start >= self._end:
            raise self._truncated("u8", 1)
        self.position = start + 1
        return self._data[start]

    def u16(self) -> int:
        start = self.position
        if start + 2 > self._end:
            raise self._truncated("u16", 2)
        self.position = start + 2
        return int(_U16(self._data, start)[0])

    def u32(self) -> int:
        start = self.position
        if start + 4 > self._end:
            raise self._truncated("u32", 4)
        self.position = start + 4
        return int(_U32(self._data, start)[0])

    def u64(self) -> int:
        start = self.position
        if start + 8 > self._end:
            raise self._truncated("u64", 8)
        self.position = start + 8
        return int(_U64(self._data, start)[0])

    def u128(self) -> int:
        return int.from_bytes(self.take(16), "little")

    def f32(self) -> float:
        start = self.position
        if start + 4 > self._end:
            raise self._truncated("f32", 4)
        self.position = start + 4
        return float(_F32(self._data, start)[0])

    def take(self, length: int) -> memoryview:
        """A view of the next `length` bytes."""
        start = self.position
        end = start + length
        if length < 0 or end > self._end:
            raise self._truncated("bytes", length)
        self.position = end
        return self._data[start:end]

    def rest(self) -> memoryview:
        """A view of everything left."""
        return self.take(self._end - self.position)
