"""A bounded little-endian reader over one buffer: the only way a decoder of this room touches bytes.

Invariants: a read either returns the whole value and moves on, or raises Truncated and consumes nothing; nothing is
allocated by a length that has not been checked against the bytes left; `take` and `rest` return views, never copies.
"""

from __future__ import annotations

import struct
from typing import Final

from shardsrv.errors import Truncated

Buffer = bytes | bytearray | memoryview

_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_F32: Final = struct.Struct("<f")


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

    def _advance(self, what: str, length: int) -> int:
        start = self.position
        if length < 0 or length > self._end - start:
            raise Truncated(what, start, length, self._end - start)
        self.position = start + length
        return start

    def u8(self) -> int:
        return self._data[self._advance("u8", 1)]

    def u16(self) -> int:
        return int(_U16.unpack_from(self._data, self._advance("u16", 2))[0])

    def u32(self) -> int:
        return int(_U32.unpack_from(self._data, self._advance("u32", 4))[0])

    def u64(self) -> int:
        return int(_U64.unpack_from(self._data, self._advance("u64", 8))[0])

    def u128(self) -> int:
        start = self._advance("u128", 16)
        return int.from_bytes(self._data[start : start + 16], "little")

    def f32(self) -> float:
        return float(_F32.unpack_from(self._data, self._advance("f32", 4))[0])

    def take(self, length: int) -> memoryview:
        """A view of the next `length` bytes."""
        start = self._advance("bytes", length)
        return self._data[start : start + length]

    def rest(self) -> memoryview:
        """A view of everything left."""
        return self.take(self._end - self.position)
