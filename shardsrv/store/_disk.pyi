"""The hot end of a log: entries gathered for one write. Interface; the implementation is ``_disk.pyx``."""

from typing import Any, Final

from shardsrv._core import Prepare

TAKEN: Final = 0
INDEXED: Final = 1
"""The entry is the first SendMessages at or behind `EntryRun.index_due`: `last_offset` and `last_position` are its
own."""
ENDED: Final = 2
"""The entry is the last of its segment."""
UNCHAINED: Final = 4
"""Refused: it does not follow the one before, or the segment has ended; nothing was changed."""

class EntryRun:
    """Entries buffered for one segment: bytes ``start``..``end`` of its file.

    ``op``, ``checksum``, ``next_offset``, and ``floor_op`` and ``generation`` of the last purge in effect, are those
    behind the last entry taken.
    """

    segment: Any
    index_due: int
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def op(self) -> int: ...
    @property
    def checksum(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def floor_op(self) -> int: ...
    @property
    def generation(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def last_position(self) -> int: ...
    @property
    def ended(self) -> bool: ...
    def __init__(
        self,
        segment: Any,
        start: int,
        head: bytes | None,
        op: int,
        checksum: int,
        next_offset: int,
        floor_op: int,
        generation: int,
        index_due: int,
        segment_size: int,
    ) -> None:
        """``head``: the segment header of a new file, written first; the other numbers are those before the first
        entry."""

    def add(self, prepare: Prepare) -> int:
        """Take the next entry as it is stored (in the view it was born in). Returns flags; its body must stay as it
        is."""

    def buffers(self) -> list[Any]:
        """What is to be written at ``start``, for disks that are not the operating system's."""

    def write(self, handle: int) -> None:
        """Write everything at ``start``: goes on after short writes, splits above 1,024 buffers. Raises `OSError`, and
        then an unknown prefix was written; the run is to be thrown away."""

    def settle(self) -> None:
        """What was buffered is written: go on behind it."""

def sync_files(handles: list[int]) -> tuple[int, int] | None:
    """Sync the data of every file, giving the interpreter away once for all of them.

    Returns: None, or (position in ``handles``, errno) of the first that failed; those behind it were not tried.
    """
