"""Values with a kind, and the key/value pairs of user headers.

Layout of a pair: `u8 key_kind, u32 key_length, key, u8 value_kind, u32 value_length, value`. Invariants: kinds are not
zero and lengths are 1..255; a kind that this release does not know passes through unread; pairs tile their bytes. The
raw bytes are what is kept, so that encoding gives back exactly what was decoded.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from typing import Final

import attrs

from shardsrv.errors import DecodeError, EncodeError
from shardsrv.wire.codec import Blob, decode_text, encode_text
from shardsrv.wire.cursor import Buffer, Cursor

MAX_USER_HEADERS_SIZE: Final = 100_000
"""Bytes of user headers in one message; clients refuse more."""


class ValueKind(enum.IntEnum):
    RAW = 1
    STRING = 2
    BOOL = 3
    INT8 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    INT128 = 8
    UINT8 = 9
    UINT16 = 10
    UINT32 = 11
    UINT64 = 12
    UINT128 = 13
    FLOAT32 = 14
    FLOAT64 = 15


Value = bytes | str | bool | int | float

_INTEGERS: Final[dict[int, tuple[int, bool]]] = {
    kind: (1 << index % 5, index < 5) for index, kind in enumerate(range(ValueKind.INT8, ValueKind.UINT128 + 1))
}
"""kind -> (bytes, signed)"""
_FLOATS: Final[dict[int, str]] = {ValueKind.FLOAT32: "<f", ValueKind.FLOAT64: "<d"}
_FIELD: Final = Blob(4, shortest=1, longest=255)
MINIMUM_PAIR: Final = 12
"""Bytes of the smallest pair."""


@attrs.frozen
class TypedValue:
    """A kind byte and raw bytes."""

    kind: int
    raw: bytes

    @classmethod
    def of(cls, kind: int, value: Value) -> TypedValue:
        """The value encoded as `kind`; raises EncodeError when it does not fit."""
        try:
            return cls(kind, _ENCODERS[kind](kind, value))
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError, struct.error):
            raise EncodeError(what=f"value of kind {kind}", value=value) from None

    @classmethod
    def text(cls, value: str) -> TypedValue:
        return cls.of(ValueKind.STRING, value)

    def decoded(self) -> Value:
        """The value in Python's terms, raw bytes for an unknown kind; DecodeError when the bytes do not fit it."""
        if self.kind == ValueKind.STRING:
            return decode_text(memoryview(self.raw), "text value", 0)
        if self.kind == ValueKind.BOOL:
            if self.raw not in (b"\x00", b"\x01"):
                raise DecodeError("bool value", 0, "one byte 0 or 1", self.raw)
            return self.raw == b"\x01"
        if self.kind in _INTEGERS:
            width, signed = _INTEGERS[self.kind]
            self._require_width(width)
            return int.from_bytes(self.raw, "little", signed=signed)
        if self.kind in _FLOATS:
            self._require_width(struct.calcsize(_FLOATS[self.kind]))
            return float(struct.unpack(_FLOATS[self.kind], self.raw)[0])
        return self.raw

    def _require_width(self, width: int) -> None:
        if len(self.raw) != width:
            raise DecodeError(f"value of kind {self.kind}", 0, f"{width} bytes", len(self.raw))


def _encode_integer(kind: int, value: Value) -> bytes:
    width, signed = _INTEGERS[kind]
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(kind)
    return value.to_bytes(width, "little", signed=signed)


def _encode_bool(kind: int, value: Value) -> bytes:
    if not isinstance(value, bool):
        raise TypeError(kind)
    return b"\x01" if value else b"\x00"


def _encode_raw(kind: int, value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(kind)
    return value


_ENCODERS: Final[dict[int, Callable[[int, Value], bytes]]] = {
    ValueKind.RAW: _encode_raw,
    ValueKind.STRING: lambda kind, value: encode_text(str(value), "text value"),
    ValueKind.BOOL: _encode_bool,
    **dict.fromkeys(_INTEGERS, _encode_integer),
    **dict.fromkeys(_FLOATS, lambda kind, value: struct.pack(_FLOATS[kind], value)),
}


def read_typed(cursor: Cursor, what: str) -> TypedValue:
    """One half of a pair; raises DecodeError."""
    offset = cursor.position
    kind = cursor.u8()
    if kind == 0:
        raise DecodeError(what, offset, "a kind from 1", kind)
    return TypedValue(kind, _FIELD.read(cursor, what))


def write_typed(out: bytearray, value: TypedValue, what: str) -> None:
    """Appends one half of a pair; raises EncodeError."""
    if not 0 < value.kind < 256:
        raise EncodeError(what=what, value=value.kind)
    out.append(value.kind)
    _FIELD.write(out, value.raw, what)


@attrs.frozen
class UserHeader:
    """One user header of a message."""

    key: TypedValue
    value: TypedValue


def decode_user_headers(buffer: Buffer) -> tuple[UserHeader, ...]:
    """The user headers of one message; raises DecodeError. Duplicate keys are left to the reader."""
    if len(buffer) > MAX_USER_HEADERS_SIZE:
        raise DecodeError("user headers", 0, f"at most {MAX_USER_HEADERS_SIZE} bytes", len(buffer))
    cursor = Cursor(buffer)
    headers: list[UserHeader] = []
    while cursor.remaining:
        key = read_typed(cursor, "user header key")
        headers.append(UserHeader(key, read_typed(cursor, "user header value")))
    return tuple(headers)


def encode_user_headers(headers: tuple[UserHeader, ...]) -> bytes:
    """The bytes of user headers in the given order; raises EncodeError."""
    out = bytearray()
    for header in headers:
        write_typed(out, header.key, "user header key")
        write_typed(out, header.value, "user header value")
    if len(out) > MAX_USER_HEADERS_SIZE:
        raise EncodeError(what="user headers", value=len(out))
    return bytes(out)
