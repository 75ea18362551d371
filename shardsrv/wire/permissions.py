"""Permissions of a user: global, per stream, per topic.

Layout: ten flag bytes, `u8 has_streams`, then per stream `u32 id`, six flag bytes, `u8 has_topics`, then per topic
`u32 id`, four flag bytes, `u8 has_next_topic`; then `u8 has_next_stream`. Flags: 0 is False, anything else True.
Invariants: written sorted by id; of duplicates the last wins; when `has_topics` is 0 its list and trailing flag are
absent. Who is granted what by these flags is not decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import attrs

from shardsrv.errors import DecodeError, EncodeError
from shardsrv.wire.codec import Optional
from shardsrv.wire.cursor import Buffer, Cursor


@attrs.frozen
class GlobalPermissions:
    manage_servers: bool = False
    read_servers: bool = False
    manage_users: bool = False
    read_users: bool = False
    manage_streams: bool = False
    read_streams: bool = False
    manage_topics: bool = False
    read_topics: bool = False
    poll_messages: bool = False
    send_messages: bool = False


@attrs.frozen
class TopicPermissions:
    manage_topic: bool = False
    read_topic: bool = False
    poll_messages: bool = False
    send_messages: bool = False


@attrs.frozen
class StreamPermissions:
    """`topics` by topic id."""

    manage_stream: bool = False
    read_stream: bool = False
    manage_topics: bool = False
    read_topics: bool = False
    poll_messages: bool = False
    send_messages: bool = False
    topics: Mapping[int, TopicPermissions] = attrs.field(factory=dict)


@attrs.frozen
class Permissions:
    """`streams` by stream id."""

    global_permissions: GlobalPermissions = GlobalPermissions()
    streams: Mapping[int, StreamPermissions] = attrs.field(factory=dict)


GLOBAL_FLAGS: Final = tuple(field.name for field in attrs.fields(GlobalPermissions))
TOPIC_FLAGS: Final = tuple(field.name for field in attrs.fields(TopicPermissions))
STREAM_FLAGS: Final = tuple(field.name for field in attrs.fields(StreamPermissions) if field.name != "topics")


def _read_flags(cursor: Cursor, count: int) -> list[bool]:
    return [byte != 0 for byte in cursor.take(count)]


def _write_flags(out: bytearray, owner: object, names: tuple[str, ...]) -> None:
    out += bytes([1 if getattr(owner, name) else 0 for name in names])


def _write_id(out: bytearray, number: int, what: str) -> None:
    if not 0 <= number < 1 << 32:
        raise EncodeError(what=what, value=number)
    out += number.to_bytes(4, "little")


def _read_topics(cursor: Cursor) -> dict[int, TopicPermissions]:
    topics: dict[int, TopicPermissions] = {}
    more = cursor.u8() != 0
    while more:
        topic = cursor.u32()
        topics[topic] = TopicPermissions(*_read_flags(cursor, len(TOPIC_FLAGS)))
        more = cursor.u8() != 0
    return topics


def decode_permissions(buffer: Buffer) -> Permissions:
    """The permissions that `buffer` holds exactly; raises DecodeError."""
    cursor = Cursor(buffer)
    global_permissions = GlobalPermissions(*_read_flags(cursor, len(GLOBAL_FLAGS)))
    streams: dict[int, StreamPermissions] = {}
    more = cursor.u8() != 0
    while more:
        stream = cursor.u32()
        values: list[Any] = [*_read_flags(cursor, len(STREAM_FLAGS)), _read_topics(cursor)]
        streams[stream] = StreamPermissions(*values)
        more = cursor.u8() != 0
    if cursor.remaining:
        raise DecodeError("permissions", cursor.position, "the end", f"{cursor.remaining} more bytes")
    return Permissions(global_permissions, streams)


def encode_permissions(permissions: Permissions) -> bytes:
    """The bytes of permissions, sorted by id; raises EncodeError."""
    out = bytearray()
    _write_flags(out, permissions.global_permissions, GLOBAL_FLAGS)
    for stream in sorted(permissions.streams):
        of_stream = permissions.streams[stream]
        out.append(1)
        _write_id(out, stream, "stream id")
        _write_flags(out, of_stream, STREAM_FLAGS)
        for topic in sorted(of_stream.topics):
            out.append(1)
            _write_id(out, topic, "topic id")
            _write_flags(out, of_stream.topics[topic], TOPIC_FLAGS)
        out.append(0)
    out.append(0)
    return bytes(out)


class Permissions32:
    """Permissions behind their u32 length, which they fill exactly."""

    minimum = 15

    def read(self, cursor: Cursor, what: str) -> Permissions:
        return decode_permissions(cursor.take(cursor.u32()))

    def write(self, out: bytearray, value: Permissions, what: str) -> None:
        block = encode_permissions(value)
        out += len(block).to_bytes(4, "little")
        out += block


class OptionalInReply:
    """As in requests when present; four zero bytes when absent."""

    minimum = 4

    def read(self, cursor: Cursor, what: str) -> Permissions | None:
        offset = cursor.position
        if cursor.u8() == 1:
            return PERMISSIONS_CODEC.read(cursor, what)
        padding = bytes(cursor.take(3))
        if any(padding):
            raise DecodeError(what, offset, "four zero bytes", padding)
        return None

    def write(self, out: bytearray, value: Permissions | None, what: str) -> None:
        if value is None:
            out += bytes(4)
        else:
            out.append(1)
            PERMISSIONS_CODEC.write(out, value, what)


PERMISSIONS_CODEC: Final = Permissions32()
OptionalPermissions = Annotated[Permissions | None, Optional(PERMISSIONS_CODEC)]
OptionalPermissionsInReply = Annotated[Permissions | None, OptionalInReply()]
