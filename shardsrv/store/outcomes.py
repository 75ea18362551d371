"""What a power loss may leave of each durable thing, and what rot in it leads to: tables as data, printed in
docs/recovery.md and held against every state that a simulated disk can be in. Pure.

Invariant: the first table names all outcomes; one that it does not name is a defect, and so is one that never occurs.
"""

from __future__ import annotations

from typing import Final

import attrs


@attrs.frozen
class PowerLossRow:
    """`change`: what was going on; `outcomes`: what a start may find then; `kept`: what is in every one of them."""

    change: str
    outcomes: tuple[str, ...]
    kept: str


OLD, NEW = "the record before", "the record being written"
CUT, WHOLE = "cut behind the last whole entry", "all that was written"
LOG_KEPT = "every entry that a sync covered"

POWER_LOSS: Final = (
    PowerLossRow("superblock write", (OLD, NEW), "the last record whose write returned"),
    PowerLossRow("partition checkpoint write", (OLD, NEW), "the last record whose write returned"),
    PowerLossRow("snapshot write", (OLD, NEW), "the last snapshot whose write returned"),
    PowerLossRow(
        "metadata checkpoint",
        (
            "the pair before, whole log",
            "newer snapshot, the pair lags, whole log",
            "the new pair, whole log",
            "the new pair, log dropped in part",
            "the new pair, log dropped",
        ),
        "every command that was acknowledged, in snapshot or log",
    ),
    PowerLossRow("log append", (CUT, WHOLE), LOG_KEPT),
    PowerLossRow("segment roll", (CUT, WHOLE), LOG_KEPT),
    PowerLossRow("offset store", (CUT, WHOLE), "every offset whose entry a sync covered, or a later one"),
    PowerLossRow(
        "cut of a suffix",
        ("nothing cut", "cut in part, an unbroken log", "cut", "cut, with entries behind it"),
        "every synced entry before the cut, and every one synced behind it",
    ),
    PowerLossRow(
        "drop of head segments",
        ("nothing dropped", "dropped in part, an unbroken log", "dropped"),
        "every synced entry above the checkpoint",
    ),
    PowerLossRow(
        "purge",
        ("before the purge", "purged, old segments there", "purged, old segments dropped"),
        "the purge once a sync covered it: offsets are not given again, nothing below it is served",
    ),
    PowerLossRow("group table write", (OLD, NEW), "of each group the last record whose write returned"),
    PowerLossRow(
        "growth of the group table",
        ("no record of the new group", "a record of the new group"),
        "of each group the last record whose write returned",
    ),
    PowerLossRow(
        "tables brought to another number of shards",
        ("as before", "in the table of the old and of the new owner", "in the table of the new owner"),
        "the record of every group",
    ),
    PowerLossRow(
        "boot record update",
        ("no entry", "an earlier frontier", "the present frontier"),
        "no frontier above what is synced; a lowered frontier, a fence and a clean mark once their write returned",
    ),
    PowerLossRow(
        "new partition",
        ("nothing", "a directory without record", "made"),
        "the record and its directory once the record was written",
    ),
    PowerLossRow(
        "install of a fetched partition",
        ("the state before", "the fetched state"),
        "one of the two, whole; the fetched one once the install returned, with what was synced behind it",
    ),
    PowerLossRow(
        "install of a fetched snapshot",
        ("the state before", "the fetched snapshot, the pair lags", "the fetched snapshot and its pair"),
        "one of the two, whole; the fetched one once the install returned, with what was synced behind it",
    ),
    PowerLossRow("recovery itself", ("as at the first attempt",), "what the first attempt would have kept"),
)


def allowed(change: str) -> tuple[str, ...]:
    """The outcomes of one change. Raises `KeyError` for a change that has no row."""
    for row in POWER_LOSS:
        if row.change == change:
            return row.outcomes
    raise KeyError(change)


@attrs.frozen
class RotRow:
    """`record`: the smallest durable thing; `seen`: how damage in it is told; `reaction`: what follows."""

    record: str
    seen: str
    reaction: str


HEALED, REFUSED, DOUBTED = "healed", "refused", "doubted"

BIT_ROT: Final = (
    RotRow(
        "log entry at or below the synced frontier",
        "LogDamaged (refuse; repair where peers hold it)",
        f"{REFUSED} alone, healed from peers; not served: a poll is refused with Damaged",
    ),
    RotRow(
        "log entry above the synced frontier",
        "the table of log damage",
        "cut after a power loss; on the same kernel boot only a short last entry is cut, all else is refused",
    ),
    RotRow("segment header", "LogDamaged, LogForeign or UnsupportedVersion", f"{REFUSED} alone, healed from peers"),
    RotRow("index of a segment", "its hash", f"{HEALED}: made again by a walk; what is served is the same"),
    RotRow(
        "superblock slot", "SuperblockUnreadable", f"{REFUSED}: a promise is never healed, a good slot does not help"
    ),
    RotRow(
        "slot of the group table", "Unreadable for its group", f"{REFUSED}: that partition is in doubt, others serve"
    ),
    RotRow("head of the group table", "Unreadable, UnsupportedVersion", f"{REFUSED}: all partitions of the shard"),
    RotRow("head of a boot record", "no facts", f"{DOUBTED}: the logs are looked at as after a power loss"),
    RotRow("entry of a boot record", "no entry", f"{DOUBTED}: that log is looked at as after a power loss"),
    RotRow("snapshot", "Damaged", f"{REFUSED} alone, healed from peers"),
    RotRow("partition checkpoint", "Unreadable", f"{REFUSED}: that partition is in doubt; healed from peers"),
)
