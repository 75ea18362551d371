"""Frames between members: the one function that takes bytes of the network apart, and its counterpart.

Invariants: what `decode_frame` returns was checked whole (length, command, seal, field bounds, body checksum), so a
replica never meets a malformed frame; every failure is a typed error that the driver counts before it drops the frame;
a prepare is checked by its own seals and carries its body, any other frame by the seal of its header and the body hash
in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import xxhash

from shardsrv._core import Prepare
from shardsrv.errors import DecodeError
from shardsrv.vsr.record import Record
from shardsrv.wire.constants import HEADER_SIZE, MAX_FRAME_SIZE, Command
from shardsrv.wire.cursor import Buffer
from shardsrv.wire.gathered import GatheredHeader, read
from shardsrv.wire.headers import frame_size, parse_header
from shardsrv.wire.layout import Header
from shardsrv.wire.replica_bodies import verify_body

REPLICA_COMMANDS: Final = frozenset(
    int(command)
    for command in (
        Command.PING,
        Command.PREPARE,
        Command.PREPARE_OK,
        Command.COMMIT,
        Command.START_VIEW_CHANGE,
        Command.DO_VIEW_CHANGE,
        Command.START_VIEW,
        Command.REQUEST_START_VIEW,
        Command.REQUEST_PREPARES,
        Command.REPAIR_PREPARE,
        Command.REPAIR_DONE,
        Command.RANGE_EVICTED,
        Command.REQUEST_STATE_TRANSFER,
        Command.STATE_TRANSFER_TARGET,
        Command.REQUEST_STATE_CHUNK,
        Command.STATE_CHUNK,
    )
)
"""What members of a group say to each other; other commands belong to clients, links and sessions."""


class RepairPrepare(Record):
    """An entry that was asked for: ``prepare`` as it was sent (its view is that of the sender)."""

    __slots__ = ("prepare",)

    repair = True

    def __init__(self, prepare: Prepare) -> None:
        self.prepare = prepare

    @property
    def cluster(self) -> bytes:
        """Cluster of the entry."""
        return self.prepare.cluster

    @property
    def group(self) -> int:
        """Group of the entry."""
        return self.prepare.group

    @property
    def created_revision(self) -> int:
        """Life of the group."""
        return self.prepare.created_revision


def decode_frame(data: Buffer, limit: int = MAX_FRAME_SIZE) -> tuple[Any, memoryview]:
    """(header, body) of one whole frame; header is a class of `wire.headers`, a `Prepare` or a `RepairPrepare`.

    Raises `DecodeError` (`Truncated`, `SealMismatch`) or `Damaged` (a prepare that does not verify).
    """
    view = memoryview(data)
    size = frame_size(view, limit)
    if size != len(view):
        raise DecodeError("frame length", 48, size, len(view))
    command = view[60]
    if command not in REPLICA_COMMANDS:
        raise DecodeError("command", 60, "a command between members", command)
    body = view[HEADER_SIZE:]
    if command == Command.PREPARE:
        return Prepare.load_parts(view[:HEADER_SIZE], body), body
    if command == Command.REPAIR_PREPARE:
        return RepairPrepare(Prepare.load_parts(view[:HEADER_SIZE], body)), body
    header = parse_header(view)
    verify_body(header.checksum_body, body)
    return header, body


def split(header: Any, body: Buffer) -> Sequence[Any]:
    """The headers of a frame of many groups, or of any other the one that it has. Raises `DecodeError`."""
    return read(header, body) if type(header) is GatheredHeader else (header,)


def encode_frame(header: Header | bytes, body: Buffer = b"") -> bytes:
    """The bytes of a `Send`: ``header`` packed (or as it is, for a prepare), then ``body``."""
    packed = header if isinstance(header, bytes) else header.pack()
    return packed + bytes(body)


def body_fields(body: Buffer) -> dict[str, int]:
    """The header fields that describe ``body``: size and checksum_body."""
    return {"size": HEADER_SIZE + len(body), "checksum_body": xxhash.xxh3_64_intdigest(body) if len(body) else 0}
