"""Checked reading of MessagePack values: each function returns the value or raises DecodeError with the place and what
was met.

Invariant: a bool is not a number, and nothing is converted.
"""

from __future__ import annotations

from typing import Any, Final

from shardsrv.errors import DecodeError

U32_MAX: Final = 2**32 - 1
U64_MAX: Final = 2**64 - 1


def number(value: Any, what: str, highest: int = U64_MAX) -> int:
    """An integer from 0 to `highest`."""
    if type(value) is not int or not 0 <= value <= highest:
        raise DecodeError(what, 0, f"a number from 0 to {highest}", _met(value))
    return value


def text(value: Any, what: str, shortest: int = 1, longest: int = 255) -> str:
    """UTF-8 text of `shortest` to `longest` bytes."""
    if type(value) is not str or not shortest <= len(value.encode("utf-8", "surrogatepass")) <= longest:
        raise DecodeError(what, 0, f"text of {shortest} to {longest} bytes", _met(value))
    return value


def blob(value: Any, what: str, shortest: int, longest: int) -> bytes:
    """Bytes of a length from `shortest` to `longest`."""
    if type(value) is not bytes or not shortest <= len(value) <= longest:
        raise DecodeError(what, 0, f"{shortest} to {longest} bytes", _met(value))
    return value


def sequence(value: Any, what: str) -> list[Any]:
    """An array of any length."""
    if type(value) is not list:
        raise DecodeError(what, 0, "an array", _met(value))
    return value


def record(value: Any, what: str, length: int) -> list[Any]:
    """An array of exactly `length` fields."""
    if type(value) is not list or len(value) != length:
        raise DecodeError(what, 0, f"an array of {length}", _met(value))
    return value


def ascending(previous: int, value: int, what: str) -> int:
    """`value`, which must be above `previous`: lists are sorted and hold each id once."""
    if value <= previous:
        raise DecodeError(what, 0, f"a number above {previous}", value)
    return value


def _met(value: Any) -> int | str | bytes | None:
    if value is None or type(value) in (int, str, bytes):
        return value
    return f"{type(value).__name__} of {len(value)}" if type(value) is list else type(value).__name__
