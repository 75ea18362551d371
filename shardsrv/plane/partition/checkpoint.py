"""The partition checkpoint: the committed state of a partition at one op, durable before a head segment goes.

Payload (kind 1 of the slot record): a MessagePack array, positional

    0 format version (1)     4 next_offset     8 purge_generation   11 group offsets
    1 op                     5 first_offset    9 purge_op           12 dedup window
    2 checksum of entry op   6 messages       10 consumer offsets
    3 timestamp              7 bytes

Offsets are [[key, offset] ...] with keys ascending, the window is [[key (41 bytes), op, base offset, timestamp] ...]
with ops ascending.

Invariants: equal states give equal bytes (fixed order, ints, bytes and lists only); ``messages`` is next_offset -
first_offset, written so that a reader of the file need not know; a payload that breaks any rule is refused whole.
"""

from __future__ import annotations

from typing import Any, Final

import attrs
import msgpack

from shardsrv.errors import DecodeError
from shardsrv.wire.constants import MAX_OP

VERSION: Final = 1
FIELDS: Final = 13
KEY_LENGTH: Final = 41


@attrs.frozen
class PartitionCheckpoint:
    """See the module. ``checksum`` is a u64; ``dedup`` in the form of `DedupWindow.rows`."""

    op: int
    checksum: int
    timestamp: int
    next_offset: int
    first_offset: int
    bytes: int
    purge_generation: int
    purge_op: int
    consumer_offsets: dict[int, int]
    group_offsets: dict[int, int]
    dedup: list[Any]


def encode(state: PartitionCheckpoint) -> bytes:
    """The payload of ``state``."""
    return msgpack.packb(
        [
            VERSION,
            state.op,
            state.checksum,
            state.timestamp,
            state.next_offset,
            state.first_offset,
            state.next_offset - state.first_offset,
            state.bytes,
            state.purge_generation,
            state.purge_op,
            [[key, offset] for key, offset in sorted(state.consumer_offsets.items())],
            [[key, offset] for key, offset in sorted(state.group_offsets.items())],
            [list(row) for row in state.dedup],
        ]
    )


def decode(payload: bytes) -> PartitionCheckpoint:
    """Read a payload. Raises `DecodeError` naming the field that is wrong."""
    try:
        fields = msgpack.unpackb(payload, strict_map_key=True)
    except (ValueError, msgpack.UnpackException) as error:
        raise DecodeError("partition checkpoint", 0, "MessagePack", type(error).__name__) from error
    if not isinstance(fields, list) or not fields or fields[0] != VERSION or len(fields) != FIELDS:
        raise DecodeError("partition checkpoint version", 0, VERSION, repr(fields)[:64])
    names = (
        "op",
        "checksum",
        "timestamp",
        "next_offset",
        "first_offset",
        "messages",
        "bytes",
        "purge_generation",
        "purge_op",
    )
    numbers = {name: _number(value, name) for name, value in zip(names, fields[1:10], strict=True)}
    messages = numbers.pop("messages")
    if numbers["first_offset"] > numbers["next_offset"] or messages != numbers["next_offset"] - numbers["first_offset"]:
        raise DecodeError("partition checkpoint messages", 0, None, messages)
    if numbers["purge_op"] > numbers["op"]:
        raise DecodeError("partition checkpoint purge_op", 0, f"at most {numbers['op']}", numbers["purge_op"])
    return PartitionCheckpoint(
        **numbers,
        consumer_offsets=_offsets(fields[10], "consumer offsets"),
        group_offsets=_offsets(fields[11], "group offsets"),
        dedup=_window(fields[12], numbers["op"]),
    )


def _number(value: Any, what: str) -> int:
    limit = 2**64 - 1 if what == "checksum" else MAX_OP
    if type(value) is not int or not 0 <= value <= limit:
        raise DecodeError(f"partition checkpoint {what}", 0, f"0..{limit}", repr(value)[:64])
    return value


def _offsets(rows: Any, what: str) -> dict[int, int]:
    """[[key, offset] ...] with keys ascending as a dict."""
    if not isinstance(rows, list):
        raise DecodeError(f"partition checkpoint {what}", 0, "a list", type(rows).__name__)
    found: dict[int, int] = {}
    previous = -1
    for row in rows:
        if not isinstance(row, list) or len(row) != 2:
            raise DecodeError(f"partition checkpoint {what}", 0, "[key, offset]", repr(row)[:64])
        key, offset = _number(row[0], what), _number(row[1], what)
        if not previous < key < 2**32:
            raise DecodeError(f"partition checkpoint {what}", 0, f"a key above {previous}", key)
        found[key] = offset
        previous = key
    return found


def _window(rows: Any, op: int) -> list[Any]:
    """The dedup window, ops ascending and none above ``op``."""
    if not isinstance(rows, list):
        raise DecodeError("partition checkpoint dedup window", 0, "a list", type(rows).__name__)
    previous = 0
    for row in rows:
        if not isinstance(row, list) or len(row) != 4 or type(row[0]) is not bytes or len(row[0]) != KEY_LENGTH:
            raise DecodeError("partition checkpoint dedup window", 0, "[key, op, offset, timestamp]", repr(row)[:64])
        for value in row[1:]:
            _number(value, "dedup window")
        if not previous < row[1] <= op:
            raise DecodeError("partition checkpoint dedup window", 0, f"an op in {previous + 1}..{op}", row[1])
        previous = row[1]
    return rows
