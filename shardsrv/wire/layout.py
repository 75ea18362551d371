"""Header layouts as tables: which field lies where in the 256 bytes, checked to be total when the module is imported.

Owns: field kinds, the check that a layout covers bytes 0..256 without gap or overlap, packing, unpacking and seals.
Invariants: reserved bytes are written as zero, and refused unless zero where the layout is strict; a sealed layout
carries in bytes 0..16 the XXH3-64 (seed 0) of bytes 16..256, widened to u128; bounded numbers are at most 2**62 - 1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, ClassVar, Final, Self

import attrs
import xxhash

from shardsrv.errors import DecodeError, EncodeError, SealMismatch, Truncated
from shardsrv.wire.constants import HEADER_SIZE, MAX_OP, ZERO_ID, Command
from shardsrv.wire.cursor import Buffer

U8: Final = "u8"
U16: Final = "u16"
U32: Final = "u32"
U64: Final = "u64"
U62: Final = "u62"
"""A u64 that must be at most 2**62 - 1."""
U128: Final = "u128"
BYTES: Final = "bytes"
RESERVED: Final = "reserved"

_CODES: Final = {U8: "B", U16: "H", U32: "I", U64: "Q", U62: "Q"}
_SIZES: Final = {U8: 1, U16: 2, U32: 4, U64: 8, U62: 8, U128: 16}


@attrs.frozen
class Field:
    """`size` bytes at `offset`; `name` is the attribute (reserved bytes have none)."""

    offset: int
    size: int
    kind: str
    name: str = ""


def number(offset: int, kind: str, name: str) -> Field:
    """An unsigned little-endian integer."""
    return Field(offset, _SIZES[kind], kind, name)


def raw(offset: int, size: int, name: str) -> Field:
    """Bytes as they are: ids, nonces of handshakes, authentication codes."""
    return Field(offset, size, BYTES, name)


def reserved(offset: int, end: int) -> Field:
    """Zero bytes offset..end."""
    return Field(offset, end - offset, RESERVED)


def frame_prefix(*tail: Field) -> tuple[Field, ...]:
    """Bytes 0..128, the same in every header; `tail` replaces the reserved bytes 62..128."""
    return (
        number(0, U128, "checksum"),
        number(16, U128, "checksum_body"),
        raw(32, 16, "cluster"),
        number(48, U32, "size"),
        number(52, U32, "view"),
        number(56, U32, "release"),
        number(60, U8, "command"),
        number(61, U8, "replica"),
        *(tail or (reserved(62, 128),)),
    )


class Layout:
    """A checked table of fields with its packer; ValueError at import unless bytes 0..256 are tiled exactly."""

    def __init__(
        self,
        command: Command,
        fields: Iterable[Field],
        *,
        sealed: bool = False,
        strict: bool = True,
        fixed_size: bool = False,
    ) -> None:
        self.command = command
        self.fields = tuple(fields)
        self.sealed = sealed
        self.strict = strict
        self.fixed_size = fixed_size
        self._check_total()
        named = [field for field in self.fields if field.kind != RESERVED]
        self.names = tuple(field.name for field in named if field.name != "command")
        self._named = tuple(named)
        self._struct = struct.Struct("<" + "".join(self._code(field) for field in self.fields))
        self._gaps = tuple(field for field in self.fields if field.kind == RESERVED)

    def _check_total(self) -> None:
        position = 0
        for field in self.fields:
            if field.offset != position or field.size <= 0:
                raise ValueError(f"{self.command.name}: byte {position} is followed by a field at {field.offset}")
            position += field.size
        names = [field.name for field in self.fields if field.name]
        if position != HEADER_SIZE or len(names) != len(set(names)):
            raise ValueError(f"{self.command.name}: {position} bytes, names {names}")

    @staticmethod
    def _code(field: Field) -> str:
        if field.kind == RESERVED:
            return f"{field.size}x"
        return _CODES.get(field.kind) or f"{field.size}s"

    def pack(self, header: Header) -> bytes:
        """256 bytes; the seal is made here when the layout has one. Raises EncodeError for a value out of range."""
        values: list[Any] = []
        for field in self._named:
            value: Any = self.command if field.name == "command" else getattr(header, field.name)
            if field.kind == U128:
                value = self._wide(field, value)
            elif (field.kind == BYTES and len(value) != field.size) or (field.kind == U62 and value > MAX_OP):
                raise EncodeError(what=field.name, value=value)
            values.append(value)
        try:
            packed = self._struct.pack(*values)
        except struct.error as error:
            raise EncodeError(str(error), what=type(header).__name__, value=header) from None
        if not self.sealed:
            return packed
        return seal_of(packed).to_bytes(16, "little") + packed[16:]

    @staticmethod
    def _wide(field: Field, value: int) -> bytes:
        if not 0 <= value < 1 << 128:
            raise EncodeError(what=field.name, value=value)
        return value.to_bytes(16, "little")

    def unpack(self, buffer: Buffer) -> dict[str, Any]:
        """Field values by name without `command`. Raises DecodeError: length, command, seal, reserved bytes, bounds."""
        view = memoryview(buffer)
        if len(view) < HEADER_SIZE:
            raise Truncated("header", 0, HEADER_SIZE, len(view))
        header = bytes(view[:HEADER_SIZE])
        if header[60] != self.command:
            raise DecodeError("command", 60, int(self.command), header[60])
        if self.sealed and int.from_bytes(header[:16], "little") != seal_of(header):
            raise SealMismatch(self.command.name, 0, int.from_bytes(header[:16], "little"), seal_of(header))
        if self.strict:
            for gap in self._gaps:
                if any(header[gap.offset : gap.offset + gap.size]):
                    raise DecodeError("reserved bytes", gap.offset, "zero", header[gap.offset : gap.offset + gap.size])
        values: dict[str, Any] = {}
        for field, value in zip(self._named, self._struct.unpack(header), strict=True):
            if field.kind == U128:
                value = int.from_bytes(value, "little")
            elif field.kind == U62 and value > MAX_OP:
                raise DecodeError(field.name, field.offset, f"at most {MAX_OP}", value)
            values[field.name] = value
        del values["command"]
        return values


def seal_of(header: Buffer) -> int:
    """The seal of a control frame: XXH3-64 of header bytes 16..256."""
    return xxhash.xxh3_64_intdigest(memoryview(header)[16:HEADER_SIZE])


@attrs.frozen(kw_only=True)
class Header:
    """The common prefix. Ids are 16 bytes as on the wire; `size` is the whole frame in bytes; checksums are ints."""

    layout: ClassVar[Layout]

    checksum: int = 0
    checksum_body: int = 0
    cluster: bytes = ZERO_ID
    size: int = HEADER_SIZE
    view: int = 0
    release: int = 0
    replica: int = 0

    @property
    def command(self) -> Command:
        return self.layout.command

    @property
    def body_size(self) -> int:
        """Bytes behind the header."""
        return self.size - HEADER_SIZE

    def pack(self) -> bytes:
        """The 256 bytes of this header; a sealed one gets its seal here, whatever `checksum` says."""
        return self.layout.pack(self)

    @classmethod
    def unpack(cls, buffer: Buffer) -> Self:
        """Reads the first 256 bytes of `buffer`; raises DecodeError. Field rules are apart, in `validate`."""
        return cls(**cls.layout.unpack(buffer))

    def validate(self) -> None:
        """The field rules of the command; raises DecodeError."""
        if self.size < HEADER_SIZE or (self.layout.fixed_size and self.size != HEADER_SIZE):
            raise DecodeError("size", 48, HEADER_SIZE, self.size)


def require(condition: bool, what: str, offset: int, expected: int | str, found: int | bytes) -> None:
    """Raises DecodeError unless `condition` holds: one field rule."""
    if not condition:
        raise DecodeError(what, offset, expected, found)


def check_layout(kind: type[Header]) -> None:
    """The attributes of a header class are exactly the named fields of its layout; raises ValueError."""
    attributes = {attribute.name for attribute in attrs.fields(kind)}
    if attributes != set(kind.layout.names):
        raise ValueError(f"{kind.__name__}: {sorted(attributes ^ set(kind.layout.names))}")
