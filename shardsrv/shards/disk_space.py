"""Space on the disk for messages: sends are refused while less than a reserve is free, before a write fails.

A write that fails for want of space fences its partition until the next start. The reserve keeps that from happening
by our own writes, and is what metadata, consumer offsets, checkpoints and deletions go on with on a full disk.
Invariant: what is admitted between two looks at the file system is at most `LOOK_BYTES`, or one larger request, for
each shard; the reserve covers that of all shards.
"""

import os
from collections.abc import Callable

LOOK_BYTES = 4 << 20
"""Bytes that are admitted on one look at the file system."""
RESERVE_BYTES = 16 << 20
"""Bytes that stay free for everything but messages."""
ENTRY_BYTES = 512
"""Bytes of an entry beside its body: header, share of an index and of a file system's block."""


def free_bytes(path: str) -> int:
    """Bytes that this process may still write below ``path``. Raises `OSError`."""
    facts = os.statvfs(path)
    return facts.f_bavail * facts.f_frsize


class DiskSpace:
    """Admits the messages of one shard of ``shard_count`` on the file system of ``path``."""

    def __init__(self, path: str, shard_count: int, look: Callable[[str], int] = free_bytes) -> None:
        self._path = path
        self._look = look
        self._reserve = RESERVE_BYTES + shard_count * LOOK_BYTES
        self._left = 0

    def admits(self, size: int) -> bool:
        """Whether an entry with a body of ``size`` bytes may be written; it then counts as written. A file
        system that cannot be asked is written to: then the write says what is wrong with it."""
        needed = size + ENTRY_BYTES
        if needed > self._left:
            try:
                free = self._look(self._path) - self._reserve
            except OSError:
                return True
            if free < needed:
                self._left = 0
                return False
            self._left = min(free, max(LOOK_BYTES, needed))
        self._left -= needed
        return True
