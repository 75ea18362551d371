"""Open descriptors of sealed segments, for readers: a bounded pool, one per shard.

Invariants: a descriptor in here belongs to the pool alone and has nothing unsynced behind it, so closing it at any time
loses nothing; whoever unlinks a file calls `forget` first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from shardsrv.errors import DiskFault
from shardsrv.store.disk import READ, Disk, disk_fault

DEFAULT_LIMIT: Final = 64
"""Descriptors per shard: far above the sealed segments that are read at once, far below the limit of open files."""


class DescriptorPool:
    """Least recently used goes first."""

    def __init__(self, disk: Disk, limit: int = DEFAULT_LIMIT) -> None:
        self._disk = disk
        self._limit = limit
        self._held: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, path: str) -> int:
        """A handle for reading ``path``, opened if need be. Raises `DiskFault`."""
        handle = self._held.get(path)
        if handle is not None:
            self._held.move_to_end(path)
            return handle
        try:
            handle = self._disk.open_read(path)
        except OSError as error:
            raise self._fault(error, path) from error
        self.put(path, handle)
        return handle

    @staticmethod
    def _fault(error: OSError, path: str) -> DiskFault:
        return disk_fault(error, path, READ)

    def put(self, path: str, handle: int) -> None:
        """Take over an open handle of ``path``."""
        self.forget(path)
        self._held[path] = handle
        while len(self._held) > self._limit:
            _, oldest = self._held.popitem(last=False)
            self._disk.close(oldest)

    def forget(self, path: str) -> None:
        """Close the handle of ``path``, if held."""
        handle = self._held.pop(path, None)
        if handle is not None:
            self._disk.close(handle)

    def close(self) -> None:
        """Close everything."""
        while self._held:
            _, handle = self._held.popitem()
            self._disk.close(handle)
