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
from pathlib import Path
from random import Random

from shardsrv.sim import coverage, ledger, plants
from shardsrv.sim.options import (
    Options,
    draw,
    loaded,
    plain,
    with_clock_jumps,
    with_dense_logs,
    with_rot,
    with_squeezes,
    with_storm,
    with_transfers,
    with_wipes,
)
from shardsrv.sim.plant_list import PLANTS
from shardsrv.sim.report import Summary, one_run
from shardsrv.sim.shrink import override, shrink
from shardsrv.sim.world import Result, World

FLAGS = ("rot", "storm", "squeeze", "dense", "transfers", "wipe", "clock", "load", "plain")
"""Flags that change the options of a seed."""


def options_of(seed: int, arguments: argparse.Namespace) -> Options:
    """The options of a seed under the flags given."""
    options = draw(Random(f"{seed}/options"), seed, arguments.replicas, arguments.seconds, not arguments.plain)
    if arguments.rot:
        options = with_rot(options)
    if arguments.storm:
        options = with_storm(options)
    if arguments.squeeze:
        options = with_squeezes(options)
    if arguments.dense:
        options = with_dense_logs(options)
    if arguments.transfers:
        options = with_transfers(options)
    if arguments.wipe:
        options = with_wipes(options)
    if arguments.clock:
        options = with_clock_jumps(options)
    if arguments.load:
        options = loaded(options, arguments.replicas, arguments.seconds)
    if arguments.plain:
        options = plain(options)
    return override(options, arguments.set)


def replay(result: Result, arguments: argparse.Namespace) -> str:
    """The command that repeats a run."""
    words = ["python -m shardsrv.sim", f"--seed {result.options.seed}"]
    if arguments.replicas is not None:
        words.append(f"--replicas {arguments.replicas}")
    if arguments.seconds is not None:
        words.append(f"--seconds {arguments.seconds}")
    words += [f"--{flag}" for flag in FLAGS if getattr(arguments, flag)]
    words += [f"--set {setting}" for setting in arguments.set]
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
    flags.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="replace an option of the seed")
    flags.add_argument("--rot", action="store_true", help="bits rot often")
    flags.add_argument("--storm", action="store_true", help="members crash all the time")
    flags.add_argument("--squeeze", action="store_true", help="what a quorum holds is left with one who is away")
    flags.add_argument("--dense", action="store_true", help="small segments, checkpoints and purges all the time")
    flags.add_argument("--transfers", action="store_true", help="members fall behind logs, and lie in state transfers")
    flags.add_argument("--wipe", action="store_true", help="members lose their disks often, also while they vote")
    flags.add_argument("--clock", action="store_true", help="clocks jump often and far")
    flags.add_argument("--load", action="store_true", help="one loaded hour of three or five members for each seed")
    flags.add_argument("--plain", action="store_true", help="nothing that narrows: moments, squeezes, bursts")
    flags.add_argument("--shrink", action="store_true", help="make the first red run shorter")
    flags.add_argument("--stop", action="store_true", help="end with the first red run")
    flags.add_argument("--ledger", type=Path, help="add a JSON line a run to this file")
    flags.add_argument("--tally", type=Path, help="print the loaded hours of this ledger, nothing else")
    flags.add_argument("--list-plants", action="store_true", help="names of the planted bugs")
    flags.add_argument("--plants", action="store_true", help="try every planted bug")
    flags.add_argument("--plant", action="append", default=[], help="try this planted bug")
    flags.add_argument("--workers", type=int, default=2, help="planted bugs tried at once")
    flags.add_argument("--digest", action="store_true", help="print seed and trace hash of each run, nothing else")
    return flags


def main(argv: list[str] | None = None) -> int:
    """Run what the flags say; the exit code is 1 when anything was violated."""
    arguments = parser().parse_args(argv)
    if arguments.list_plants:
        print("\n".join(each.name for each in PLANTS))
        return 0
    if arguments.tally is not None:
        print(ledger.tally(arguments.tally))
        return 0
    first = secrets.randbits(40) if arguments.fresh else arguments.first_seed
    if arguments.plants or arguments.plant:
        return not plants.try_all(arguments.plant, first, arguments.seeds or plants.SEEDS_MAX, arguments.workers)
    seeds = [arguments.seed] if arguments.seed is not None else list(range(first, first + (arguments.seeds or 1)))
    if not arguments.digest:
        print(f"seeds {seeds[0]}..{seeds[-1]} replicas {arguments.replicas} seconds {arguments.seconds}", flush=True)
    coverage.measure()
    summary = Summary()
    failed = 0
    for seed in seeds:
        result = World(options_of(seed, arguments), arguments.trace).run()
        summary.add(result)
        if result.requests:
            coverage.served()
        if arguments.digest:
            print(seed, result.trace_digest, flush=True)
        elif len(seeds) == 1:
            print(one_run(result))
        if arguments.ledger is not None:
            ledger.append(arguments.ledger, result)
        if result.violation is not None:
            failed += 1
            if not arguments.digest:
                _tell(result, arguments)
            if arguments.shrink:
                _shrink(result, arguments)
            if arguments.stop or arguments.shrink:
                break
    if not arguments.digest:
        print(summary.text())
        print(coverage.text())
    return 1 if failed else 0


def _shrink(result: Result, arguments: argparse.Namespace) -> None:
    smaller, overrides = shrink(result)
    arguments.set = arguments.set + overrides
    print(f"shrunk to {smaller.events} events: {smaller.violation}")
    print(f"replay: {replay(smaller, arguments)}", flush=True)


def _tell(result: Result, arguments: argparse.Namespace) -> None:
    print(f"VIOLATION seed {result.options.seed}: {result.violation}")
    cause = result.violation.__cause__ if result.violation is not None else None
    if cause is not None:
        traceback.print_exception(cause, limit=-12, file=sys.stdout)
    print(f"replay: {replay(result, arguments)}", flush=True)
