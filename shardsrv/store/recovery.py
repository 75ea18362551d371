"""What to do about what was found on disk: decision tables as data. Pure; printed in the documentation, walked whole by
a test.

A row is a label, the values it answers to for each fact (None: any), and the decision. Invariant of every table: for
each combination of facts exactly one row answers.

Log damage follows the design: at or below the synced frontier it is rot, whoever sees it; above it, on the same kernel
boot, only a short last entry is torn (the page cache kept everything that was written); after a power loss the first
bad entry ends the log, because what was not synced may be lost in any order. A broken chain between whole entries is no
kind of lost write: never cut.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import attrs

from shardsrv.store.faults import (
    CheckpointAheadOfSnapshot,
    CheckpointChecksumMismatch,
    PartitionLost,
    SuperblockUndecodable,
    SuperblockUnreadable,
)

Decision = TypeVar("Decision")


@attrs.frozen
class Row(Generic[Decision]):
    """One row: `when` holds the accepted values of each fact in the table's order; None accepts any."""

    label: str
    when: tuple[tuple[Any, ...] | None, ...]
    decision: Decision

    def answers(self, facts: tuple[Any, ...]) -> bool:
        return all(accepted is None or fact in accepted for accepted, fact in zip(self.when, facts, strict=True))


@attrs.frozen
class Table(Generic[Decision]):
    """Named facts with their values, and rows over them."""

    name: str
    facts: tuple[tuple[str, tuple[Any, ...]], ...]
    rows: tuple[Row[Decision], ...]

    def decide(self, *facts: Any) -> Row[Decision]:
        """The one row that answers ``facts`` (in the table's order)."""
        found = [row for row in self.rows if row.answers(facts)]
        assert len(found) == 1, f"{self.name}: {len(found)} rows answer {facts}"
        return found[0]

    def combinations(self) -> Iterator[tuple[Any, ...]]:
        """Every combination of facts."""
        return itertools.product(*(values for _, values in self.facts))


# --- damage of a log -------------------------------------------------------------------------------------------------


class Region(enum.Enum):
    """Where the first entry that is not whole lies, against the synced frontier."""

    SYNCED = "at or below the synced frontier"
    UNSYNCED = "above the synced frontier"


class Shape(enum.Enum):
    """What the walk over the entries ended at."""

    NONE = "the log ends between entries"
    SHORT = "short last entry"
    BAD_LAST = "bad entry with nothing whole behind it"
    BAD_INSIDE = "bad entry with a whole entry behind it"
    CHAIN = "whole entry that does not chain"
    ZEROS = "zeros to the end"


class Action(enum.Enum):
    """What opening does. REPAIR and ABSTAIN need other members: the log then opens up to the damage for them only."""

    ACCEPT = "accept"
    CUT = "cut"
    REFUSE = "refuse"
    REPAIR = "repair"
    ABSTAIN = "abstain"


_ANY = None
_YES, _NO = (True,), (False,)
_TORN = (Shape.SHORT, Shape.BAD_LAST, Shape.BAD_INSIDE, Shape.ZEROS)

LOG_DAMAGE: Table[Action] = Table(
    "damage of a log",
    (
        ("region", tuple(Region)),
        ("same kernel boot", (True, False)),
        ("clean stop", (True, False)),
        ("shape", tuple(Shape)),
        ("one member", (True, False)),
    ),
    (
        # Synced bytes, the end of the log included: what is missing or bad here was durable once.
        Row("rot, alone", ((Region.SYNCED,), _ANY, _ANY, _ANY, _YES), Action.REFUSE),
        Row("rot, peers hold it", ((Region.SYNCED,), _ANY, _ANY, _ANY, _NO), Action.REPAIR),
        Row("whole", ((Region.UNSYNCED,), _ANY, _ANY, (Shape.NONE,), _ANY), Action.ACCEPT),
        # No lost write makes a whole, sealed entry with a foreign parent (S1-01, S1-03).
        Row("broken chain, alone", ((Region.UNSYNCED,), _ANY, _ANY, (Shape.CHAIN,), _YES), Action.REFUSE),
        Row("broken chain, peers hold it", ((Region.UNSYNCED,), _ANY, _ANY, (Shape.CHAIN,), _NO), Action.REPAIR),
        # A clean stop syncs and marks everything: bytes behind its frontier were not written by us. Zeros hold nothing.
        Row("zeros after a clean stop", ((Region.UNSYNCED,), _ANY, _YES, (Shape.ZEROS,), _ANY), Action.CUT),
        Row(
            "bytes after a clean stop",
            ((Region.UNSYNCED,), _ANY, _YES, (Shape.SHORT, Shape.BAD_LAST, Shape.BAD_INSIDE), _ANY),
            Action.REFUSE,
        ),
        # The process died and the kernel lived: only the write that was running can be incomplete, and nobody was told
        # of it.
        Row("torn by a kill", ((Region.UNSYNCED,), _YES, _NO, (Shape.SHORT,), _ANY), Action.CUT),
        Row(
            "not a torn write, alone",
            ((Region.UNSYNCED,), _YES, _NO, (Shape.BAD_LAST, Shape.BAD_INSIDE, Shape.ZEROS), _YES),
            Action.REFUSE,
        ),
        Row(
            "not a torn write, peers hold it",
            ((Region.UNSYNCED,), _YES, _NO, (Shape.BAD_LAST, Shape.BAD_INSIDE, Shape.ZEROS), _NO),
            Action.REPAIR,
        ),
        # Power was lost: pages that were not synced are missing in any order, so what lies behind proves nothing.
        Row("power loss, alone", ((Region.UNSYNCED,), _NO, _NO, _TORN, _YES), Action.CUT),
        Row("power loss, others decide", ((Region.UNSYNCED,), _NO, _NO, _TORN, _NO), Action.ABSTAIN),
    ),
)


# --- two slots of one record -----------------------------------------------------------------------------------------


class SlotFact(enum.Enum):
    """One slot; `OLDER` and `NEWER` are valid, against a valid other slot. A lone valid slot counts as `NEWER`."""

    ABSENT = "absent"
    OLDER = "valid, older than the other"
    NEWER = "valid, newer than the other"
    CORRUPT = "corrupt"


class SlotChoice(enum.Enum):
    """The outcome of a pair."""

    EMPTY = "empty"
    SLOT_A = "present: slot a"
    SLOT_B = "present: slot b"
    UNREADABLE = "unreadable"


_VALID = (SlotFact.OLDER, SlotFact.NEWER)
_ABSENT, _CORRUPT = (SlotFact.ABSENT,), (SlotFact.CORRUPT,)
_NOT_CORRUPT = (SlotFact.ABSENT, SlotFact.OLDER, SlotFact.NEWER)

SLOT_PAIR: Table[SlotChoice] = Table(
    "two slots of one record",
    (
        ("slot a", tuple(SlotFact)),
        ("slot b", tuple(SlotFact)),
        # Record 1 in slot a alone, or two numbers that follow each other with the odd one in slot a.
        ("sequences as written in turn", (True, False)),
    ),
    (
        Row("never written", (_ABSENT, _ABSENT, _ANY), SlotChoice.EMPTY),
        Row("only the first record", (_VALID, _ABSENT, _YES), SlotChoice.SLOT_A),
        # Slot b was written before slot a was written again: what is gone may be the newest record.
        Row("slot b is gone", (_VALID, _ABSENT, _NO), SlotChoice.UNREADABLE),
        Row("slot a is gone", (_ABSENT, _VALID, _ANY), SlotChoice.UNREADABLE),
        Row("a is newer", ((SlotFact.NEWER,), _VALID, _YES), SlotChoice.SLOT_A),
        Row("b is newer", ((SlotFact.OLDER,), _VALID, _YES), SlotChoice.SLOT_B),
        # A block that was written to the wrong place, or not at all.
        Row("records that do not follow each other", (_VALID, _VALID, _NO), SlotChoice.UNREADABLE),
        # Renames are atomic: bad bytes are rot of a durable record that may be the newer one (S0-13, as the reference
        # does).
        Row("a is rotten", (_CORRUPT, _ANY, _ANY), SlotChoice.UNREADABLE),
        Row("b is rotten", (_NOT_CORRUPT, _CORRUPT, _ANY), SlotChoice.UNREADABLE),
    ),
)


# --- pairing of superblock and snapshot ------------------------------------------------------------------------------


class SuperblockFact(enum.Enum):
    """What reading the superblock gave."""

    EMPTY = "empty"
    PRESENT = "present"
    UNDECODABLE = "present, payload does not decode"
    UNREADABLE = "unreadable"


class PairFact(enum.Enum):
    """checkpoint_op of the superblock against the op of the snapshot on disk (no snapshot counts as op 0 and no
    checksum)."""

    LAGS = "checkpoint_op below the snapshot"
    EQUAL = "equal op, equal checksum"
    OTHER_CHECKSUM = "equal op, other checksum"
    AHEAD = "checkpoint_op above the snapshot"


PAIRING: Table[type[Exception] | None] = Table(
    "superblock against snapshot",
    (("superblock", tuple(SuperblockFact)), ("pair", tuple(PairFact))),
    (
        Row("fresh boot, or never checkpointed", ((SuperblockFact.EMPTY,), _ANY), None),
        Row("unreadable superblock", ((SuperblockFact.UNREADABLE,), _ANY), SuperblockUnreadable),
        Row("undecodable superblock", ((SuperblockFact.UNDECODABLE,), _ANY), SuperblockUndecodable),
        Row("the pair holds", ((SuperblockFact.PRESENT,), (PairFact.EQUAL,)), None),
        # The snapshot holds all that the pair promised; commit_max is a lower bound (S0-49).
        Row("superblock lags", ((SuperblockFact.PRESENT,), (PairFact.LAGS,)), None),
        Row("superblock ahead", ((SuperblockFact.PRESENT,), (PairFact.AHEAD,)), CheckpointAheadOfSnapshot),
        Row("other snapshot", ((SuperblockFact.PRESENT,), (PairFact.OTHER_CHECKSUM,)), CheckpointChecksumMismatch),
    ),
)


def check_pairing(checkpoint: tuple[int, int] | None, snapshot: tuple[int, int] | None, path: str) -> None:
    """Verify before believing (S0-45): ``checkpoint`` is (op, checksum) of a decoded superblock, ``snapshot`` that of
    the file.

    None for a superblock that is Empty, or a snapshot that does not exist. ``path`` is the snapshot's.

    Raises:
        CheckpointAheadOfSnapshot, CheckpointChecksumMismatch: as the table says, with the numbers on both sides.
    """
    if checkpoint is None:
        return
    op, checksum = checkpoint
    snapshot_op, snapshot_checksum = snapshot if snapshot is not None else (0, 0)
    if op != snapshot_op:
        pair = PairFact.AHEAD if op > snapshot_op else PairFact.LAGS
    else:
        pair = PairFact.EQUAL if checksum == snapshot_checksum else PairFact.OTHER_CHECKSUM
    refusal = PAIRING.decide(SuperblockFact.PRESENT, pair).decision
    if refusal is CheckpointAheadOfSnapshot:
        raise CheckpointAheadOfSnapshot(path, op, None if snapshot is None else snapshot_op)
    if refusal is CheckpointChecksumMismatch:
        raise CheckpointChecksumMismatch(path, op, checksum, snapshot_checksum)


# --- the directory of a partition ------------------------------------------------------------------------------------


class DirectoryAction(enum.Enum):
    """What a node does about the directory of a partition that metadata says it holds."""

    OPEN = "open"
    CREATE = "create"
    LOST = "lost: never a new voter"


PARTITION_DIRECTORY: Table[DirectoryAction] = Table(
    "directory of a partition",
    (("directory exists", (True, False)), ("created at or below reconciled_through", (True, False))),
    (
        Row("there", (_YES, _ANY), DirectoryAction.OPEN),
        Row("new partition", (_NO, _NO), DirectoryAction.CREATE),
        Row("gone", (_NO, _YES), DirectoryAction.LOST),
    ),
)


def check_partition_directory(
    exists: bool, created_revision: int, reconciled_through: int, path: str
) -> DirectoryAction:
    """OPEN or CREATE. Raises `PartitionLost` when a directory that this node once made is gone."""
    action = PARTITION_DIRECTORY.decide(exists, created_revision <= reconciled_through).decision
    if action is DirectoryAction.LOST:
        raise PartitionLost(path, created_revision, reconciled_through)
    return action
