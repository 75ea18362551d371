"""Headers that a node sends the metadata primary on behalf of a client, and the frames of the replica handshake.

The four session frames are sealed like every control frame. The three handshake frames are not: they come before
anything is agreed, and are authenticated by keyed hashes over all that was said. Beyond the reference layout, hello
and challenge carry the range of protocol versions, the number of shards of the node, the shard that the link is for,
digests of the roster and of the state before the first entry, whether the node asks for proof, and the number that its
data directory was given when it was made; and the acceptor ends the handshake with a second challenge frame, so that a
refusal has a name on both sides.
"""

from __future__ import annotations

import enum
from typing import ClassVar, Final

import attrs

from shardsrv.errors import DecodeError
from shardsrv.wire.constants import ZERO_ID, Command
from shardsrv.wire.layout import (
    U8,
    U16,
    U32,
    U62,
    U64,
    U128,
    Header,
    Layout,
    frame_prefix,
    number,
    raw,
    require,
    reserved,
)
from shardsrv.wire.replica_headers import ControlHeader, control_layout

NONCE_SIZE: Final = 32
REPLICA_PROTOCOL_VERSION: Final = 2
"""The version of the frames between replicas that this release speaks."""


class RegisterOutcome(enum.IntEnum):
    OK = 0
    NOT_PRIMARY = 1
    NOT_CAUGHT_UP = 2
    PIPELINE_FULL = 3
    IN_PROGRESS = 4
    CANCELED = 5
    CLIENT_ID_OWNED_BY_ANOTHER_USER = 6


class LogoutOutcome(enum.IntEnum):
    OK = 0
    NOT_PRIMARY = 1
    PIPELINE_FULL = 2
    IN_PROGRESS = 3
    CANCELED = 4


class HandshakeStatus(enum.IntEnum):
    """Byte 192 of a challenge and of a finish: 0, or why there will be no link."""

    OK = 0
    UNKNOWN_COMMAND = 1
    CLUSTER_MISMATCH = 2
    DIRECTIONAL_RULE = 3
    AUTH_REQUIRED = 4
    MAC_MISMATCH = 5
    VERSION_MISMATCH = 6
    SHARDS_MISMATCH = 7
    ROSTER_MISMATCH = 8
    GENESIS_MISMATCH = 9
    MALFORMED = 10
    BIRTH_MISMATCH = 11


@attrs.frozen(kw_only=True)
class SessionHeader(ControlHeader):
    """What the four session frames share."""

    client: bytes = ZERO_ID
    nonce: int = 0

    def validate(self) -> None:
        ControlHeader.validate(self)
        require(self.client != ZERO_ID, "client", 128, "not zero", self.client)
        require(self.nonce != 0, "nonce", 128, "not zero", self.nonce)


@attrs.frozen(kw_only=True)
class ForwardRegisterHeader(SessionHeader):
    layout: ClassVar[Layout] = control_layout(
        Command.FORWARD_REGISTER,
        raw(128, 16, "client"),
        number(144, U128, "nonce"),
        number(160, U32, "user_id"),
        reserved(164, 256),
    )

    user_id: int = 0


@attrs.frozen(kw_only=True)
class ForwardRegisterResultHeader(SessionHeader):
    """`epoch` (the session) and `watermark` (highest request number) are 0 unless the outcome is OK."""

    layout: ClassVar[Layout] = control_layout(
        Command.FORWARD_REGISTER_RESULT,
        number(128, U128, "nonce"),
        raw(144, 16, "client"),
        number(160, U62, "epoch"),
        number(168, U62, "watermark"),
        reserved(176, 255),
        number(255, U8, "outcome"),
    )

    epoch: int = 0
    watermark: int = 0
    outcome: int = 0

    def validate(self) -> None:
        SessionHeader.validate(self)
        require(self.outcome <= RegisterOutcome.CLIENT_ID_OWNED_BY_ANOTHER_USER, "outcome", 255, "0..6", self.outcome)
        if self.outcome != RegisterOutcome.OK:
            require(self.epoch == self.watermark == 0, "epoch", 160, 0, self.epoch)


@attrs.frozen(kw_only=True)
class ForwardLogoutHeader(SessionHeader):
    layout: ClassVar[Layout] = control_layout(
        Command.FORWARD_LOGOUT,
        raw(128, 16, "client"),
        number(144, U128, "nonce"),
        number(160, U62, "session"),
        number(168, U62, "request"),
        reserved(176, 256),
    )

    session: int = 0
    request: int = 0

    def validate(self) -> None:
        SessionHeader.validate(self)
        require(self.session > 0, "session", 160, "1 or more", self.session)
        require(self.request > 0, "request", 168, "1 or more", self.request)


@attrs.frozen(kw_only=True)
class ForwardLogoutResultHeader(SessionHeader):
    layout: ClassVar[Layout] = control_layout(
        Command.FORWARD_LOGOUT_RESULT,
        number(128, U128, "nonce"),
        raw(144, 16, "client"),
        number(160, U62, "commit"),
        reserved(168, 255),
        number(255, U8, "outcome"),
    )

    commit: int = 0
    outcome: int = 0

    def validate(self) -> None:
        SessionHeader.validate(self)
        require(self.outcome <= LogoutOutcome.CANCELED, "outcome", 255, "0..4", self.outcome)
        if self.outcome != LogoutOutcome.OK:
            require(self.commit == 0, "commit", 160, 0, self.commit)


@attrs.frozen(kw_only=True)
class ReplicaHelloHeader(Header):
    """First frame of the dialer. `nonce` is zero when authentication is off."""

    layout: ClassVar[Layout] = Layout(
        Command.REPLICA_HELLO,
        (
            *frame_prefix(),
            raw(128, NONCE_SIZE, "nonce"),
            reserved(160, 200),
            number(200, U16, "version_min"),
            number(202, U16, "version_max"),
            number(204, U16, "shards"),
            number(206, U16, "shard"),
            number(208, U64, "roster"),
            number(216, U64, "genesis"),
            number(224, U8, "authenticated"),
            reserved(225, 232),
            number(232, U64, "birth"),
            reserved(240, 256),
        ),
        fixed_size=True,
    )

    nonce: bytes = bytes(NONCE_SIZE)
    version_min: int = REPLICA_PROTOCOL_VERSION
    version_max: int = REPLICA_PROTOCOL_VERSION
    shards: int = 0
    shard: int = 0
    roster: int = 0
    genesis: int = 0
    authenticated: int = 0
    birth: int = 0

    def validate(self) -> None:
        Header.validate(self)
        _check_versions(self.version_min, self.version_max)


@attrs.frozen(kw_only=True)
class ReplicaChallengeHeader(Header):
    """The acceptor's answer: its nonce and authentication code, or a `status` that refuses."""

    layout: ClassVar[Layout] = Layout(
        Command.REPLICA_CHALLENGE,
        (
            *frame_prefix(),
            raw(128, NONCE_SIZE, "nonce"),
            raw(160, 32, "mac"),
            number(192, U8, "status"),
            reserved(193, 200),
            number(200, U16, "version_min"),
            number(202, U16, "version_max"),
            number(204, U16, "shards"),
            number(206, U16, "shard"),
            number(208, U64, "roster"),
            number(216, U64, "genesis"),
            number(224, U8, "authenticated"),
            reserved(225, 232),
            number(232, U64, "birth"),
            reserved(240, 256),
        ),
        fixed_size=True,
    )

    nonce: bytes = bytes(NONCE_SIZE)
    mac: bytes = bytes(32)
    status: int = 0
    version_min: int = REPLICA_PROTOCOL_VERSION
    version_max: int = REPLICA_PROTOCOL_VERSION
    shards: int = 0
    shard: int = 0
    roster: int = 0
    genesis: int = 0
    authenticated: int = 0
    birth: int = 0

    def validate(self) -> None:
        Header.validate(self)
        _check_versions(self.version_min, self.version_max)


@attrs.frozen(kw_only=True)
class ReplicaFinishHeader(Header):
    """The dialer's authentication code, or the `status` with which it refuses."""

    layout: ClassVar[Layout] = Layout(
        Command.REPLICA_FINISH,
        (*frame_prefix(), reserved(128, 160), raw(160, 32, "mac"), number(192, U8, "status"), reserved(193, 256)),
        fixed_size=True,
    )

    mac: bytes = bytes(32)
    status: int = 0


def _check_versions(lowest: int, highest: int) -> None:
    if not 1 <= lowest <= highest:
        raise DecodeError("version_min", 200, f"1..{highest}", lowest)
