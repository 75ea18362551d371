"""What is installed of a transfer, and when: pure decisions of the receiving side.

An install that restores is ordered: snapshot durable, pair durable, log behind it, memory. A pair that cannot be
written is a degraded success: the snapshot is complete, a lagging pair is accepted at start, and the next record of the
superblock carries it.

| snapshot above own applied op | own log holds its entry | table at or above what is applied then | files | table |
|---|---|---|---|---|
| yes | no | yes | the snapshot's | the offered one |
| yes | no | no | the snapshot's | the snapshot's own |
| yes | yes | yes | stay, the log is walked | the offered one |
| yes | yes | no | stay, the log is walked | stays |
| no | | yes | stay | the offered one |
| no | | no | stay | stays |

A log that holds the snapshot's entry holds everything before it, and maybe entries above that this member has
acknowledged: dropping them could lose what was committed with its help.

Invariants: what is installed is never older than what it replaces; everything that can refuse is looked at before the
first write; a checkpoint and an install never write at the same time, and whether the snapshot is ahead is decided in
the step that starts the writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import attrs

from shardsrv.vsr.client_table import ClientTable
from shardsrv.vsr.policy import METADATA
from shardsrv.vsr.transfer_faults import (
    ArtifactTooLarge,
    ContentMismatch,
    IncoherentManifest,
    MissingArtifact,
    PurgedMeanwhile,
    UnknownArtifact,
)
from shardsrv.vsr.transfer_limits import TransferLimits
from shardsrv.wire.manifest import Artifact, ArtifactKind

_SNAPSHOT: Final = int(ArtifactKind.METADATA_SNAPSHOT)
_TABLE: Final = int(ArtifactKind.CLIENT_TABLE)
_SEGMENT: Final = int(ArtifactKind.SEGMENT)
_CHECKPOINT: Final = int(ArtifactKind.PARTITION_CHECKPOINT)


@attrs.frozen(eq=False)
class Checked:
    """What was fetched, verified and decoded, and can be restored.

    ``op``, ``checksum``, ``timestamp``: the entry at which the state was taken. ``state``: what `Plane.restore` takes,
    and ``base_table`` the client table of the same op, from the snapshot itself. ``table`` and ``table_frontier``: the
    transferred client table and the op at which it was read. Both tables are None for a partition. ``source``: the
    driver's own.
    """

    op: int
    checksum: int
    timestamp: int
    state: Any
    base_table: ClientTable | None = None
    table: ClientTable | None = None
    table_frontier: int = 0
    purge_generation: int = 0
    source: Any = None


@attrs.frozen
class Target:
    """A descriptor that was looked at: what is to be fetched. ``generation`` is the op of the snapshot."""

    artifacts: tuple[Artifact, ...]
    generation: int
    commit_op: int
    table_frontier: int


@attrs.frozen
class InstallPlan:
    """One row of the module's table, for the numbers of this moment. ``applied_frontier``: what will be applied
    then."""

    restores: bool
    takes_table: bool
    applied_frontier: int


@attrs.frozen
class InstallOutcome:
    """A completed install; without a durable pair it is degraded, and complete all the same."""

    applied_frontier: int
    pairing_durable: bool


def plan_install(applied_op: int, holds: bool, content: Checked) -> InstallPlan:
    """The plan for a member that has applied ``applied_op`` and whose log ``holds`` the entry of the content, or
    not."""
    restores = content.op > applied_op and not holds
    frontier = content.op if restores else applied_op
    return InstallPlan(restores, content.table is not None and content.table_frontier >= frontier, frontier)


def examine(
    plane: int, artifacts: Sequence[Artifact], commit_op: int, commit_max: int, limits: TransferLimits
) -> Target:
    """Look at a descriptor before anything is fetched.

    Raises:
        UnknownArtifact, MissingArtifact: kinds that this plane does not install, or not this often.
        ArtifactTooLarge: more than this node takes.
        IncoherentManifest: frontiers that contradict each other.
    """
    total = 0
    for index, artifact in enumerate(artifacts):
        if artifact.kind not in ((_SNAPSHOT, _TABLE) if plane == METADATA else (_CHECKPOINT, _SEGMENT)):
            raise UnknownArtifact(artifact.kind, index)
        if artifact.length > limits.artifact_max:
            raise ArtifactTooLarge(artifact.length, limits.artifact_max, index)
        total += artifact.length
    if total > limits.manifest_max:
        raise ArtifactTooLarge(total, limits.manifest_max)
    state = _only(artifacts, _SNAPSHOT if plane == METADATA else _CHECKPOINT)
    table = _only(artifacts, _TABLE).frontier if plane == METADATA else 0
    if state.frontier > commit_op or table > commit_op or commit_op > commit_max:
        raise IncoherentManifest(state.frontier, commit_op, table)
    firsts = [artifact.frontier for artifact in artifacts if artifact.kind == _SEGMENT]
    if any(later <= earlier for earlier, later in pairwise(firsts)):
        raise ContentMismatch("order of segments", "rising", repr(firsts)[:64])
    return Target(tuple(artifacts), state.frontier, commit_op, table)


def _only(artifacts: Sequence[Artifact], kind: int) -> Artifact:
    found = [artifact for artifact in artifacts if artifact.kind == kind]
    if len(found) != 1:
        raise MissingArtifact(kind, len(found))
    return found[0]


def check_content(target: Target, content: Checked, purge_generation: int) -> None:
    """Whether what was decoded is what the descriptor said.

    Raises:
        ContentMismatch: the snapshot is of another op than its manifest entry says, or of op 0.
        IncoherentManifest: see `examine`, with the decoded numbers.
        PurgedMeanwhile: this member knows of a later purge.
    """
    if content.op != target.generation or content.op == 0:
        raise ContentMismatch("snapshot op", target.generation, content.op)
    if content.op > target.commit_op or content.table_frontier > target.commit_op:
        raise IncoherentManifest(content.op, target.commit_op, content.table_frontier)
    if content.purge_generation < purge_generation:
        raise PurgedMeanwhile(purge_generation, content.purge_generation)


NOBODY: Final = 0
CHECKPOINT: Final = 1
INSTALL: Final = 2


class SnapshotWriter:
    """Who writes the snapshot file and its pairing now. One at a time, over both: a file of one and a pairing of the
    other would refuse the next start."""

    __slots__ = ("_holder",)

    def __init__(self) -> None:
        self._holder = NOBODY

    @property
    def holder(self) -> int:
        """NOBODY, CHECKPOINT or INSTALL."""
        return self._holder

    def take(self, who: int) -> bool:
        """Begin to write as ``who``; False while somebody does."""
        if self._holder != NOBODY:
            return False
        self._holder = who
        return True

    def leave(self, who: int) -> None:
        """``who`` is done with file and pairing."""
        if self._holder == who:
            self._holder = NOBODY
