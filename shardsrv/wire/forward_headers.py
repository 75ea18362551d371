"""Requests that one node passes on to the primary of their group, and the answers, over the links between nodes.

They are this server's own (commands 5 and 8 mean nothing else on a link). Sealed like every control frame; the body is
hashed into the header. `token` is the sender's, and comes back in the answer.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from shardsrv.wire.constants import ZERO_ID, Command
from shardsrv.wire.layout import U8, U32, U62, U64, Layout, number, raw, require, reserved
from shardsrv.wire.replica_headers import ControlHeader, control_layout


@attrs.frozen(kw_only=True)
class ForwardRequestHeader(ControlHeader):
    """A write that reached a node which does not lead `group`. `resolved` 1: the body is that of the entry (metadata).
    `expects` 0: nobody waits for an answer."""

    layout: ClassVar[Layout] = control_layout(
        Command.REQUEST,
        raw(128, 16, "client"),
        number(144, U64, "token"),
        number(152, U62, "session"),
        number(160, U62, "request"),
        number(168, U64, "digest"),
        number(176, U64, "group"),
        number(184, U32, "user_id"),
        number(188, U8, "operation"),
        number(189, U8, "durability"),
        number(190, U8, "resolved"),
        number(191, U8, "expects"),
        reserved(192, 256),
        fixed_size=False,
    )

    client: bytes = ZERO_ID
    token: int = 0
    session: int = 0
    request: int = 0
    digest: int = 0
    group: int = 0
    user_id: int = 0
    operation: int = 0
    durability: int = 0
    resolved: int = 0
    expects: int = 1

    def validate(self) -> None:
        ControlHeader.validate(self)
        require(self.durability <= 1, "durability", 189, "0 or 1", self.durability)
        require(self.resolved <= 1, "resolved", 190, "0 or 1", self.resolved)
        require(self.expects <= 1, "expects", 191, "0 or 1", self.expects)


@attrs.frozen(kw_only=True)
class ForwardReplyHeader(ControlHeader):
    """How a forwarded request ended: `outcome` and `status` as between the shards of a node, and the reply's body."""

    layout: ClassVar[Layout] = control_layout(
        Command.REPLY,
        number(128, U64, "token"),
        number(136, U62, "op"),
        number(144, U62, "timestamp"),
        number(152, U32, "status"),
        number(156, U8, "operation"),
        number(157, U8, "outcome"),
        reserved(158, 256),
        fixed_size=False,
    )

    token: int = 0
    op: int = 0
    timestamp: int = 0
    status: int = 0
    operation: int = 0
    outcome: int = 0

    def validate(self) -> None:
        ControlHeader.validate(self)
        require(self.outcome <= 4, "outcome", 157, "0..4", self.outcome)
