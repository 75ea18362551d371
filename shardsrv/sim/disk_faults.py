"""Faults of a simulated disk drawn from a seed: installed as `SimDisk.on_call`, and counted, so that a run can tell
that each really occurred.

Invariant: equal sources and equal calls give equal faults; a call whose probability is 0 draws nothing.
"""

from __future__ import annotations

import errno
import os
import random

import attrs

from shardsrv.sim.disk import Call, SimDisk


def lose(disk: SimDisk, *paths: str) -> None:
    """Directories and files are gone, durably, behind the back of the process."""
    on_call, disk.on_call = disk.on_call, None
    for path in paths:
        if not disk.exists(path):
            continue
        try:
            disk.remove_tree(path)
        except NotADirectoryError:
            disk.unlink(path)
        disk.fsync_dir(path.rpartition("/")[0])
    disk.on_call = on_call


@attrs.define(eq=False)
class DiskFaults:
    """Probabilities for each call, 0 to 1; `enabled` turns all of them off and on. ``counts`` holds what was done, by
    name."""

    source: random.Random
    write_error: float = 0.0
    write_full: float = 0.0
    short_write: float = 0.0
    sync_error: float = 0.0
    read_error: float = 0.0
    enabled: bool = True
    counts: dict[str, int] = attrs.Factory(dict)

    def __call__(self, call: Call) -> int | None:
        if not self.enabled:
            return None
        if call.name == "pwritev":
            if self._happens("write_error", self.write_error):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if self._happens("write_full", self.write_full):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if call.length > 1 and self._happens("short_write", self.short_write):
                return self.source.randrange(1, call.length)
        elif call.name in ("fdatasync", "fsync_dir", "syncfs"):
            if self._happens("sync_error", self.sync_error):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        elif call.name == "preadv" and self._happens("read_error", self.read_error):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return None

    def _happens(self, name: str, probability: float) -> bool:
        if not probability or self.source.random() >= probability:
            return False
        self.counts[name] = self.counts.get(name, 0) + 1
        return True
