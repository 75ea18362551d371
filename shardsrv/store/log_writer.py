"""Writing an open log: entries are gathered, written with one call a file, and rolled into segments by their size.

Invariants: an entry is taken only behind the one before it; readers see what a flush has written and nothing earlier; a
flush that fails leaves the files as they were, or fences the log.
"""

from __future__ import annotations

import errno
from typing import Final

from shardsrv._core import Prepare
from shardsrv.errors import DiskFault, OurFault
from shardsrv.store._disk import INDEXED, UNCHAINED, EntryRun
from shardsrv.store.descriptors import DescriptorPool
from shardsrv.store.disk import Disk, OsDisk, disk_fault, write_all
from shardsrv.store.faults import LogFenced
from shardsrv.store.index import IndexCache, SparseIndex
from shardsrv.store.log_files import segment_path
from shardsrv.store.log_reader import LogReader
from shardsrv.store.segment import SEGMENT_HEADER, GroupIdentity, Segment, SegmentHeader

CLOSED: Final = "closed"
"""Why a closed log takes nothing more."""

_NO_RESERVATION: Final = (errno.EOPNOTSUPP, errno.ENOSYS)
"""File systems that cannot reserve space: the log works without."""


class LogWriter(LogReader):
    """The writing half of `PrepareLog`. `head_op`, `head_checksum` and `next_offset` are those of flushed entries."""

    __slots__ = (
        "_direct",
        "_directory_dirty",
        "_dirty",
        "_fence",
        "_head_full",
        "_preallocate",
        "_purges",
        "_run",
        "_runs",
        "_segment_size",
        "next_offset",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        identity: GroupIdentity,
        pool: DescriptorPool,
        indexes: IndexCache,
        segment_size: int,
        preallocate: bool,
    ) -> None:
        super().__init__(disk, directory, identity, pool, indexes)
        self._segment_size = segment_size
        self._preallocate = preallocate
        self._direct = type(disk) is OsDisk
        self._fence: str | None = None
        self.next_offset = 0
        self._head_full = True
        # What is appended and not flushed: the runs in order, and the one that takes the next entry.
        self._runs: list[EntryRun] = []
        self._run: EntryRun | None = None
        self._dirty: dict[int, Segment] = {}
        self._directory_dirty = False
        # Purges that took effect, (op, generation), oldest first: the last is `floor_op`; a cut takes some back.
        self._purges: list[tuple[int, int]] = []

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not flushed, headers of new segments left out."""
        return sum(run.end - max(run.start, SEGMENT_HEADER) for run in self._runs)

    def append(self, prepare: Prepare) -> None:
        """Buffer the next entry; its body must stay as it is until `flush`. Nothing reaches the disk here.

        Raises:
            OurFault: it does not chain to the entry before it.
            LogFenced: the log takes nothing more.
        """
        run = self._run
        if run is None:
            run = self._begin_run()
        flags = run.add(prepare)
        if flags:
            self._added(run, prepare, flags)

    def _added(self, run: EntryRun, prepare: Prepare, flags: int) -> None:
        """The rarer outcomes of an append."""
        if flags == UNCHAINED:
            raise OurFault(
                f"{self.directory}: op {prepare.op} with parent 0x{prepare.parent:016x} appended behind op {run.op} "
                f"with identity 0x{run.checksum:016x}"
            )
        if flags & INDEXED:
            index = run.segment.index
            index.add(run.last_offset, prepare.timestamp, prepare.op, run.last_position)
            run.index_due = index.due
        if run.ended:
            self._run = None

    def _begin_run(self) -> EntryRun:
        """The run that takes the next entry: in the active segment, or in a new one."""
        if self._fence is not None:
            raise LogFenced(self.directory, self._fence)
        before = self._runs[-1] if self._runs else None
        if before is None and not self._head_full:
            segment = self._segments[-1]
            if segment.index is None:
                segment.index = self._index(segment)
            run = self._new_run(segment, segment.size, None, None)
        else:
            op, checksum = (self.head_op, self.head_checksum) if before is None else (before.op, before.checksum)
            offset = self.next_offset if before is None else before.next_offset
            header = SegmentHeader(op + 1, checksum, offset)
            segment = Segment(segment_path(self.directory, op + 1), header, 0, 0, SparseIndex())
            run = self._new_run(segment, 0, header.encode(self.identity), before)
        self._runs.append(run)
        self._run = run
        return run

    def _new_run(self, segment: Segment, start: int, head: bytes | None, before: EntryRun | None) -> EntryRun:
        assert segment.index is not None
        due, size = segment.index.due, self._segment_size
        if before is None:
            op, checksum, offset = self.head_op, self.head_checksum, self.next_offset
            floor, generation = self._purges[-1] if self._purges else (0, 0)
        else:
            op, checksum, offset = before.op, before.checksum, before.next_offset
            floor, generation = before.floor_op, before.generation
        return EntryRun(segment, start, head, op, checksum, offset, floor, generation, due, size)

    def flush(self) -> None:
        """Write everything that is buffered: one vectored write a file.

        Raises:
            DiskFull, WriteFailed: nothing of it was taken: the files were cut back and the head is as before.
            LogFenced: the files could not be cut back, or the log was fenced before.
        """
        runs = self._runs
        if not runs or runs[0].end == runs[0].start:
            return
        if self._fence is not None:
            raise LogFenced(self.directory, self._fence)
        run = runs[0]
        try:
            for run in runs:
                segment = run.segment
                handle = segment.handle
                if handle < 0:
                    handle = self._open_segment(segment)
                if self._direct:
                    run.write(handle)
                else:
                    write_all(self._disk, handle, run.buffers(), run.start, run.end - run.start)
        except OSError as error:
            raise self._take_back(run, error) from error
        for run in runs:
            segment = run.segment
            if run.start == 0:
                self._segments.append(segment)
                self._firsts.append(segment.first_op)
                self._bases.append(segment.header.base_offset)
                self._directory_dirty = True
            segment.size = run.end
            self._dirty[segment.first_op] = segment
        self.head_op = run.op
        self.head_checksum = run.checksum
        self.next_offset = run.next_offset
        self._head_full = run.ended
        if run.ended or len(runs) > 1:
            for done in runs:
                if done.floor_op > self.floor_op:
                    self.floor_op = done.floor_op
                    self._purges.append((done.floor_op, done.generation))
            self._runs = [] if run.ended else [run]
            for done in runs:
                if done.ended:
                    self._seal(done.segment)
        run.settle()

    def _settled(self) -> bool:
        """True when nothing is buffered."""
        return not self._runs or self._runs[0].end == self._runs[0].start

    def _discard(self) -> None:
        """Forget what is buffered, and the run that would go on in the active segment."""
        self._runs = []
        self._run = None

    def _seal(self, segment: Segment) -> None:
        """A segment takes no more entries: its index goes to a file and to the cache of sealed ones."""
        if segment.index is not None:
            self._save_index(segment, segment.index)
            self._indexes.put(segment.path, segment.index)
            segment.index = None

    def _open_segment(self, segment: Segment) -> int:
        """A handle for writing; a new segment's file is made, and its space reserved if wanted. Raises `OSError`."""
        if segment.size:
            segment.handle = self._disk.open_write(segment.path)
            return segment.handle
        segment.handle = self._disk.open_write(segment.path, exclusive=True)
        if self._preallocate:
            try:
                self._disk.fallocate(segment.handle, 0, self._segment_size)
            except OSError as error:
                if error.errno not in _NO_RESERVATION:
                    raise
        return segment.handle

    def _take_back(self, failed: EntryRun, error: OSError) -> DiskFault:
        """Undo a flush that failed at ``failed``: new files go, the boundary is cut. Fences when that fails too."""
        fault = disk_fault(error, failed.segment.path, "append", needed=failed.end - failed.start)
        try:
            for run in reversed(self._runs):
                segment = run.segment
                if run.start == 0:
                    if segment.handle >= 0:
                        self._disk.close(segment.handle)
                        segment.handle = -1
                        self._disk.unlink(segment.path)
                else:
                    segment.index.cut(run.start)
                    if segment.handle >= 0:
                        self._disk.truncate(segment.handle, run.start)
        except OSError as second:
            self.fence(f"{fault}; taking the write back failed with errno {second.errno}")
            fault = LogFenced(self.directory, self._fence or "")
        self._discard()
        return fault

    def fence(self, reason: str) -> None:
        """Take nothing more from now on; the first reason stays. May be called from the thread of a sync."""
        if self._fence is None:
            self._fence = reason
            self._run = None

    @property
    def closed(self) -> bool:
        """Whether its owner closed the log while it was whole."""
        return self._fence == CLOSED

    @property
    def fenced(self) -> str | None:
        """Why the log takes nothing more; None when it does."""
        return self._fence
