"""Messages as tables: a class names its fields in wire order, each annotated with the codec that reads and writes it.

    class GetTopic(Request):
        stream: Ident
        topic: Ident

Invariants: fields are read in the order they are written down; a request accepts bytes behind its last field (as the
protocol does), a reply and a nested record do not end before or behind it; decoding raises only DecodeError, encoding
only EncodeError. Modules that declare messages must not postpone the evaluation of annotations.
"""

from __future__ import annotations

import typing
from typing import Any, ClassVar, Final, Self

import attrs

from shardsrv.errors import DecodeError
from shardsrv.wire.codec import AnyCodec
from shardsrv.wire.codes import CommandCode
from shardsrv.wire.cursor import Buffer, Cursor

Table = tuple[tuple[str, AnyCodec, str], ...]
"""(field, codec, name in errors) in wire order."""

_TABLES: Final[dict[type, Table]] = {}


class Nested:
    """The codec of a message inside a message."""

    def __init__(self, kind: type[Message]) -> None:
        self.kind = kind
        self.minimum = sum(codec.minimum for _, codec, _ in table(kind))

    def read(self, cursor: Cursor, what: str) -> Message:
        return self.kind.read(cursor)

    def write(self, out: bytearray, value: Message, what: str) -> None:
        value.write(out)


def codec_of(annotation: Any) -> AnyCodec:
    """The codec that an annotation names: Annotated[type, codec], or a message class."""
    if typing.get_origin(annotation) is typing.Annotated:
        return typing.cast(AnyCodec, annotation.__metadata__[0])
    if isinstance(annotation, type) and issubclass(annotation, Message):
        return Nested(annotation)
    raise TypeError(f"{annotation!r} names no codec")


def table(kind: type[Message]) -> Table:
    """The fields of a message class, made once."""
    found = _TABLES.get(kind)
    if found is None:
        fields = attrs.fields(typing.cast(Any, kind))
        found = tuple((field.name, codec_of(field.type), f"{kind.__name__}.{field.name}") for field in fields)
        _TABLES[kind] = found
    return found


class Message:
    """Base of requests, replies and the records inside them. Subclasses are `attrs.frozen`."""

    __slots__ = ()
    accepts_trailing: ClassVar[bool] = False

    @classmethod
    def read(cls, cursor: Cursor) -> Self:
        """Reads the fields at the cursor; raises DecodeError."""
        start = cursor.position
        message = cls(*[codec.read(cursor, what) for _, codec, what in table(cls)])
        message.check(start)
        return message

    def write(self, out: bytearray) -> None:
        """Appends the fields to `out`; raises EncodeError."""
        for name, codec, what in table(type(self)):
            codec.write(out, getattr(self, name), what)

    def check(self, offset: int) -> None:
        """Rules that tie fields together; raises DecodeError. `offset` is where the message began."""

    @classmethod
    def decode(cls, buffer: Buffer) -> Self:
        """The message in `buffer`; raises DecodeError, also for bytes behind it unless the class accepts them."""
        cursor = Cursor(buffer)
        message = cls.read(cursor)
        if cursor.remaining and not cls.accepts_trailing:
            raise DecodeError(cls.__name__, cursor.position, "the end", f"{cursor.remaining} more bytes")
        return message

    def encode(self) -> bytes:
        """The body of this message; raises EncodeError."""
        out = bytearray()
        self.write(out)
        return bytes(out)


class Request(Message):
    """A request body. `code` is its command code."""

    __slots__ = ()
    accepts_trailing: ClassVar[bool] = True
    code: ClassVar[CommandCode]


class Reply(Message):
    """A reply payload, behind the result section where the operation has one. `codes` are the commands it answers."""

    __slots__ = ()
    codes: ClassVar[tuple[CommandCode, ...]]
    absent_when_empty: ClassVar[bool] = False
    """True when a body of zero bytes means that the thing asked for does not exist."""
