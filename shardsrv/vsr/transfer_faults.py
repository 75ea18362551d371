"""Why a member cannot serve a state transfer, and why what was fetched is not installed.

Invariant: the four refusals stay apart up to the log line, because they ask for opposite reactions: a young cluster
without a snapshot is routine, a snapshot that cannot be read is a fault of the serving node.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from shardsrv.errors import OperatorFault, PeerFault, Transient


@attrs.define(slots=False)
class TransferUnavailable(Transient):
    """No offer can be made now; base of the reasons. `passing` says that asking again soon may help."""

    summary: ClassVar[str] = "state transfer is not available"
    passing: ClassVar[bool] = False


@attrs.define(slots=False)
class NotCaughtUpPrimary(TransferUnavailable):
    """Not the primary of a view in which everything is applied: what this member would offer is not authoritative."""

    summary: ClassVar[str] = "not a caught-up primary"
    passing: ClassVar[bool] = True


@attrs.define(slots=False)
class NoCoordinator(TransferUnavailable):
    """The group never makes checkpoints here."""

    summary: ClassVar[str] = "no snapshot coordinator for this group"


@attrs.define(slots=False)
class NoSnapshot(TransferUnavailable):
    """None was written yet: the log holds the whole history, and repair covers any gap."""

    summary: ClassVar[str] = "no snapshot was written yet"


@attrs.define(slots=False)
class SnapshotUnreadable(TransferUnavailable):
    """It is there and cannot be read, does not match its trailer, or does not decode: `cause` says which. To send it
    would give the damage a valid trailer on another node."""

    summary: ClassVar[str] = "the snapshot is unreadable"
    cause: Exception | None = None


@attrs.define(slots=False)
class TransferRefused(PeerFault):
    """What a peer offers or has sent is not installed; base of the reasons. Nothing was changed."""

    summary: ClassVar[str] = "transfer refused"


@attrs.define(slots=False)
class IncoherentManifest(TransferRefused):
    """Frontiers that contradict each other: the commit op must not be below the snapshot's, the table's not above the
    commit op."""

    summary: ClassVar[str] = "transfer manifest is incoherent"
    snapshot_op: int = 0
    commit_op: int = 0
    table_frontier: int = 0


@attrs.define(slots=False)
class UnknownArtifact(TransferRefused):
    """An artifact of a kind that this release or this plane does not know: its sender found it worth sending."""

    summary: ClassVar[str] = "transfer has an artifact of an unknown kind"
    kind: int = 0
    index: int = 0


@attrs.define(slots=False)
class MissingArtifact(TransferRefused):
    """An artifact without which nothing can be installed, or one that must be there once, is there `found` times."""

    summary: ClassVar[str] = "transfer lacks an artifact"
    kind: int = 0
    found: int = 0


@attrs.define(slots=False)
class ArtifactTooLarge(TransferRefused):
    """Beyond what this node takes from a peer: `length` bytes, at most `maximum`. `index` is None for the total."""

    summary: ClassVar[str] = "transfer is too large"
    length: int = 0
    maximum: int = 0
    index: int | None = None


@attrs.define(slots=False)
class ArtifactDamaged(TransferRefused):
    """The bytes of artifact `index` do not have the checksum of the manifest."""

    summary: ClassVar[str] = "transferred artifact does not match its checksum"
    index: int = 0
    kind: int = 0
    expected: int = 0
    found: int = 0


@attrs.define(slots=False)
class ContentMismatch(TransferRefused):
    """An artifact decodes to something else than the manifest says, or than its neighbours need: `what` names it."""

    summary: ClassVar[str] = "transferred state contradicts its manifest"
    what: str = ""
    expected: int | str = 0
    found: int | str = 0


@attrs.define(slots=False)
class PurgedMeanwhile(TransferRefused):
    """The offer is of a time before a purge that this member knows to be committed."""

    summary: ClassVar[str] = "transfer is older than a purge"
    known: int = 0
    found: int = 0


@attrs.define(slots=False)
class TransferLimitInvalid(OperatorFault):
    """Limits of transfers that contradict each other or another setting: both names and values."""

    summary: ClassVar[str] = "transfer limits contradict each other"
    key: str = ""
    value: int = 0
    other: str = ""
    other_value: int = 0
