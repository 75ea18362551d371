"""Headers between clients and a node: Request, Reply, Eviction, and the request as it travels between shards.

None of them is sealed. Invariants: a client's reserved bytes are ignored (later generations use them), an eviction's
are not; the operation byte of a request is an int here: an unknown one is answered, it is no framing error.
"""

from __future__ import annotations

from typing import ClassVar, Final

import attrs

from shardsrv.errors import DecodeError
from shardsrv.wire.constants import (
    KNOWN_OPERATIONS,
    MAX_OP,
    METADATA_GROUP,
    ZERO_ID,
    Command,
    EvictionReason,
    Operation,
)
from shardsrv.wire.layout import U8, U32, U64, U128, Header, Layout, frame_prefix, number, raw, require, reserved

_REQUEST_FIELDS: Final = (
    *frame_prefix(),
    raw(128, 16, "client"),
    number(144, U128, "request_checksum"),
    number(160, U64, "timestamp"),
    number(168, U64, "request"),
    number(176, U8, "operation"),
    reserved(177, 184),
    number(184, U64, "session"),
    number(192, U32, "user_id"),
)


@attrs.frozen(kw_only=True)
class RequestHeader(Header):
    """A client's request. `code` (bytes 196..200) counts only with operation 2; `user_id` is never trusted."""

    layout: ClassVar[Layout] = Layout(
        Command.REQUEST, (*_REQUEST_FIELDS, number(196, U32, "code"), reserved(200, 256)), strict=False
    )

    client: bytes = ZERO_ID
    request_checksum: int = 0
    timestamp: int = 0
    request: int = 0
    operation: int = 0
    session: int = 0
    user_id: int = 0
    code: int = 0

    def validate(self) -> None:
        """Rules on arrival: client set, operation known and not 0, session and request as the operation wants them."""
        Header.validate(self)
        require(self.client != ZERO_ID, "client", 128, "not zero", self.client)
        require(self.operation != 0 and self.operation in KNOWN_OPERATIONS, "operation", 176, "known", self.operation)
        if self.operation == Operation.REGISTER:
            require(self.session == 0, "session", 184, 0, self.session)
            require(self.request == 0, "request", 168, 0, self.request)
        elif self.operation != Operation.NON_REPLICATED:
            require(0 < self.session <= MAX_OP, "session", 184, "1..2**62-1", self.session)
            require(0 < self.request <= MAX_OP, "request", 168, "1..2**62-1", self.request)


@attrs.frozen(kw_only=True)
class RoutedRequestHeader(Header):
    """A request between shards of one node: the group it is for at 248, the revision it was resolved against at 240."""

    layout: ClassVar[Layout] = Layout(
        Command.REQUEST,
        (
            *_REQUEST_FIELDS,
            number(196, U32, "code"),
            reserved(200, 240),
            number(240, U64, "created_revision"),
            number(248, U64, "group"),
        ),
    )

    client: bytes = ZERO_ID
    request_checksum: int = 0
    timestamp: int = 0
    request: int = 0
    operation: int = 0
    session: int = 0
    user_id: int = 0
    code: int = 0
    created_revision: int = 0
    group: int = METADATA_GROUP


@attrs.frozen(kw_only=True)
class ReplyHeader(Header):
    """A node's answer. `status` is 0 or an error code (then the body is empty); `request` echoes the number."""

    layout: ClassVar[Layout] = Layout(
        Command.REPLY,
        (
            *frame_prefix(),
            number(128, U128, "request_checksum"),
            number(144, U128, "context"),
            raw(160, 16, "client"),
            number(176, U64, "op"),
            number(184, U64, "commit"),
            number(192, U64, "timestamp"),
            number(200, U64, "request"),
            number(208, U8, "operation"),
            reserved(209, 216),
            number(216, U32, "status"),
            reserved(220, 256),
        ),
        strict=False,
    )

    request_checksum: int = 0
    context: int = 0
    client: bytes = ZERO_ID
    op: int = 0
    commit: int = 0
    timestamp: int = 0
    request: int = 0
    operation: int = 0
    status: int = 0

    def validate(self) -> None:
        """What a client checks: a known operation, no body behind an error status."""
        Header.validate(self)
        require(self.operation != 0 and self.operation in KNOWN_OPERATIONS, "operation", 208, "known", self.operation)
        require(self.status == 0 or self.body_size == 0, "size", 48, "no body beside a status", self.size)


@attrs.frozen(kw_only=True)
class EvictionHeader(Header):
    """Ends a session. The version window (packed versions) is there with reason 14 only."""

    layout: ClassVar[Layout] = Layout(
        Command.EVICTION,
        (
            *frame_prefix(),
            raw(128, 16, "client"),
            number(144, U32, "protocol_version"),
            number(148, U32, "protocol_version_min"),
            reserved(152, 255),
            number(255, U8, "reason"),
        ),
        fixed_size=True,
    )

    client: bytes = ZERO_ID
    protocol_version: int = 0
    protocol_version_min: int = 0
    reason: int = 0

    def validate(self) -> None:
        """Client set, reason known, window 1 <= min <= max exactly with reason 14."""
        Header.validate(self)
        require(self.client != ZERO_ID, "client", 128, "not zero", self.client)
        if self.reason not in EvictionReason.__members__.values():
            raise DecodeError("reason", 255, "1..15", self.reason)
        if self.reason == EvictionReason.INCOMPATIBLE_PROTOCOL:
            window = 1 <= self.protocol_version_min <= self.protocol_version
        else:
            window = self.protocol_version_min == self.protocol_version == 0
        require(window, "protocol window", 144, "a window with reason 14 only", self.protocol_version)
