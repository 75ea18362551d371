"""The command line of the simulator.

    python -m shardsrv.sim --seed N                 one run, with its facts
    python -m shardsrv.sim --seeds N                N runs from --first-seed on, or with --fresh from a seed never used

The first line names everything that a replay needs; a violation prints the one line that replays it, and the exit code
is 1.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import traceback
from random import Random

from shardsrv.sim.options import Options, draw
from shardsrv.sim.report import Summary, one_run
from shardsrv.sim.world import Result, World


def options_of(seed: int, arguments: argparse.Namespace) -> Options:
    """The options of a seed under the flags given."""
    return draw(Random(f"{seed}/options"), seed, arguments.replicas, arguments.seconds)


def replay(result: Result, arguments: argparse.Namespace) -> str:
    """The command that repeats a run."""
    words = ["python -m shardsrv.sim", f"--seed {result.options.seed}"]
    if arguments.replicas is not None:
        words.append(f"--replicas {arguments.replicas}")
    if arguments.seconds is not None:
        words.append(f"--seconds {arguments.seconds}")
    return " ".join(words)


def parser() -> argparse.ArgumentParser:
    """The flags."""
    flags = argparse.ArgumentParser(prog="python -m shardsrv.sim", description="Simulate a cluster.")
    flags.add_argument("--seed", type=int, help="one run of this seed")
    flags.add_argument("--seeds", type=int, help="this many runs")
    flags.add_argument("--first-seed", type=int, default=1, help="first of --seeds")
    flags.add_argument("--fresh", action="store_true", help="begin at a seed that is drawn anew")
    flags.add_argument("--seconds", type=int, help="length of the phase with faults, simulated seconds")
    flags.add_argument("--replicas", type=int, help="members, 1 to 7")
    flags.add_argument("--trace", action="store_true", help="print each line of the trace")
    flags.add_argument("--digest", action="store_true", help="print seed and trace hash of each run, nothing else")
    return flags


def main(argv: list[str] | None = None) -> int:
    """Run what the flags say; the exit code is 1 when anything was violated."""
    arguments = parser().parse_args(argv)
    first = secrets.randbits(40) if arguments.fresh else arguments.first_seed
    seeds = [arguments.seed] if arguments.seed is not None else list(range(first, first + (arguments.seeds or 1)))
    if not arguments.digest:
        print(f"seeds {seeds[0]}..{seeds[-1]} replicas {arguments.replicas} seconds {arguments.seconds}", flush=True)
    summary = Summary()
    failed = 0
    for seed in seeds:
        result = World(options_of(seed, arguments), arguments.trace).run()
        summary.add(result)
        if arguments.digest:
            print(seed, result.trace_digest, flush=True)
        elif len(seeds) == 1:
            print(one_run(result))
        if result.violation is not None:
            failed += 1
            if not arguments.digest:
                _tell(result, arguments)
    if not arguments.digest:
        print(summary.text())
    return 1 if failed else 0


def _tell(result: Result, arguments: argparse.Namespace) -> None:
    print(f"VIOLATION seed {result.options.seed}: {result.violation}")
    cause = result.violation.__cause__ if result.violation is not None else None
    if cause is not None:
        traceback.print_exception(cause, limit=-12, file=sys.stdout)
    print(f"replay: {replay(result, arguments)}", flush=True)
