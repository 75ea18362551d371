"""How a node whose data directory is gone for good comes back: as somebody new, by its operator's word.

A node that forgot what it promised must not vote as if it had not: each data directory has a number from its birth, and
the other nodes refuse one that they do not know (`bus.handshake.Births`). ``shardsrv recover`` sets aside what is left
of the directory and begins it anew with a number that says so, ``metadata/forgotten`` (16 hex digits and a line end).

Invariants:

* a crash at any point of `begin_anew` leaves a directory that starts as it was, does not start, or is refused by the
  others, never one that they take for the old one; doing it again completes it;
* while the file is there every group begins as one that lost everything: it denies nothing, counts in no quorum, and
  leads nothing, until it holds what the others have;
* the file goes when the metadata is trusted again and the superblock says up to which entry partitions were made
  anew: from then on a missing directory is a lost one, as on any node.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from shardsrv.bus.handshake import ANEW
from shardsrv.errors import ConfigurationError, Unreadable
from shardsrv.shards.directory import IDENTITY, LOCK, NOT_COUNTED, ClaimedDirectory
from shardsrv.store.disk import Disk, OsDisk, disk_fault, read_all, replace_file
from shardsrv.store.layout import FORGOTTEN, DataDirectory

KEPT = "before-recover-"
"""What was in the directory goes below this name and a number."""

_KEEPS = (LOCK, IDENTITY, "ballast", "logs", *NOT_COUNTED)
"""What stays: none of it says anything of what the node promised."""
_BYTES_MAX = 64


def begin_anew(path: Path, cluster: str, node: int) -> str | None:
    """Make the data directory of node ``node`` one that forgot everything; it may be missing. Returns where what it
    held is kept, None when it held nothing.

    Raises:
        DataDirectoryForeign, DataDirectoryLocked, ConfigurationError, Unreadable, UnsupportedVersion: as
            `ClaimedDirectory.open`.
        DiskFault: the file could not be made durable.
    """
    claimed = ClaimedDirectory.open(path, cluster=cluster, node=node)
    try:
        kept = _set_aside(claimed.path)
        disk = OsDisk()
        directory = DataDirectory(str(claimed.path))
        disk.mkdir(directory.metadata)
        birth = ANEW | time.time_ns() // 1000
        replace_file(disk, directory.metadata, FORGOTTEN, [f"{birth:016x}\n".encode()])
        disk.fsync_dir(directory.root)
    except OSError as error:
        reason = f"it cannot be begun anew: {error.strerror} ({error.filename})"
        raise ConfigurationError("system.path", str(path), reason) from error
    finally:
        claimed.close()
    return kept


def _set_aside(root: Path) -> str | None:
    """Move what a node wrote below one name; folders that hold nothing are no loss."""
    names = [name for name in sorted(os.listdir(root)) if name not in _KEEPS and not name.startswith(KEPT)]
    held = [name for name in names if not (root / name).is_dir() or any((root / name).iterdir())]
    if not held:
        return None
    numbers = [name.removeprefix(KEPT) for name in os.listdir(root) if name.startswith(KEPT)]
    number = 1 + max((int(text) for text in numbers if text.isdecimal()), default=0)
    target = root / f"{KEPT}{number}"
    target.mkdir()
    for name in held:
        (root / name).rename(target / name)
    return str(target)


def forgotten_birth(disk: Disk, directory: DataDirectory) -> int | None:
    """The number of a directory that was begun anew and has not come back yet; None for any other. Raises
    `Unreadable`, `DiskFault`."""
    if not disk.exists(directory.forgotten):
        return None
    text = read_all(disk, directory.forgotten, _BYTES_MAX)
    try:
        return int(text, 16)
    except ValueError as error:
        raise Unreadable(directory.forgotten, f"it is no number: {error}") from error


def came_back(disk: Disk, directory: DataDirectory) -> None:
    """The node holds again what the others have: it is a member like any other. Raises `DiskFault`."""
    try:
        disk.unlink(directory.forgotten)
        disk.fsync_dir(directory.metadata)
    except OSError as error:
        raise disk_fault(error, directory.forgotten, "unlink") from error
