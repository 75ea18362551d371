"""Headers between replicas: acknowledgements, heartbeats, view change, repair, state transfer, forwarding.

Every control frame is sealed (see `shardsrv.wire.layout`) and carries the partition's created_revision at bytes 64..72
of the prefix, so that a frame of a deleted partition never reaches the one that reuses its id.
Beyond the reference layout: created_revision everywhere; PrepareOk says appended, synced or refused; a DoViewChange
carries incarnations behind its headers; a Commit may have a body (groups led but not served); RequestStartView names
the prober's durable incarnation; RequestPrepares can ask for committed entries only.
"""

from __future__ import annotations

from typing import ClassVar, Final

import attrs

from shardsrv.wire.constants import HEADER_SIZE, MAX_VIEW, AckedAs, Command
from shardsrv.wire.groups import is_group
from shardsrv.wire.layout import (
    U8,
    U32,
    U62,
    U64,
    U128,
    Field,
    Header,
    Layout,
    frame_prefix,
    number,
    require,
    reserved,
)

MAX_SUFFIX: Final = 128
"""Most prepare headers in the body of a DoViewChange or StartView."""

MAX_REPLICAS: Final = 32


def control_layout(command: Command, *fields: Field, fixed_size: bool = True) -> Layout:
    """A sealed layout: the common prefix with created_revision, then `fields` over bytes 128..256."""
    prefix = frame_prefix(reserved(62, 64), number(64, U62, "created_revision"), reserved(72, 128))
    return Layout(command, (*prefix, *fields), sealed=True, fixed_size=fixed_size)


@attrs.frozen(kw_only=True)
class ControlHeader(Header):
    """A sealed frame about one group. `created_revision` is 0 on the metadata plane."""

    created_revision: int = 0

    def validate(self) -> None:
        Header.validate(self)
        require(self.replica < MAX_REPLICAS, "replica", 61, f"below {MAX_REPLICAS}", self.replica)
        require(self.view <= MAX_VIEW, "view", 52, f"at most {MAX_VIEW}", self.view)
        group = getattr(self, "group", None)
        if group is not None:
            require(is_group(group), "group", 128, "a group id", group)


@attrs.frozen(kw_only=True)
class PrepareOkHeader(ControlHeader):
    """Acknowledges an entry. `view` is the acknowledging replica's; `acked_as` 0 appended, 1 synced, 2 refused: its
    time is too far from the clock of the sender."""

    layout: ClassVar[Layout] = control_layout(
        Command.PREPARE_OK,
        number(128, U128, "parent"),
        number(144, U128, "prepare_checksum"),
        number(160, U62, "op"),
        number(168, U62, "commit"),
        number(176, U62, "timestamp"),
        number(184, U62, "request"),
        number(192, U8, "operation"),
        reserved(193, 200),
        number(200, U64, "group"),
        number(208, U8, "acked_as"),
        reserved(209, 256),
    )

    parent: int = 0
    prepare_checksum: int = 0
    op: int = 0
    commit: int = 0
    timestamp: int = 0
    request: int = 0
    operation: int = 0
    group: int = 0
    acked_as: int = 0

    def validate(self) -> None:
        ControlHeader.validate(self)
        require(self.acked_as <= AckedAs.CLOCK_REFUSED, "acked_as", 208, "0, 1 or 2", self.acked_as)


@attrs.frozen(kw_only=True)
class CommitHeader(ControlHeader):
    """The primary's heartbeat. `timestamp_monotonic` counts heartbeats; `commit` is the primary's commit_min.

    A body, when there is one, lists groups that the sender leads but cannot serve (see `shardsrv.wire.replica_bodies`).
    """

    layout: ClassVar[Layout] = control_layout(
        Command.COMMIT,
        number(128, U128, "commit_checksum"),
        number(144, U62, "timestamp_monotonic"),
        number(152, U62, "commit"),
        number(160, U62, "checkpoint_op"),
        number(168, U64, "group"),
        reserved(176, 256),
        fixed_size=False,
    )

    commit_checksum: int = 0
    timestamp_monotonic: int = 0
    commit: int = 0
    checkpoint_op: int = 0
    group: int = 0


@attrs.frozen(kw_only=True)
class StartViewChangeHeader(ControlHeader):
    layout: ClassVar[Layout] = control_layout(Command.START_VIEW_CHANGE, number(128, U64, "group"), reserved(136, 256))

    group: int = 0

    def validate(self) -> None:
        ControlHeader.validate(self)
        require(self.release == 0, "release", 56, 0, self.release)


@attrs.frozen(kw_only=True)
class DoViewChangeHeader(ControlHeader):
    """A vote with its log suffix. Bit i of a bitset is slot i, which describes op - i.

    The body is N headers of 256 bytes, then `incarnations` ids of 16 bytes (one per replica, in replica order).
    """

    layout: ClassVar[Layout] = control_layout(
        Command.DO_VIEW_CHANGE,
        number(128, U62, "op"),
        number(136, U62, "commit"),
        number(144, U64, "group"),
        number(152, U32, "log_view"),
        number(156, U8, "incarnations"),
        number(157, U8, "suspect"),
        reserved(158, 160),
        number(160, U128, "incarnation"),
        reserved(176, 224),
        number(224, U128, "nack_bitset"),
        number(240, U128, "present_bitset"),
        fixed_size=False,
    )

    op: int = 0
    commit: int = 0
    group: int = 0
    log_view: int = 0
    incarnations: int = 0
    suspect: int = 0
    incarnation: int = 0
    nack_bitset: int = 0
    present_bitset: int = 0

    @property
    def slots(self) -> int:
        """Number of prepare headers in the body."""
        return max(self.body_size - 16 * self.incarnations, 0) // HEADER_SIZE

    def validate(self) -> None:
        ControlHeader.validate(self)
        require(self.release == 0, "release", 56, 0, self.release)
        require(self.commit <= self.op, "commit", 136, f"at most {self.op}", self.commit)
        require(self.log_view <= self.view, "log_view", 152, f"at most {self.view}", self.log_view)
        require(self.incarnations <= MAX_REPLICAS, "incarnations", 156, MAX_REPLICAS, self.incarnations)
        require(self.suspect <= 1, "suspect", 157, "0 or 1", self.suspect)
        headers = self.body_size - 16 * self.incarnations
        require(headers >= 0 and headers % HEADER_SIZE == 0, "size", 48, "whole headers", self.size)
        require(self.slots <= MAX_SUFFIX, "size", 48, f"{MAX_SUFFIX} headers", self.size)
        bits = self.nack_bitset | self.present_bitset
        require(bits >> self.slots == 0, "bitset", 224, f"{self.slots} bits", bits)


@attrs.frozen(kw_only=True)
class StartViewHeader(ControlHeader):
    """The new primary's log: 0..128 prepare headers. `incarnation` echoes a prober's nonce, 0 when unsolicited."""

    layout: ClassVar[Layout] = control_layout(
        Command.START_VIEW,
        number(128, U62, "op"),
        number(136, U62, "commit"),
        number(144, U64, "group"),
        reserved(152, 240),
        number(240, U128, "incarnation"),
        fixed_size=False,
    )

    op: int = 0
    commit: int = 0
    group: int = 0
    incarnation: int = 0

    def validate(self) -> None:
        ControlHeader.validate(self)
        require(self.release == 0, "release", 56, 0, self.release)
        require(self.commit <= self.op, "commit", 136, f"at most {self.op}", self.commit)
        whole = self.body_size % HEADER_SIZE == 0 and self.body_size <= MAX_SUFFIX * HEADER_SIZE
        require(whole, "size", 48, f"0..{MAX_SUFFIX} headers", self.size)


@attrs.frozen(kw_only=True)
class RequestStartViewHeader(ControlHeader):
    """A prober asks for the current view; `incarnation` is the nonce of its boot, `member` the incarnation that its
    superblock holds."""

    layout: ClassVar[Layout] = control_layout(
        Command.REQUEST_START_VIEW,
        number(128, U64, "group"),
        reserved(136, 224),
        number(224, U128, "member"),
        number(240, U128, "incarnation"),
    )

    group: int = 0
    member: int = 0
    incarnation: int = 0

    def validate(self) -> None:
        ControlHeader.validate(self)
        require(self.release == 0, "release", 56, 0, self.release)


@attrs.frozen(kw_only=True)
class RequestPreparesHeader(ControlHeader):
    """Asks for the entries from_op..to_op; `committed_only` for nothing above what the server has applied."""

    layout: ClassVar[Layout] = control_layout(
        Command.REQUEST_PREPARES,
        number(128, U128, "nonce"),
        number(144, U62, "from_op"),
        number(152, U62, "to_op"),
        number(160, U64, "group"),
        number(168, U8, "committed_only"),
        reserved(169, 256),
    )

    nonce: int = 0
    from_op: int = 0
    to_op: int = 0
    group: int = 0
    committed_only: int = 0

    def validate(self) -> None:
        ControlHeader.validate(self)
        require(1 <= self.from_op <= self.to_op, "from_op", 144, f"1..{self.to_op}", self.from_op)
        require(self.committed_only <= 1, "committed_only", 168, "0 or 1", self.committed_only)


_REPAIR_END: Final = (number(128, U128, "nonce"), number(144, U62, "op"), number(152, U64, "group"), reserved(160, 256))


@attrs.frozen(kw_only=True)
class RepairDoneHeader(ControlHeader):
    """Ends an answer to RequestPrepares; `op` is the last one served."""

    layout: ClassVar[Layout] = control_layout(Command.REPAIR_DONE, *_REPAIR_END)

    nonce: int = 0
    op: int = 0
    group: int = 0


@attrs.frozen(kw_only=True)
class RangeEvictedHeader(ControlHeader):
    """The front of the range is gone; `op` is the oldest that the sender still holds."""

    layout: ClassVar[Layout] = control_layout(Command.RANGE_EVICTED, *_REPAIR_END)

    nonce: int = 0
    op: int = 0
    group: int = 0


@attrs.frozen(kw_only=True)
class RequestStateTransferHeader(ControlHeader):
    layout: ClassVar[Layout] = control_layout(
        Command.REQUEST_STATE_TRANSFER, number(128, U128, "nonce"), number(144, U64, "group"), reserved(152, 256)
    )

    nonce: int = 0
    group: int = 0


@attrs.frozen(kw_only=True)
class StateTransferTargetHeader(ControlHeader):
    """What can be transferred: a manifest body when `available`, none otherwise."""

    layout: ClassVar[Layout] = control_layout(
        Command.STATE_TRANSFER_TARGET,
        number(128, U128, "nonce"),
        number(144, U62, "commit_op"),
        number(152, U64, "group"),
        number(160, U8, "available"),
        number(161, U8, "unavailable_transient"),
        reserved(162, 168),
        number(168, U62, "commit_max"),
        reserved(176, 256),
        fixed_size=False,
    )

    nonce: int = 0
    commit_op: int = 0
    group: int = 0
    available: int = 0
    unavailable_transient: int = 0
    commit_max: int = 0

    def validate(self) -> None:
        ControlHeader.validate(self)
        require(self.available <= 1, "available", 160, "0 or 1", self.available)
        transient = self.unavailable_transient
        require(transient + self.available <= 1, "unavailable_transient", 161, "0 when available", transient)
        has_manifest = self.body_size > 0
        require(bool(self.available) == has_manifest, "size", 48, "a manifest exactly when available", self.size)


@attrs.frozen(kw_only=True)
class RequestStateChunkHeader(ControlHeader):
    """Asks for `length` bytes of an artifact (its index in the manifest) from `offset` on."""

    layout: ClassVar[Layout] = control_layout(
        Command.REQUEST_STATE_CHUNK,
        number(128, U128, "nonce"),
        number(144, U62, "offset"),
        number(152, U64, "group"),
        number(160, U32, "length"),
        number(164, U32, "artifact"),
        reserved(168, 256),
    )

    nonce: int = 0
    offset: int = 0
    group: int = 0
    length: int = 0
    artifact: int = 0

    def validate(self) -> None:
        ControlHeader.validate(self)
        require(self.length > 0, "length", 160, "1 or more", self.length)


@attrs.frozen(kw_only=True)
class StateChunkHeader(ControlHeader):
    """Bytes of an artifact from `offset` on, in the body."""

    layout: ClassVar[Layout] = control_layout(
        Command.STATE_CHUNK,
        number(128, U128, "nonce"),
        number(144, U62, "offset"),
        number(152, U64, "group"),
        number(160, U32, "artifact"),
        reserved(164, 256),
        fixed_size=False,
    )

    nonce: int = 0
    offset: int = 0
    group: int = 0
    artifact: int = 0
