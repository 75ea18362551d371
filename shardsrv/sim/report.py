"""What runs have shown, in text and in numbers."""

from __future__ import annotations

import attrs

from shardsrv.sim.clock import HOUR, SECOND
from shardsrv.sim.world import Result


def _pairs(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {counts[name]}" for name in sorted(counts)) or "none"


def rate(number: float, seconds: float) -> str:
    """A number a second, as text."""
    return f"{number / max(seconds, 1e-9):,.0f}"


def one_run(result: Result) -> str:
    """The facts of one run."""
    options = result.options
    return "\n".join(
        (
            f"seed {options.seed}: {options.replicas} members, {result.simulated / SECOND:.0f} s simulated in "
            f"{result.wall:.2f} s of a core, {result.events} events, {rate(result.events, result.wall)} a second",
            f"trace {result.trace_digest}",
            f"committed {result.committed}, answered {result.requests}: {_pairs(result.answered)}",
            f"happened: {_pairs(result.counts)}",
        )
    )


@attrs.define
class Summary:
    """Sums over runs."""

    runs: int = 0
    violations: int = 0
    events: int = 0
    simulated: int = 0
    wall: float = 0.0
    requests: int = 0
    view_changes: int = 0
    counts: dict[str, int] = attrs.Factory(dict)
    reached: dict[str, int] = attrs.Factory(dict)

    def add(self, result: Result) -> None:
        """Take a run in."""
        self.runs += 1
        self.violations += result.violation is not None
        self.events += result.events
        self.simulated += result.simulated
        self.wall += result.wall
        self.requests += result.requests
        self.view_changes += result.view_changes
        for name, number in result.counts.items():
            self.counts[name] = self.counts.get(name, 0) + number
        for name, number in result.reached.items():
            self.reached[name] = self.reached.get(name, 0) + number

    def text(self) -> str:
        """The summary."""
        return "\n".join(
            (
                f"{self.runs} runs, {self.violations} violations, {self.simulated / HOUR:.2f} simulated hours in "
                f"{self.wall:.1f} s of a core, {self.events:,} events, {rate(self.events, self.wall)} a second, "
                f"{rate(self.simulated / SECOND, self.wall)} cluster-hours a core-hour",
                f"requests answered {self.requests}, view changes {self.view_changes}",
                f"happened: {_pairs(self.counts)}",
                f"points: {_pairs(self.reached)}",
            )
        )
