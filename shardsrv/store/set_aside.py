"""What is damaged is set aside, for its data to come again from peers: a partition's directory, the metadata log, the
snapshot.

Invariants: nothing is removed or changed (S1-02): it keeps its bytes under another name, ``<name>.damaged-<n>``, until
the partition is deleted or the operator removes it; the new name is durable before anything is made under the old one,
so a start after a power loss finds the damage, or nothing, and never a log that is half of each.

Only for a group of several members: without peers damage is refused. A promise (superblock, group table) is never
healed, and what a newer release wrote is not damage.
"""

from __future__ import annotations

from typing import Final

from shardsrv.store.disk import Disk, disk_fault, read_all, replace_file
from shardsrv.store.faults import CheckpointUnreadable, LogDamaged, LogForeign

_SUFFIX: Final = ".damaged-"

HEALED_BY_PEERS: Final = (LogDamaged, LogForeign, CheckpointUnreadable)
"""Refusals of one partition, or of the metadata log, that speak of data alone."""


def asides(disk: Disk, path: str) -> list[str]:
    """What was set aside of the directory ``path``, in order."""
    above, _, name = path.rpartition("/")
    if not disk.exists(above):
        return []
    numbers = [below.removeprefix(name + _SUFFIX) for below in disk.listdir(above) if below.startswith(name + _SUFFIX)]
    return [f"{path}{_SUFFIX}{number}" for number in sorted(int(number) for number in numbers if number.isdecimal())]


def set_aside(disk: Disk, path: str) -> str:
    """Give the directory ``path`` another name, durably. Returns it. Raises `DiskFault`."""
    target, action = f"{path}{_SUFFIX}{_next_number(disk, path)}", "rename"
    try:
        disk.rename(path, target)
        action = "sync"
        disk.fsync_dir(path.rpartition("/")[0])
    except OSError as error:
        raise disk_fault(error, path, action) from error
    return target


def copy_aside(disk: Disk, path: str, limit: int) -> str:
    """Keep the bytes of the file ``path`` (at most ``limit``) beside it, durably, so that it can be replaced. Returns
    the name of the copy. Raises `DiskFault`."""
    directory, _, name = path.rpartition("/")
    target = f"{name}{_SUFFIX}{_next_number(disk, path)}"
    replace_file(disk, directory, target, [read_all(disk, path, limit)])
    return f"{directory}/{target}"


def _next_number(disk: Disk, path: str) -> int:
    taken = asides(disk, path)
    return int(taken[-1].rpartition(_SUFFIX)[2]) + 1 if taken else 1
