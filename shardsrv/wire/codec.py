"""Field codecs: one object reads and writes one kind of field, and bounds everything that it reads.

Invariants: `read` raises only DecodeError (Truncated included) and allocates nothing before the length is checked
against the bytes left; `write` raises only EncodeError; `read(write(value)) == value` for every value that encodes.
Notation of the protocol: `u8+N` is one length byte then N bytes, `u32+N` four length bytes then N bytes.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from shardsrv.errors import DecodeError, EncodeError
from shardsrv.wire.cursor import Cursor

T = TypeVar("T")
E = TypeVar("E", bound=enum.IntEnum)


class Codec(Protocol[T]):
    """What every field codec offers; `what` names the field in errors."""

    minimum: int
    """Fewest bytes that a value takes: bounds a count before its items are read."""

    def read(self, cursor: Cursor, what: str) -> T: ...

    def write(self, out: bytearray, value: T, what: str) -> None: ...


def decode_text(view: memoryview, what: str, offset: int) -> str:
    """UTF-8 text, or DecodeError."""
    try:
        return str(view, "utf-8")
    except UnicodeDecodeError as error:
        raise DecodeError(what, offset + error.start, "UTF-8", bytes(view[error.start : error.start + 4])) from None


def encode_text(value: str, what: str) -> bytes:
    """UTF-8 bytes, or EncodeError for lone surrogates."""
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError:
        raise EncodeError(what=what, value=value) from None


class UInt:
    """An unsigned integer of `width` bytes."""

    _READERS: ClassVar[dict[int, Callable[[Cursor], int]]] = {
        1: Cursor.u8,
        2: Cursor.u16,
        4: Cursor.u32,
        8: Cursor.u64,
        16: Cursor.u128,
    }

    def __init__(self, width: int) -> None:
        self.width = width
        self.minimum = width
        self._read = self._READERS[width]

    def read(self, cursor: Cursor, what: str) -> int:
        return self._read(cursor)

    def write(self, out: bytearray, value: int, what: str) -> None:
        if not 0 <= value < 1 << 8 * self.width:
            raise EncodeError(what=what, value=value)
        out += value.to_bytes(self.width, "little")


class Float32:
    """An IEEE 754 single."""

    minimum = 4

    def read(self, cursor: Cursor, what: str) -> float:
        return cursor.f32()

    def write(self, out: bytearray, value: float, what: str) -> None:
        try:
            out += struct.pack("<f", value)
        except (OverflowError, struct.error):
            raise EncodeError(what=what, value=value) from None


class Flag:
    """One byte: 0 is False, anything else True; written as 0 or 1."""

    minimum = 1

    def read(self, cursor: Cursor, what: str) -> bool:
        return cursor.u8() != 0

    def write(self, out: bytearray, value: bool, what: str) -> None:
        out.append(1 if value else 0)


class Enum8(Generic[E]):
    """One byte of a closed enumeration; any other byte is refused."""

    minimum = 1

    def __init__(self, kind: type[E]) -> None:
        self.kind = kind
        self._members: dict[int, E] = {int(member): member for member in kind}

    def read(self, cursor: Cursor, what: str) -> E:
        offset = cursor.position
        value = cursor.u8()
        member = self._members.get(value)
        if member is None:
            raise DecodeError(what, offset, self.kind.__name__, value)
        return member

    def write(self, out: bytearray, value: E, what: str) -> None:
        if value not in self._members:
            raise EncodeError(what=what, value=value)
        out.append(int(value))


class Blob:
    """Bytes behind a length of `prefix` bytes; the length lies within `shortest`..`longest`."""

    def __init__(self, prefix: int, shortest: int = 0, longest: int | None = None) -> None:
        self.prefix = prefix
        self.shortest = shortest
        self.longest = (1 << 8 * prefix) - 1 if longest is None else longest
        self.minimum = prefix + shortest

    def read_view(self, cursor: Cursor, what: str) -> memoryview:
        offset = cursor.position
        length = cursor.u8() if self.prefix == 1 else int.from_bytes(cursor.take(self.prefix), "little")
        if not self.shortest <= length <= self.longest:
            raise DecodeError(what, offset, f"length {self.shortest}..{self.longest}", length)
        return cursor.take(length)

    def read(self, cursor: Cursor, what: str) -> bytes:
        return bytes(self.read_view(cursor, what))

    def write(self, out: bytearray, value: bytes, what: str) -> None:
        if not self.shortest <= len(value) <= self.longest:
            raise EncodeError(what=what, value=value)
        out += len(value).to_bytes(self.prefix, "little")
        out += value


class Text:
    """UTF-8 text behind a length of `prefix` bytes; bounds are in bytes."""

    def __init__(self, prefix: int, shortest: int = 0, longest: int | None = None) -> None:
        self.blob = Blob(prefix, shortest, longest)
        self.minimum = self.blob.minimum

    def read(self, cursor: Cursor, what: str) -> str:
        view = self.blob.read_view(cursor, what)
        return decode_text(view, what, cursor.position - len(view))

    def write(self, out: bytearray, value: str, what: str) -> None:
        self.blob.write(out, encode_text(value, what), what)


class Rest:
    """Every byte that is left."""

    minimum = 0

    def read(self, cursor: Cursor, what: str) -> bytes:
        return bytes(cursor.rest())

    def write(self, out: bytearray, value: bytes, what: str) -> None:
        out += value


class Optional(Generic[T]):
    """One flag byte, then the value only when the flag is exactly 1; written as 0 or 1."""

    minimum = 1

    def __init__(self, item: Codec[T]) -> None:
        self.item = item

    def read(self, cursor: Cursor, what: str) -> T | None:
        return self.item.read(cursor, what) if cursor.u8() == 1 else None

    def write(self, out: bytearray, value: T | None, what: str) -> None:
        if value is None:
            out.append(0)
            return
        out.append(1)
        self.item.write(out, value, what)


def _require_bytes(item: Codec[Any]) -> None:
    """Items that take no bytes would let a count of a few bytes allocate without bound; ValueError at import."""
    if item.minimum < 1:
        raise ValueError(f"{type(item).__name__} items may be empty")


class Counted(Generic[T]):
    """A count of `prefix` bytes, then that many items; the bytes left bound the count before an item is read."""

    def __init__(self, prefix: int, item: Codec[T]) -> None:
        _require_bytes(item)
        self.prefix = prefix
        self.item = item
        self.minimum = prefix

    def read(self, cursor: Cursor, what: str) -> tuple[T, ...]:
        offset = cursor.position
        count = int.from_bytes(cursor.take(self.prefix), "little")
        if count * self.item.minimum > cursor.remaining:
            raise DecodeError(what, offset, f"at most {cursor.remaining // self.item.minimum} items", count)
        return tuple([self.item.read(cursor, what) for _ in range(count)])

    def write(self, out: bytearray, value: tuple[T, ...], what: str) -> None:
        if len(value) >= 1 << 8 * self.prefix:
            raise EncodeError(what=what, value=len(value))
        out += len(value).to_bytes(self.prefix, "little")
        for item in value:
            self.item.write(out, item, what)


class UntilEnd(Generic[T]):
    """Items back to back until the end of the body, without a count."""

    minimum = 0

    def __init__(self, item: Codec[T]) -> None:
        _require_bytes(item)
        self.item = item

    def read(self, cursor: Cursor, what: str) -> tuple[T, ...]:
        items: list[T] = []
        while cursor.remaining:
            items.append(self.item.read(cursor, what))
        return tuple(items)

    def write(self, out: bytearray, value: tuple[T, ...], what: str) -> None:
        for item in value:
            self.item.write(out, item, what)


U8_CODEC: Final = UInt(1)
U16_CODEC: Final = UInt(2)
U32_CODEC: Final = UInt(4)
U64_CODEC: Final = UInt(8)
U128_CODEC: Final = UInt(16)

AnyCodec = Codec[Any]
