"""Every header of the protocol by command byte, checked at import, and the one function that reads a frame's header.

Invariants: each class's attributes are exactly the named fields of its layout; each layout tiles its 256 bytes; only
the commands that exist on a wire have a class (Ping is that of what many groups say at once, see `gathered`).
"""

from __future__ import annotations

from typing import Final

from shardsrv.errors import DecodeError, Truncated
from shardsrv.wire.client_headers import EvictionHeader, ReplyHeader, RequestHeader, RoutedRequestHeader
from shardsrv.wire.constants import HEADER_SIZE, MAX_FRAME_SIZE, Command
from shardsrv.wire.cursor import Buffer
from shardsrv.wire.gathered import GatheredHeader
from shardsrv.wire.layout import Header, check_layout
from shardsrv.wire.prepare_header import PrepareHeader, RepairPrepareHeader
from shardsrv.wire.replica_headers import (
    CommitHeader,
    DoViewChangeHeader,
    PrepareOkHeader,
    RangeEvictedHeader,
    RepairDoneHeader,
    RequestPreparesHeader,
    RequestStartViewHeader,
    RequestStateChunkHeader,
    RequestStateTransferHeader,
    StartViewChangeHeader,
    StartViewHeader,
    StateChunkHeader,
    StateTransferTargetHeader,
)
from shardsrv.wire.session_headers import (
    ForwardLogoutHeader,
    ForwardLogoutResultHeader,
    ForwardRegisterHeader,
    ForwardRegisterResultHeader,
    ReplicaChallengeHeader,
    ReplicaFinishHeader,
    ReplicaHelloHeader,
)

HEADERS: Final[dict[int, type[Header]]] = {
    int(kind.layout.command): kind
    for kind in (
        GatheredHeader,
        RequestHeader,
        PrepareHeader,
        PrepareOkHeader,
        ReplyHeader,
        CommitHeader,
        StartViewChangeHeader,
        DoViewChangeHeader,
        StartViewHeader,
        EvictionHeader,
        ReplicaHelloHeader,
        ReplicaChallengeHeader,
        ReplicaFinishHeader,
        RequestStartViewHeader,
        RequestPreparesHeader,
        RepairPrepareHeader,
        RepairDoneHeader,
        RangeEvictedHeader,
        RequestStateTransferHeader,
        StateTransferTargetHeader,
        RequestStateChunkHeader,
        StateChunkHeader,
        ForwardRegisterHeader,
        ForwardRegisterResultHeader,
        ForwardLogoutHeader,
        ForwardLogoutResultHeader,
    )
}

for _kind in (*HEADERS.values(), RoutedRequestHeader):
    check_layout(_kind)


def frame_size(header: Buffer, limit: int = MAX_FRAME_SIZE) -> int:
    """The whole size of the frame that begins with `header`, in bytes.

    Raises Truncated below 256 bytes, DecodeError for a size outside 256..limit or a command byte outside 0..29: such a
    frame does not parse and the connection is closed.
    """
    view = memoryview(header)
    if len(view) < HEADER_SIZE:
        raise Truncated("header", 0, HEADER_SIZE, len(view))
    size = int.from_bytes(view[48:52], "little")
    if not HEADER_SIZE <= size <= limit:
        raise DecodeError("size", 48, f"{HEADER_SIZE}..{limit}", size)
    if view[60] > Command.FORWARD_LOGOUT_RESULT:
        raise DecodeError("command", 60, "0..29", view[60])
    return size


def parse_header(buffer: Buffer) -> Header:
    """The header of any frame, its field rules checked; raises DecodeError (SealMismatch where it is sealed)."""
    view = memoryview(buffer)
    if len(view) < HEADER_SIZE:
        raise Truncated("header", 0, HEADER_SIZE, len(view))
    kind = HEADERS.get(view[60])
    if kind is None:
        raise DecodeError("command", 60, "a command with a header", view[60])
    header = kind.unpack(view)
    header.validate()
    return header
