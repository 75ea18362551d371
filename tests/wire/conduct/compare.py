"""Recorded and replayed answers in one form, without what may differ, and where they differ."""

import struct
from collections.abc import Iterator
from typing import Any

from tests.support import replies
from tests.support.frames import COMMAND_EVICTION, HEADER_SIZE, Frame
from tests.wire.conduct.recording import Answer, Exchange

NEWER_OPTIONS = frozenset({"durability", "consumer_offset_durability"})


def frame_of(data: bytes) -> Frame:
    return Frame(data[:HEADER_SIZE], data[HEADER_SIZE:])


def answer(exchange: Exchange, frame: Frame | str) -> Answer:
    """What a frame, or its absence, says; raises ``BadReply`` and ``BadBatch`` when a payload has the wrong layout."""
    if isinstance(frame, str):
        return Answer(frame)
    if frame.command == COMMAND_EVICTION:
        window = struct.unpack_from("<II", frame.header, 144)
        return Answer("eviction", reason=frame.eviction_reason, window=(window[0], window[1]))
    value = None
    if frame.status == 0 and not frame.result and exchange.operation != "get_snapshot":
        value = replies.decode(exchange.code, frame.payload)
    return Answer("reply", status=frame.status, result=frame.result, operation=frame.operation, value=value)


def without(given: Answer, option_keys: frozenset[str], fields: frozenset[str]) -> Answer:
    """The answer without what is not compared."""

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            dropped = option_keys | fields
            return {key: strip(item) for key, item in value.items() if key not in dropped}
        return [strip(item) for item in value] if isinstance(value, list) else value

    return Answer(
        given.outcome, given.status, given.result, given.operation, given.reason, given.window, strip(given.value)
    )


def difference(expected: Answer, found: Answer) -> str:
    """The fields in which two answers differ, shortened."""
    parts = []
    for name in Answer.__slots__:
        left, right = getattr(expected, name), getattr(found, name)
        if left != right:
            shown = next(_differences(left, right, name), (name, left, right))
            parts.append(f"{shown[0]} is {str(shown[2])[:160]}, recorded {str(shown[1])[:160]}")
    return "; ".join(parts)


def _differences(left: Any, right: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted(left.keys() | right.keys(), key=str):
            yield from _differences(left.get(key), right.get(key), f"{path}.{key}")
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for index, (one, other) in enumerate(zip(left, right, strict=True)):
            yield from _differences(one, other, f"{path}[{index}]")
    elif left != right:
        yield path, left, right


def without_newer_options(body: bytes) -> bytes:
    """A create_topic body without the options that only servers of the newer generation know."""
    cursor = replies.Cursor(body)
    cursor.take(2 + body[1])
    cursor.take(4)
    cursor.name()
    kept = body[: cursor.position]
    while cursor:
        start = cursor.position
        cursor.take(1)
        key = cursor.long_text()
        cursor.take(1)
        cursor.take(cursor.number(4))
        if key not in NEWER_OPTIONS:
            kept += body[start : cursor.position]
    return kept
