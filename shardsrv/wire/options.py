"""Options blocks of streams, topics and users: typed values by key.

The pairs are those of user headers with stricter rules: a key is of kind 2 (UTF-8 text) and appears once; at most 1024
pairs and 100,000 bytes. In requests the block runs to the end of the body; in replies a u32 length stands before it.
Invariants: the order of the keys is kept as it came; what the keys mean and which exist is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import attrs

from shardsrv.errors import DecodeError, EncodeError
from shardsrv.wire.codec import decode_text
from shardsrv.wire.cursor import Buffer, Cursor
from shardsrv.wire.typed_values import TypedValue, ValueKind, read_typed, write_typed

MAX_OPTIONS: Final = 1024
MAX_OPTIONS_SIZE: Final = 100_000
"""Bytes of one block."""


@attrs.frozen
class Option:
    """One option: its key and its value as it travels."""

    key: str
    value: TypedValue


Options = tuple[Option, ...]


def options_of(values: Mapping[str, TypedValue]) -> Options:
    """A block sorted by key, as the server writes it."""
    return tuple([Option(key, values[key]) for key in sorted(values)])


def decode_options(block: Buffer, what: str = "options") -> Options:
    """The options in a whole block; raises DecodeError."""
    if len(block) > MAX_OPTIONS_SIZE:
        raise DecodeError(what, 0, f"at most {MAX_OPTIONS_SIZE} bytes", len(block))
    cursor = Cursor(block)
    found: dict[str, Option] = {}
    while cursor.remaining:
        offset = cursor.position
        if len(found) == MAX_OPTIONS:
            raise DecodeError(what, offset, f"at most {MAX_OPTIONS} options", MAX_OPTIONS + 1)
        key = read_typed(cursor, what)
        if key.kind != ValueKind.STRING:
            raise DecodeError(what, offset, "a text key (kind 2)", key.kind)
        name = decode_text(memoryview(key.raw), what, offset + 5)
        if name in found:
            raise DecodeError(what, offset, "each key once", name)
        found[name] = Option(name, read_typed(cursor, what))
    return tuple(found.values())


def encode_options(options: Options, what: str = "options") -> bytes:
    """The bytes of a block in the given order; raises EncodeError."""
    if len(options) > MAX_OPTIONS or len({option.key for option in options}) != len(options):
        raise EncodeError(what=what, value=len(options))
    out = bytearray()
    for option in options:
        write_typed(out, TypedValue.text(option.key), what)
        write_typed(out, option.value, what)
    if len(out) > MAX_OPTIONS_SIZE:
        raise EncodeError(what=what, value=len(out))
    return bytes(out)


class OptionsToEnd:
    """A block to the end of the body."""

    minimum = 0

    def read(self, cursor: Cursor, what: str) -> Options:
        return decode_options(cursor.rest(), what)

    def write(self, out: bytearray, value: Options, what: str) -> None:
        out += encode_options(value, what)


class Options32:
    """A block behind its u32 length."""

    minimum = 4

    def read(self, cursor: Cursor, what: str) -> Options:
        return decode_options(cursor.take(cursor.u32()), what)

    def write(self, out: bytearray, value: Options, what: str) -> None:
        block = encode_options(value, what)
        out += len(block).to_bytes(4, "little")
        out += block


RequestOptions = Annotated[Options, OptionsToEnd()]
ReplyOptions = Annotated[Options, Options32()]
