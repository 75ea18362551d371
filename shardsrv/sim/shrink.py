"""Making a red run shorter: fewer faults, fewer clients, less time, as long as the same oracle is violated.

Each step turns one thing of the options down and runs the seed again; it stays down when the run is still red with the
same oracle. The result is a set of overrides, printed as flags of the command line.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from shardsrv.sim.clock import SECOND
from shardsrv.sim.options import Options
from shardsrv.sim.world import Result, World

FAULTS = (
    "kill",
    "stop",
    "power",
    "blackout",
    "partition",
    "clog",
    "clock_jump",
    "write_error",
    "sync_error",
    "rot",
    "misdirected",
    "wipe",
    "squeeze",
    "lie",
    "moment",
)
RUNS_MAX = 80


def _steps(options: Options) -> Iterator[tuple[str, Options]]:
    """Simpler options, one change each, with the flag that makes it."""
    faults, network, load = options.faults, options.network, options.load
    for name in FAULTS:
        if getattr(faults, name):
            flag = f"faults.{name}=0"
            yield flag, attrs.evolve(options, faults=attrs.evolve(faults, **{name: 0}))
    for name in ("loss", "repetition", "damage"):
        if getattr(network, name):
            yield f"network.{name}=0.0", attrs.evolve(options, network=attrs.evolve(network, **{name: 0.0}))
    for name in ("clock_skew", "clock_drift"):
        if getattr(options, name):
            yield f"{name}=0", attrs.evolve(options, **{name: 0})
    if load.clients > 1:
        fewer = load.clients // 2
        yield f"load.clients={fewer}", attrs.evolve(options, load=attrs.evolve(load, clients=fewer))
    kept = [weight for weight in load.weights if weight[1]]
    for name, _ in kept:
        if len(kept) > 1:
            left = tuple(each for each in load.weights if each[0] != name)
            yield f"without={name}", attrs.evolve(options, load=attrs.evolve(load, weights=left))


def shrink(result: Result) -> tuple[Result, list[str]]:
    """A simpler run that violates the same oracle, and the overrides that lead to it."""
    assert result.violation is not None
    oracle = result.violation.oracle
    best, overrides, runs = result, [], 0
    seconds = max(1, -(-result.simulated // SECOND))
    if seconds * SECOND < result.options.duration:
        shorter = attrs.evolve(result.options, duration=seconds * SECOND)
        found = World(shorter).run()
        runs += 1
        if found.violation is not None and found.violation.oracle == oracle:
            best, overrides = found, [f"duration={seconds * SECOND}"]
    changed = True
    while changed and runs < RUNS_MAX:
        changed = False
        for flag, options in _steps(best.options):
            if runs >= RUNS_MAX:
                break
            found = World(options).run()
            runs += 1
            if found.violation is not None and found.violation.oracle == oracle:
                best = found
                overrides.append(flag)
                changed = True
                break
    return best, overrides


def override(options: Options, settings: list[str]) -> Options:
    """Options with ``name=value`` settings, as `shrink` prints them: ``faults.kill=0``, ``without=poll``."""
    for setting in settings:
        name, _, text = setting.partition("=")
        if name == "without":
            load = options.load
            weights = tuple(each for each in load.weights if each[0] != text)
            options = attrs.evolve(options, load=attrs.evolve(load, weights=weights))
            continue
        value = float(text) if "." in text else int(text)
        part, _, field = name.rpartition(".")
        if part:
            options = attrs.evolve(options, **{part: attrs.evolve(getattr(options, part), **{field: value})})
        else:
            options = attrs.evolve(options, **{name: value})
    return options
