"""Which rows of the decision tables a run has met.

The tables are data and are read from the modules that own them; their deciding functions are replaced, in this process
alone, by ones that note the row and then decide as before. Compiled modules keep their own references, so coverage is
measured on interpreted runs; what the rooms decide is the same in both.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from shardsrv.store import recovery
from shardsrv.vsr import member, merge, preflight, start_view, trust

MET: Final[Counter[str]] = Counter()
"""Rows met in this process: "table: row"."""

_STORE: Final = (recovery.LOG_DAMAGE, recovery.SLOT_PAIR, recovery.PAIRING, recovery.PARTITION_DIRECTORY)


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


def served() -> None:
    """A request was taken: the one row of the roles that refuses nothing."""
    MET[f"role: {preflight.SERVES}"] += 1


def text() -> str:
    """How many rows were met, and which were not."""
    known = rows()
    missing = [row for row in known if row not in MET]
    share = 100 * (len(known) - len(missing)) / len(known)
    lines = [f"rows of decision tables met: {len(known) - len(missing)} of {len(known)} ({share:.0f} %)"]
    return "\n".join(lines + [f"  not met: {row}" for row in missing])
