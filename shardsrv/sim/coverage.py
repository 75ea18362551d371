"""Which rows of the decision tables a run has met, of those that a run can meet.

The tables are data and are read from the modules that own them; their deciding functions are replaced, in this process
alone, by ones that note the row and then decide as before. None of these functions is called from within a compiled
module by a reference of its own, so a compiled build is measured as well as an interpreted one.

`UNREACHABLE` names the rows that no fault of the atlas leads to, with the reason; a run that meets one says so.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from shardsrv.errors import Unreadable
from shardsrv.sim import boot
from shardsrv.store import recovery
from shardsrv.vsr import member, merge, preflight, start_view, trust

MET: Final[Counter[str]] = Counter()
"""Rows met in this process: "table: row"."""

_STORE: Final = (recovery.LOG_DAMAGE, recovery.SLOT_PAIR, recovery.PAIRING, recovery.PARTITION_DIRECTORY)

UNREACHABLE: Final[dict[str, str]] = {
    "damage of a log: broken chain, alone": "no lost write makes a whole, sealed entry with another parent",
    "damage of a log: broken chain, peers hold it": "as alone",
    "damage of a log: zeros after a clean stop": "a clean stop records the end of the log; nothing makes a file longer",
    "damage of a log: bytes after a clean stop": "as zeros; rot lies at or below the end that was recorded",
    "superblock against snapshot: undecodable superblock": "a slot whose hash holds was written by the same code",
    "superblock against snapshot: superblock ahead": "the snapshot is durable before the pair is written",
    "superblock against snapshot: other snapshot": "one op has one snapshot; rot of it is found by its hash",
    "log of the next view: conflict refuse": "entries of one view are alike; copies of a later view are told apart",
    "log of the next view: missing wait": "votes of this release list every entry down to the commit point, each held",
    "log of the next view: lost within the window cut": "as missing: the header that makes the head is always held",
    "log of the next view: damaged everywhere refuse": "as missing: damage ends a log, and its member is a suspect",
    "start view: sender does not lead the view": "a link belongs to a member, and no member sends for another",
    "start view: own view": "only the leader of a view sends its StartView, and not to itself",
    "role: not caught up": "the driver parks requests until the barrier is passed; so does that of the server",
    "trust: 0 trusted": "a group of one member has nobody to be trusted by, and is never judged",
}
"""Rows that runs do not meet, and why; `docs/simulator.md` shows them. Unit tests walk these rows like all others."""


def rows() -> list[str]:
    """Every row of every table, in a fixed order."""
    found = [f"{table.name}: {row.label}" for table in _STORE if table is not recovery.SLOT_PAIR for row in table.rows]
    found += [f"log of the next view: {label} {verdict}" for _, verdict, label in merge.OP_TABLE]
    found += [f"start view: {label}" for _, label in start_view.START_VIEW_TABLE]
    found += [f"metadata request: {decision.label}" for _, decision in preflight.REQUEST_TABLE]
    found += [f"role: {label}" for _, label in preflight.ROLE_TABLE]
    found += [f"trust: {number} {verdict}" for number, (_, verdict) in enumerate(trust.TRUST_TABLE)]
    return list(dict.fromkeys(found))


def measure() -> None:
    """Begin to note rows; once a process."""
    if getattr(recovery.Table, "measured", False):
        return
    recovery.Table.measured = True  # type: ignore[attr-defined]
    decide_row, decide_op = recovery.Table.decide, merge.decide_op
    verdict, request, role, judge = start_view.verdict, preflight.decide, preflight.role, trust.judge

    def noted_row(table: Any, *facts: Any) -> Any:
        row = decide_row(table, *facts)
        MET[f"{table.name}: {row.label}"] += 1
        return row

    def noted_op(*facts: bool) -> tuple[str, str]:
        decided = decide_op(*facts)
        MET[f"log of the next view: {decided[1]} {decided[0]}"] += 1
        return decided

    def noted_verdict(*facts: bool) -> str:
        label = verdict(*facts)
        MET[f"start view: {label}"] += 1
        return label

    def noted_request(facts: Any) -> Any:
        decision = request(facts)
        MET[f"metadata request: {decision.label}"] += 1
        return decision

    def noted_role(*facts: bool) -> str:
        label = role(*facts)
        MET[f"role: {label}"] += 1
        return label

    recovery.Table.decide = noted_row  # type: ignore[method-assign]
    merge.decide_op = noted_op
    start_view.verdict = noted_verdict
    preflight.decide = noted_request
    preflight.role = noted_role
    _measure_trust(judge)
    _measure_superblock()


def _measure_trust(judge: Any) -> None:
    def noted(members: int, facts: Any) -> str:
        synced = facts.synced_op >= facts.head_op and not facts.cut
        values = (members > 1, facts.lost, facts.fenced, facts.clean, facts.same_boot, synced)
        for number, (row, verdict) in enumerate(trust.TRUST_TABLE):
            if all(want is None or want == have for want, have in zip(row, values, strict=True)):
                MET[f"trust: {number} {verdict}"] += 1
                break
        return str(judge(members, facts))

    member.judge = noted


def _measure_superblock() -> None:
    """Rows that are decided before the table is asked: without a record there is no pair, and an unreadable record is
    refused where it is read."""
    state_of = boot.state_of

    def noted(outcome: Any, paths: tuple[str, str]) -> Any:
        try:
            state = state_of(outcome, paths)
        except Unreadable:
            MET["superblock against snapshot: unreadable superblock"] += 1
            raise
        if state is None:
            MET["superblock against snapshot: fresh boot, or never checkpointed"] += 1
        return state

    boot.state_of = noted


def served() -> None:
    """A request was taken: the one row of the roles that refuses nothing."""
    MET[f"role: {preflight.SERVES}"] += 1


def reachable() -> list[str]:
    """The rows that runs can meet."""
    return [row for row in rows() if row not in UNREACHABLE]


def text() -> str:
    """How many of the rows that can be met were met, which were not, and which were that should not be."""
    known = reachable()
    missing = [row for row in known if row not in MET]
    share = 100 * (len(known) - len(missing)) / len(known)
    lines = [
        f"rows of decision tables met: {len(known) - len(missing)} of {len(known)} that can be ({share:.0f} %), "
        f"{len(UNREACHABLE)} cannot"
    ]
    lines += [f"  not met: {row}" for row in missing]
    return "\n".join(lines + [f"  met, although it cannot be: {row}" for row in UNREACHABLE if row in MET])
