"""Decoded requests and replies as the plain values in which the recordings state them.

The recordings name some fields differently (`stream_id` for an identifier of a request, `types` of a snapshot) and
spell kinds of values as words; nothing here knows a byte layout.
"""

from __future__ import annotations

from typing import Any

import attrs

from shardsrv.errors import DecodeError
from shardsrv.wire import batch as batches
from shardsrv.wire.message import Message, Request
from shardsrv.wire.messages import PollMessages, PollReply, SendMessages, SendReply
from shardsrv.wire.options import Option
from shardsrv.wire.permissions import GLOBAL_FLAGS, STREAM_FLAGS, TOPIC_FLAGS, Permissions
from shardsrv.wire.primitives import Consumer, Partitioning
from shardsrv.wire.system import OptionDescriptor
from shardsrv.wire.typed_values import TypedValue, ValueKind, decode_user_headers

KIND_NAMES: dict[int, str] = {
    **{int(kind): kind.name.lower() for kind in ValueKind},
    **{int(kind): "u" + kind.name[1:].lower() for kind in ValueKind if kind.name.startswith("UINT")},
}
REQUEST_NAMES = {
    "stream": "stream_id",
    "topic": "topic_id",
    "user": "user_id",
    "group": "group_id",
    "partition": "partition_id",
    "kinds": "types",
}
REPLY_NAMES = {"partition": "partition_id"}
LISTS = {
    "OptionsReply": "options",
    "ClientsReply": "clients",
    "UsersReply": "users",
    "TokensReply": "tokens",
    "StreamsReply": "streams",
    "TopicsReply": "topics",
    "GroupsReply": "groups",
}
"""Replies that the recordings state as a bare list."""


def render(message: Message) -> Any:
    """The recording's form of a request or a reply payload."""
    if isinstance(message, SendMessages):
        return _send(message)
    if isinstance(message, PollReply):
        return _poll(message)
    if isinstance(message, SendReply):
        return [_confirmation(one) for one in message.confirmations]
    name = LISTS.get(type(message).__name__)
    if name is not None:
        return [_value(item) for item in getattr(message, name)]
    return _fields(message, REQUEST_NAMES if isinstance(message, Request) else REPLY_NAMES)


def _fields(message: Message, names: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in attrs.fields(type(message)):  # type: ignore[arg-type]
        value = getattr(message, field.name)
        if field.name == "strategy" and isinstance(message, PollMessages):
            found |= {"strategy": int(value.kind), "value": value.value}
        elif field.name == "client_id" and isinstance(value, bytes):
            found["client_id"] = int.from_bytes(value, "little")
        elif field.name == "context":
            found["context"] = value.decode()
        else:
            found[names.get(field.name, field.name)] = _value(value)
    return found


def _value(value: Any) -> Any:
    if isinstance(value, OptionDescriptor):
        default = _typed(TypedValue(value.kind, value.default))
        return {"key": value.key, **default, "description": value.description}
    if isinstance(value, Message):
        return _fields(value, REQUEST_NAMES if isinstance(value, Request) else {})
    if isinstance(value, Consumer):
        return {"kind": int(value.kind), "id": value.id}
    if isinstance(value, Permissions):
        return _permissions(value)
    if isinstance(value, Option):
        return {
            "key_kind": "string",
            "key": value.key,
            "kind": KIND_NAMES[value.value.kind],
            "value": _plain(value.value),
        }
    if isinstance(value, tuple):
        return [_value(item) for item in value]
    return value


def _typed(value: TypedValue) -> dict[str, Any]:
    return {"kind": KIND_NAMES[value.kind], "default": _plain(value)}


def _plain(value: TypedValue) -> Any:
    found = value.decoded()
    return {"hex": found.hex()} if isinstance(found, bytes) else found


def _permissions(permissions: Permissions) -> dict[str, Any]:
    def flags(owner: object, names: tuple[str, ...]) -> dict[str, bool]:
        return {name: getattr(owner, name) for name in names}

    return {
        "global": flags(permissions.global_permissions, GLOBAL_FLAGS),
        "streams": {
            str(stream): {
                **flags(of_stream, STREAM_FLAGS),
                "topics": {str(topic): flags(of_topic, TOPIC_FLAGS) for topic, of_topic in of_stream.topics.items()},
            }
            for stream, of_stream in permissions.streams.items()
        },
    }


def _confirmation(one: Any) -> dict[str, int]:
    return {
        "stream_id": one.stream,
        "topic_id": one.topic,
        "partition_id": one.partition,
        "base_offset": one.base_offset,
    }


def _partitioning(partitioning: Partitioning) -> dict[str, Any]:
    return {"partition_id": partitioning.value}


def _send(send: SendMessages) -> dict[str, Any]:
    metadata = {
        "stream_id": send.stream,
        "topic_id": send.topic,
        "partitioning": _partitioning(send.partitioning),
        "messages_count": send.messages_count,
    }
    return {"metadata": metadata, "batch": _batch(batches.Batch.decode(send.batch))}


def _poll(poll: PollReply) -> dict[str, Any]:
    return {
        "partition_id": poll.partition,
        "current_offset": poll.current_offset,
        "messages_count": poll.messages_count,
        "batches": [_batch(batches.Batch.decode(one)) for one in batches.batches_of(poll.records)],
    }


def _batch(batch: batches.Batch) -> dict[str, Any]:
    return {**attrs.asdict(batch.header), "messages": [_message(message) for message in batch.messages]}


def _message(message: batches.Message) -> dict[str, Any]:
    return {
        "checksum": message.checksum,
        "id": message.id,
        "offset_delta": message.offset_delta,
        "timestamp_delta": message.timestamp_delta,
        "reserved": 0,
        "payload": message.payload.hex(),
        "user_headers": _user_headers(message.user_headers),
    }


def _user_headers(raw: bytes) -> Any:
    """Pairs; bytes that are no pairs (the server treats them as opaque) as hex."""
    try:
        headers = decode_user_headers(raw)
    except DecodeError:
        return {"hex": raw.hex()}
    return [
        {
            "key_kind": KIND_NAMES[header.key.kind],
            "key": _plain(header.key),
            "kind": KIND_NAMES[header.value.kind],
            "value": _plain(header.value),
        }
        for header in headers
    ]
