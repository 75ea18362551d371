"""The ledger of runs: one JSON line a run, so that hours of many evenings add up.

Fields: seed, members, simulated and wall seconds, events, requests answered, committed ops, faults by kind, view
changes, transfers, the trace hash, and the violation if there was one.
"""

from __future__ import annotations

import json
from pathlib import Path

from shardsrv.sim.clock import SECOND
from shardsrv.sim.world import Result


def entry(result: Result) -> dict[str, object]:
    """The line of a run, as an object."""
    return {
        "seed": result.options.seed,
        "members": result.options.replicas,
        "simulated_seconds": round(result.simulated / SECOND, 3),
        "wall_seconds": round(result.wall, 3),
        "events": result.events,
        "requests": result.requests,
        "answered": result.answered,
        "committed": result.committed,
        "faults": result.counts,
        "points": result.reached,
        "view_changes": result.view_changes,
        "transfers": result.counts.get("transfers installed", 0),
        "older_clients": sum(result.options.load.older > 0 for _ in range(1)),
        "trace": result.trace_digest,
        "violation": None if result.violation is None else str(result.violation),
    }


def append(path: Path, result: Result) -> None:
    """Add a run to the ledger."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry(result), sort_keys=True) + "\n")
