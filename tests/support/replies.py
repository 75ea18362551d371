"""Reply payloads as plain values, decoded from the wire format alone, with the values that may differ masked.

``decode(code, payload)`` takes the command code of the request and the bytes behind the result section. Fields that
two correct servers may fill differently (times, addresses, checksums over times, process facts) are left out, so two
decoded replies to the same request may be compared with ``==``.
"""

import struct
from collections.abc import Callable
from typing import Any

from tests.support.batches import decode_batches

Value = dict[str, Any] | list[Any] | str | int | None


class BadReply(Exception):
    """The payload does not have the layout of a reply to this command."""


class Cursor:
    """Reads one payload from the front to the back."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def __bool__(self) -> bool:
        return self.position < len(self.data)

    def take(self, size: int) -> bytes:
        if self.position + size > len(self.data):
            raise BadReply(f"{size} bytes wanted at {self.position} of {len(self.data)}")
        data = self.data[self.position : self.position + size]
        self.position += size
        return data

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def name(self) -> str:
        return self.take(self.number(1)).decode()

    def long_text(self) -> str:
        return self.take(self.number(4)).decode()

    def records(self, read: Callable[["Cursor"], Value]) -> list[Value]:
        """Records back to back to the end of the payload."""
        found = []
        while self:
            found.append(read(self))
        return found


def decode(code: int, payload: bytes) -> Value:
    """The comparable value of a reply; ``None`` for an empty body. Raises :class:`BadReply` and ``BadBatch``."""
    read = READERS.get(code)
    if read is None or not payload:
        return payload.hex() or None
    cursor = Cursor(payload)
    value = read(cursor)
    if cursor:
        raise BadReply(f"{len(payload) - cursor.position} bytes follow the reply to code {code}")
    return value


def options(block: bytes) -> dict[str, str]:
    """An option block as key -> ``kind:value in hex``; the order of keys is free."""
    cursor = Cursor(block)
    found: dict[str, str] = {}
    while cursor:
        if cursor.number(1) != 2:
            raise BadReply("the key of an option is not a string")
        key = cursor.long_text()
        if key in found:
            raise BadReply(f"option {key} stands twice")
        kind = cursor.number(1)
        found[key] = f"{kind}:{cursor.take(cursor.number(4)).hex()}"
    return found


def _option_field(cursor: Cursor) -> dict[str, str]:
    return options(cursor.take(cursor.number(4)))


def _skip(cursor: Cursor, size: int) -> None:
    cursor.take(size)


def login(cursor: Cursor) -> Value:
    user = cursor.number(4)
    session = cursor.number(8)
    version = cursor.number(4)
    _ = cursor.name()
    return {"user_id": user, "session is set": session > 0, "server_protocol_version": version}


def cluster(cursor: Cursor) -> Value:
    name = cursor.long_text()
    nodes = []
    for _ in range(cursor.number(4)):
        node = {"name": cursor.long_text()}
        _ = cursor.long_text()
        _skip(cursor, 8)
        nodes.append({**node, "role": cursor.number(1), "status": cursor.number(1)})
    return {"name": name, "nodes": nodes}


def stats(cursor: Cursor) -> Value:
    _skip(cursor, 68)
    names = ("messages_size_bytes", "streams", "topics", "partitions", "segments", "messages", "clients", "groups")
    found = dict(zip(names, struct.unpack("<QIIIIQII", cursor.take(40)), strict=True))
    for _ in range(5):
        cursor.long_text()
    _skip(cursor, 4)
    _skip(cursor, cursor.number(4) * 32)
    _skip(cursor, 20)
    return found


def client_record(cursor: Cursor) -> dict[str, Any]:
    _skip(cursor, 4)
    found = {"user_id": cursor.number(4), "transport": cursor.number(1)}
    _ = cursor.long_text()
    return {**found, "groups_count": cursor.number(4)}


def client_details(cursor: Cursor) -> Value:
    client = client_record(cursor)
    groups = [struct.unpack("<III", cursor.take(12)) for _ in range(client["groups_count"])]
    return {"client": client, "groups": groups}


def catalog(cursor: Cursor) -> Value:
    found = {}
    for _ in range(cursor.number(4)):
        key = cursor.name()
        kind = cursor.number(1)
        default = cursor.take(cursor.number(4)).hex()
        _ = cursor.long_text()
        found[key] = f"{kind}:{default}"
    return found


def user_record(cursor: Cursor) -> dict[str, Any]:
    found: dict[str, Any] = {"id": cursor.number(4)}
    _skip(cursor, 8)
    return {**found, "status": cursor.number(1), "username": cursor.name(), "options": _option_field(cursor)}


def user_details(cursor: Cursor) -> Value:
    user = user_record(cursor)
    rest = cursor.take(len(cursor.data) - cursor.position)
    return {"user": user, "permissions": rest.hex()}


def token_record(cursor: Cursor) -> Value:
    return {"name": cursor.name(), "expires": cursor.number(8) > 0}


def raw_token(cursor: Cursor) -> Value:
    return {"token length": len(cursor.name())}


def stream_record(cursor: Cursor) -> dict[str, Any]:
    found: dict[str, Any] = {"id": cursor.number(4)}
    _skip(cursor, 8)
    for field, size in (("topics", 4), ("size", 8), ("messages", 8)):
        found[field] = cursor.number(size)
    return {**found, "name": cursor.name(), "options": _option_field(cursor)}


def topic_header(cursor: Cursor) -> dict[str, Any]:
    found: dict[str, Any] = {"id": cursor.number(4)}
    _skip(cursor, 8)
    fields = (("partitions", 4), ("expiry", 8), ("compression", 1), ("max_size", 8), ("size", 8), ("messages", 8))
    for field, size in fields:
        found[field] = cursor.number(size)
    return {
        **found,
        "name": cursor.name(),
        "options": _option_field(cursor),
        "derived_options": _option_field(cursor),
    }


def partition_record(cursor: Cursor) -> Value:
    identity = cursor.number(4)
    _skip(cursor, 8)
    segments, offset, size, messages = struct.unpack("<IQQQ", cursor.take(28))
    return {"id": identity, "segments": segments, "offset": offset, "size": size, "messages": messages}


def stream_details(cursor: Cursor) -> Value:
    return {"stream": stream_record(cursor), "topics": cursor.records(topic_header)}


def topic_details(cursor: Cursor) -> Value:
    return {"topic": topic_header(cursor), "partitions": cursor.records(partition_record)}


def topic_list(cursor: Cursor) -> Value:
    return [topic_header(cursor) for _ in range(cursor.number(4))]


def confirmations(cursor: Cursor) -> Value:
    return [struct.unpack("<IIIQ", cursor.take(20)) for _ in range(cursor.number(4))]


def polled(cursor: Cursor) -> Value:
    partition, current, count = struct.unpack("<IQI", cursor.take(16))
    batches = decode_batches(cursor.take(len(cursor.data) - cursor.position))
    return {
        "partition": partition,
        "current_offset": current,
        "count": count,
        "records": [
            {
                "partition": batch.partition_id,
                "base_offset": batch.base_offset,
                "origin_timestamp": batch.origin_timestamp,
                "length": batch.length,
                "messages": [
                    (message.offset, message.id.hex(), message.payload.hex(), message.user_headers.hex())
                    for message in batch.messages
                ],
            }
            for batch in batches
        ],
    }


def offset_record(cursor: Cursor) -> Value:
    partition, current, stored = struct.unpack("<IQQ", cursor.take(20))
    return {"partition": partition, "current_offset": current, "stored_offset": stored}


def group_record(cursor: Cursor) -> dict[str, Any]:
    identity, partitions, members = struct.unpack("<III", cursor.take(12))
    return {"id": identity, "partitions": partitions, "members": members, "name": cursor.name()}


def member_record(cursor: Cursor) -> Value:
    return {"id": cursor.number(4), "partitions": [cursor.number(4) for _ in range(cursor.number(4))]}


def group_details(cursor: Cursor) -> Value:
    return {"group": group_record(cursor), "members": cursor.records(member_record)}


def assignment(cursor: Cursor) -> Value:
    return {"generation": cursor.number(8), "partitions": [cursor.number(4) for _ in range(cursor.number(4))]}


def list_of(read: Callable[[Cursor], Value]) -> Callable[[Cursor], Value]:
    """Records without a count in front, in their order."""
    return lambda cursor: cursor.records(read)


def set_of(read: Callable[[Cursor], Value]) -> Callable[[Cursor], Value]:
    """Records without a count in front whose order means nothing."""
    return lambda cursor: sorted(cursor.records(read), key=str)


READERS: dict[int, Callable[[Cursor], Value]] = {
    10: stats,
    12: cluster,
    13: catalog,
    20: client_details,
    21: client_details,
    22: set_of(client_record),
    31: user_details,
    32: list_of(user_record),
    33: user_details,
    40: login,
    41: set_of(token_record),
    42: raw_token,
    100: polled,
    101: confirmations,
    104: polled,
    120: offset_record,
    200: stream_details,
    201: list_of(stream_record),
    202: stream_record,
    300: topic_details,
    301: topic_list,
    302: topic_details,
    600: group_details,
    601: set_of(group_record),
    602: group_details,
    606: assignment,
}
"""Command code -> reader of its reply."""
