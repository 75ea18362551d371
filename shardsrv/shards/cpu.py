"""Cores: which of them the process may use, how many shards there are, and which shard runs where.

Invariants: there are at least two shards, because shard 0 owns the metadata and the others own partitions; a shard is
bound to a core only where the allocation has a core for each, since two shards bound to one core are worse off than
free ones; a number of shards never depends on what is on disk. `plan` decides and is pure; the rest reads the kernel.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import attrs

from shardsrv.errors import ConfigurationError
from shardsrv.quantities import CpuAllocation

SHARDS_MIN = 2
SHARDS_MAX = 64
"""A ring from every shard to every other: at 64 shards and 256 KiB they are 1 GiB of address space."""


@attrs.frozen
class Machine:
    """What the kernel grants: `cores` of the affinity mask, a `quota` in cores, `nodes` of memory with their cores.

    `siblings` maps a core to the lowest core of the same physical one.
    """

    cores: tuple[int, ...]
    quota: float | None = None
    nodes: tuple[tuple[int, ...], ...] = ()
    siblings: tuple[tuple[int, int], ...] = ()


@attrs.frozen
class CpuPlan:
    """`pins` has for each shard the core it is bound to, or None; `reason` says why nothing is bound."""

    shard_count: int
    pins: tuple[int | None, ...]
    reason: str = ""


def plan(allocation: CpuAllocation, machine: Machine, *, shards: int | None = None, pin: bool = True) -> CpuPlan:
    """Number of shards and their cores.

    Args:
        allocation: what the configuration says.
        machine: what the kernel grants.
        shards: number given by the operator, which wins over the allocation.
        pin: whether shards may be bound at all.

    Raises:
        ConfigurationError: no core of the allocation exists, or `shards` is outside 2..64.
    """
    wanted = _wanted(allocation, machine)
    cores = [core for core in wanted if core in machine.cores]
    if not cores:
        raise ConfigurationError(
            "system.sharding.cpu_allocation",
            allocation.text,
            f"none of these cores is granted to this process, which has {_listed(machine.cores)}",
        )
    if shards is not None and not SHARDS_MIN <= shards <= SHARDS_MAX:
        raise ConfigurationError("--shards", shards, f"it must lie in {SHARDS_MIN} .. {SHARDS_MAX}")
    granted = len(wanted) if machine.quota is None else min(len(wanted), max(1, math.floor(machine.quota)))
    count = shards or min(max(granted, SHARDS_MIN), SHARDS_MAX)
    free = (None,) * count
    if not pin:
        return CpuPlan(count, free, "system.sharding.pin_cores is false")
    if len(cores) < count:
        return CpuPlan(count, free, f"{count} shards share {len(cores)} cores")
    if machine.quota is not None and machine.quota < count:
        return CpuPlan(count, free, f"{count} shards share a quota of {machine.quota:g} cores")
    return CpuPlan(count, tuple(cores[:count]))


def _wanted(allocation: CpuAllocation, machine: Machine) -> list[int]:
    """Cores in the order in which shards take them; a count may go past the machine, then cores repeat in effect."""
    if allocation.first is not None and allocation.last is not None:
        return list(range(allocation.first, allocation.last))
    if allocation.count is not None:
        beyond = range(max(machine.cores) + 1, max(machine.cores) + 1 + allocation.count)
        return [*machine.cores, *beyond][: allocation.count]
    if allocation.nodes is not None:
        return _of_nodes(allocation, machine)
    return list(machine.cores)


def _of_nodes(allocation: CpuAllocation, machine: Machine) -> list[int]:
    physical = dict(machine.siblings)
    cores: list[int] = []
    for node in allocation.nodes or ():
        if node >= len(machine.nodes):
            continue
        usable = [core for core in machine.nodes[node] if core in machine.cores]
        if allocation.no_ht:
            usable = [core for core in usable if physical.get(core, core) == core]
        cores += usable[: allocation.per_node]
    return cores


def _listed(cores: tuple[int, ...]) -> str:
    return (
        "cores " + ", ".join(map(str, cores)) if len(cores) <= 8 else f"{len(cores)} cores, {cores[0]} to {cores[-1]}"
    )


# --- the kernel ------------------------------------------------------------------------------------------------------


def this_machine() -> Machine:
    """What the kernel grants to this process now."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    siblings = []
    for core in cores:
        text = _read(Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"))
        siblings.append((core, min(parse_core_list(text), default=core)))
    return Machine(cores, cgroup_quota(), _nodes(cores), tuple(siblings))


def _nodes(cores: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    nodes = []
    for number in range(1024):
        text = _read(Path(f"/sys/devices/system/node/node{number}/cpulist"))
        if not text:
            break
        nodes.append(parse_core_list(text))
    return tuple(nodes) or (cores,)


def parse_core_list(text: str) -> tuple[int, ...]:
    """Cores of the kernel's list format, ``0-3,8``."""
    cores: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            cores += range(int(first), int(last or first) + 1)
    return tuple(cores)


def cgroup_quota(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> float | None:
    """Cores that the control group grants, the lowest of this group and its parents; None without a limit."""
    quotas = []
    for line in _read(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "cpu" if controllers else root
        for folder in [path, *map(str, Path(path).parents)]:
            quotas += _quota_of(base / folder.lstrip("/"))
    return min(quotas, default=None)


def _quota_of(folder: Path) -> list[float]:
    """The quota of one group: ``cpu.max`` holds "quota period" (unified), else two files (version 1)."""
    words = _read(folder / "cpu.max").split()
    if not words:
        words = [_read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()]
    if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal() and int(words[1]):
        return [int(words[0]) / int(words[1])]
    return []


def _read(path: Path) -> str:
    """The text of a kernel file, or "" where this kernel does not have it."""
    try:
        return path.read_text()
    except OSError:
        return ""
