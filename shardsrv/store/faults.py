"""Faults of this room, below the branches of `shardsrv.errors`: what was found on disk, with the numbers on both sides.

Each refusal is a class of its own, because each calls for another reaction of the operator (seed rows S0-45..S0-52).
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from shardsrv.errors import Damaged, DataDirectoryForeign, DiskFault, Unreadable


@attrs.define(slots=False)
class WriteFailed(DiskFault):
    """A write, rename, truncate or unlink (`action`) failed with `errno`; the bytes of `path` are as before or were
    cut back."""

    summary: ClassVar[str] = "write failed"
    path: str = ""
    action: str = ""
    errno: int = 0


@attrs.define(slots=False)
class LogFenced(DiskFault):
    """The log takes nothing more since `reason`: what reached the disk is not known. Reopen it to find out."""

    summary: ClassVar[str] = "log is fenced"
    path: str = ""
    reason: str = ""


@attrs.define(slots=False)
class LogDamaged(Damaged):
    """Opening a log was refused and nothing was changed. `action` is what the decision table says (`row` names its
    row).

    `op` is the entry that should stand at `offset` of `path`; `detail` is a sentence that says what is wrong with it.
    """

    summary: ClassVar[str] = "the log is damaged"
    shape: str = ""
    action: str = ""
    row: str = ""
    detail: str = ""
    synced_op: int = 0
    same_boot: bool = False
    clean: bool = False
    members: int = 1


@attrs.define(slots=False)
class LogForeign(DataDirectoryForeign):
    """A segment belongs to another cluster, group or life of a partition: `field` names what differs."""

    summary: ClassVar[str] = "log segment is not ours"
    field: str = ""


@attrs.define(slots=False)
class CheckpointAheadOfSnapshot(DiskFault):
    """The superblock names a checkpoint that the snapshot on disk does not reach: a snapshot write was lost or
    reverted."""

    summary: ClassVar[str] = "superblock is ahead of the snapshot"
    path: str = ""
    checkpoint_op: int = 0
    snapshot_op: int | None = None


@attrs.define(slots=False)
class CheckpointChecksumMismatch(DiskFault):
    """Snapshot and superblock name the same op and different contents."""

    summary: ClassVar[str] = "snapshot is not the one the superblock names"
    path: str = ""
    op: int = 0
    expected: int = 0
    found: int = 0


@attrs.define(slots=False)
class SuperblockUndecodable(DiskFault):
    """A superblock record with a clean checksum whose payload does not decode: `what`, `expected`, `found`."""

    summary: ClassVar[str] = "superblock payload does not decode"
    path: str = ""
    what: str = ""
    expected: object = None
    found: object = None


@attrs.define(slots=False)
class SuperblockUnreadable(Unreadable):
    """A superblock slot is torn, foreign or of an unknown `version`. A clean other slot does not help: this one may
    be newer."""

    summary: ClassVar[str] = "superblock is unreadable"
    version: int | None = None


@attrs.define(slots=False)
class CheckpointUnreadable(Unreadable):
    """A slot of a partition's checkpoint is torn or foreign. It is no promise: peers hold the same state."""

    summary: ClassVar[str] = "partition checkpoint is unreadable"


@attrs.define(slots=False)
class SnapshotUndecodable(DiskFault):
    """A snapshot whose trailer holds and whose payload is not a state: written by another program, or by a defect."""

    summary: ClassVar[str] = "snapshot payload does not decode"
    path: str = ""
    what: str = ""
    expected: object = None
    found: object = None


@attrs.define(slots=False)
class PartitionLost(DiskFault):
    """The directory of a partition that this node had is gone: created at `created_revision`, at or below
    `reconciled_through`."""

    summary: ClassVar[str] = "partition directory is lost"
    path: str = ""
    created_revision: int = 0
    reconciled_through: int = 0
