"""Fuzzing of every decoder: mutated samples go in; a refusal of the expected kind or a usable value comes out.

    python -m tests.fuzz.decoders --executions 10000000 [--seed 1] [--only NAME]

A finding is any other exception, a value that is not usable (see `targets`), an execution of more than `SLOW_SECONDS`
of processor time, or memory that grows beyond `MEMORY_MAX`. A crash or a hang of compiled code ends the program with a
traceback (`faulthandler`). Exit code 1 when there are findings.
"""

import argparse
import faulthandler
import resource
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.fuzz.mutation import Mutator
from tests.fuzz.targets import Target, all_targets

TURN = 500
"""Executions of one target in a row."""
HANG_SECONDS = 120
"""Wall clock of one turn after which the program ends with a traceback."""
SLOW_SECONDS = 0.5
MEMORY_MAX = 256 << 20
"""Bytes by which the resident set may grow after the corpus was loaded and every target had one turn."""
SEALED = 0.9
"""Share of samples whose checksums are made right again."""
FIELDS = 0.75
"""Share of samples with fields whose fields are changed; the others are changed anywhere."""


@dataclass
class Report:
    """What a run found. ``findings`` holds one sample for each kind of failure of a target."""

    executions: int = 0
    accepted: int = 0
    seconds: float = 0.0
    slowest: tuple[float, str] = (0.0, "")
    grown: int = 0
    findings: dict[str, bytes] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """For people."""
        rate = self.executions / max(self.seconds, 1e-9)
        accepted = 100 * self.accepted / max(self.executions, 1)
        return [
            f"{self.executions:,} executions in {self.seconds:.1f} s, {rate:,.0f} a second, {accepted:.0f}% accepted",
            f"slowest {1000 * self.slowest[0]:.1f} ms ({self.slowest[1]}), memory grew by {self.grown >> 20} MiB",
            f"{len(self.findings)} findings",
            *(f"  {what}\n    sample {sample.hex()}" for what, sample in self.findings.items()),
        ]


def resident_peak() -> int:
    """Bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Fuzzer:
    """A deterministic run over targets in turn."""

    def __init__(self, targets: Sequence[Target], seed: int) -> None:
        self.targets = targets
        self.mutator = Mutator(seed)
        self.report = Report()

    def run(self, executions: int) -> Report:
        """So many executions, spread evenly; returns the report so far."""
        began = time.monotonic()
        baseline = 0
        end = self.report.executions + executions
        while self.report.executions < end:
            for target in self.targets:
                faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
                self.turn(target, max(1, min(TURN, end - self.report.executions)))
            baseline = baseline or resident_peak()
        faulthandler.cancel_dump_traceback_later()
        self.report.seconds += time.monotonic() - began
        self.report.grown = resident_peak() - baseline
        if self.report.grown > MEMORY_MAX:
            self.report.findings["memory"] = b""
        return self.report

    def turn(self, target: Target, executions: int) -> None:
        """Executions of one target."""
        mutator, samples = self.mutator, target.samples
        for _ in range(executions):
            sample = samples[mutator.below(len(samples))]
            if target.fields is not None and mutator.dice.random() < FIELDS:
                data = mutator.mutate_fields(sample, target.fields(sample))
            else:
                data = mutator.mutate(sample, samples[mutator.below(len(samples))])
            if target.seal is not None and mutator.dice.random() < SEALED:
                target.seal(data)
            self.execute(target, bytes(data))

    def execute(self, target: Target, data: bytes) -> None:
        """One execution; a failure becomes a finding."""
        report = self.report
        report.executions += 1
        began = time.thread_time()
        try:
            target.run(data)
            report.accepted += 1
        except target.refusals as refusal:
            str(refusal)  # a refusal that cannot be shown would fail in a log line
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{target.name}: {type(error).__name__} at {frame.name} line {frame.lineno}: {error}"[:300]
            report.findings.setdefault(what, data)
        spent = time.thread_time() - began
        if spent > report.slowest[0]:
            report.slowest = (spent, target.name)
            if spent > SLOW_SECONDS:
                report.findings.setdefault(f"{target.name}: {spent:.1f} s", data)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--executions", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="targets whose name contains this")
    given = parser.parse_args(arguments)
    faulthandler.enable()
    targets = [target for target in all_targets() if given.only in target.name]
    report = Fuzzer(targets, given.seed).run(given.executions)
    print(f"seed {given.seed}, {len(targets)} targets")
    print("\n".join(report.lines()))
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
