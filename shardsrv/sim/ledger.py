"""The ledger of runs: one JSON line a run, so that hours of many evenings add up; and what makes an hour a loaded one.

Fields: the release of the source, seed, members, simulated and wall seconds, events, requests answered, committed ops,
faults by kind, view changes, transfers, clients of either generation, the trace hash, and the violation if there was
one.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from shardsrv.sim.clock import SECOND
from shardsrv.sim.report import rate
from shardsrv.sim.world import Result

COMMITTED_MIN: Final = 100_000
FAULTS_MIN: Final = 20
VIEW_CHANGES_MIN: Final = 2
FAULTS: Final = (
    "kill",
    "clean stop",
    "power",
    "blackout",
    "partition",
    "clog",
    "clock jump",
    "write error",
    "sync error",
    "rot",
    "misdirected",
    "wipe",
    "squeeze",
    "lie",
)
"""What `faults.Faults` counts."""
LOST_WRITES: Final = ("power", "blackout")
DISK_FAULTS: Final = ("write error", "sync error", "rot", "misdirected")

Entry = Mapping[str, Any]


@cache
def release() -> str:
    """The commit of the source, as git tells it; "unknown" outside a working copy."""
    command = ("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty")
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def entry(result: Result) -> dict[str, object]:
    """The line of a run, as an object."""
    load = result.options.load
    older = sum(index < load.clients * load.older for index in range(load.clients))
    return {
        "release": release(),
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
        "older_clients": older,
        "newer_clients": load.clients - older,
        "trace": result.trace_digest,
        "violation": None if result.violation is None else str(result.violation),
    }


def append(path: Path, result: Result) -> None:
    """Add a run to the ledger."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry(result), sort_keys=True) + "\n")


def lacks(run: Entry) -> list[str]:
    """What an entry lacks to count as a loaded cluster-hour; empty when it counts."""
    counts, answered = run["faults"], run["answered"]

    def happened(names: Iterable[str]) -> int:
        return sum(counts.get(name, 0) for name in names)

    wanted = (
        ("an hour", run["simulated_seconds"] >= 3600),
        ("3 or 5 members", run["members"] in (3, 5)),
        (f"{COMMITTED_MIN} commits", run["committed"] >= COMMITTED_MIN),
        ("both planes", "send" in answered and "create_topic" in answered),
        (f"{FAULTS_MIN} faults", happened(FAULTS) >= FAULTS_MIN),
        ("a crash with lost writes", happened(LOST_WRITES) > 0),
        ("a partition", counts.get("partition", 0) > 0),
        ("a disk fault", happened(DISK_FAULTS) > 0),
        ("view changes", run["view_changes"] >= VIEW_CHANGES_MIN),
        ("both generations of clients", run["older_clients"] > 0 and run.get("newer_clients", 1) > 0),
        ("no violation", run["violation"] is None),
    )
    return [name for name, holds in wanted if not holds]


def tally(path: Path) -> str:
    """How many loaded hours a ledger holds, what they saw, and why others do not count."""
    runs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    counted = [run for run in runs if not lacks(run)]
    wall = sum(run["wall_seconds"] for run in counted)
    hours = sum(run["simulated_seconds"] for run in counted) / 3600
    lines = [
        f"{len(runs)} runs, {sum(run['violation'] is not None for run in runs)} violations; "
        f"{len(counted)} loaded hours, {rate(hours * 3600, wall)} cluster-hours a core-hour",
        f"of 3 members {sum(run['members'] == 3 for run in counted)}, "
        f"of 5 {sum(run['members'] == 5 for run in counted)}",
        f"committed {sum(run['committed'] for run in counted):,}, "
        f"faults {sum(run['faults'].get(name, 0) for run in counted for name in FAULTS):,}, "
        f"view changes {sum(run['view_changes'] for run in counted):,}, "
        f"transfers {sum(run['transfers'] for run in counted):,}",
        "releases: " + ", ".join(sorted({run.get("release", "unknown") for run in counted})),
    ]
    lines += [f"seed {run['seed']} lacks {', '.join(lacks(run))}" for run in runs if lacks(run)]
    return "\n".join(lines)
