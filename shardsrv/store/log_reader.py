"""Reading an open log: where an offset, a time or an op is, and the bytes from there on.

Invariants: nothing beyond flushed bytes is read; a place is only a hint of where to begin: whoever walks from it skips
what it does not want; what lies at or below the last purge is never located; a segment that was dropped meanwhile reads
as empty, and `next_segment` leads on to the oldest that is left.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from shardsrv import _core
from shardsrv._core import Prepare
from shardsrv.errors import Damaged
from shardsrv.store.descriptors import DescriptorPool
from shardsrv.store.disk import READ, Disk, disk_fault, read_exact
from shardsrv.store.index import IndexCache, SparseIndex
from shardsrv.store.log_files import build_index, load_index, save_index, segment_path, walk_headers
from shardsrv.store.log_walk import batch_range
from shardsrv.store.segment import SEGMENT_HEADER, GroupIdentity, Position, Segment


class LogReader:
    """The reading half of `PrepareLog`."""

    __slots__ = (
        "_bases",
        "_disk",
        "_firsts",
        "_indexes",
        "_pool",
        "_segments",
        "directory",
        "floor_op",
        "head_checksum",
        "head_op",
        "identity",
        "index_failures",
    )

    def __init__(
        self, disk: Disk, directory: str, identity: GroupIdentity, pool: DescriptorPool, indexes: IndexCache
    ) -> None:
        self._disk = disk
        self.directory = directory
        self.identity = identity
        self._pool = pool
        self._indexes = indexes
        self._segments: list[Segment] = []
        self._firsts: list[int] = []
        self._bases: list[int] = []
        self.head_op = 0
        self.head_checksum = 0
        self.floor_op = 0
        self.index_failures = 0
        """Index files that could not be written or read: slower walks, nothing else."""

    # --- facts -----------------------------------------------------------------------------------------------------

    @property
    def first_op(self) -> int:
        """The first op held; head_op + 1 when none is."""
        return self._firsts[0] if self._firsts else self.head_op + 1

    @property
    def segment_count(self) -> int:
        """Files of the log."""
        return len(self._segments)

    @property
    def bytes(self) -> int:
        """Flushed bytes of all segments, headers included."""
        return sum(segment.size for segment in self._segments)

    @property
    def active_size(self) -> int:
        """Flushed bytes of the last segment; 0 when there is none."""
        return self._segments[-1].size if self._segments else 0

    def segments(self) -> list[tuple[int, int, int]]:
        """(first op, base offset, bytes) of each segment, in order: what retention decides on."""
        return [(segment.first_op, segment.header.base_offset, segment.size) for segment in self._segments]

    def segment_path(self, first_op: int) -> str:
        """The file of the segment ``first_op``."""
        return segment_path(self.directory, first_op)

    def last_timestamp(self, first_op: int) -> int:
        """Microseconds of the last entry of the sealed segment ``first_op``: less than that of the next segment's first
        entry.

        Raises:
            KeyError: no such segment, or it is the last one.
            Damaged, Unreadable: the segment does not hold.
        """
        number = self._number(first_op)
        if number is None or number + 1 >= len(self._segments):
            raise KeyError(first_op)
        segment = self._segments[number]
        start = self._index(segment).by_op(self._firsts[number + 1] - 1) or SEGMENT_HEADER
        last = 0
        for _, header, _ in walk_headers(self._disk, self._handle(segment), segment.path, start, segment.size, 0):
            last = header.timestamp
        return last

    # --- places ----------------------------------------------------------------------------------------------------

    def locate_offset(self, offset: int) -> Position:
        """Where a walk for message ``offset`` begins: at or before the batch that holds it, if the log still does."""
        low = bisect_right(self._firsts, self.floor_op)
        if low == len(self._segments):
            return self._end()
        segment = self._segments[max(low, bisect_right(self._bases, offset, low) - 1)]
        return Position(segment.first_op, self._index(segment).by_offset(offset) or SEGMENT_HEADER)

    def locate_time(self, timestamp: int) -> Position:
        """Where a walk for the first batch with a time at or after ``timestamp`` (microseconds) begins."""
        low, high = bisect_right(self._firsts, self.floor_op), len(self._segments)
        if low == high:
            return self._end()
        chosen = low
        low += 1
        while low < high:
            middle = (low + high) // 2
            if self._first_timestamp(self._segments[middle]) <= timestamp:
                chosen = middle
                low = middle + 1
            else:
                high = middle
        segment = self._segments[chosen]
        return Position(segment.first_op, self._index(segment).by_timestamp(timestamp) or SEGMENT_HEADER)

    def locate_op(self, op: int) -> Position:
        """Where a walk for the entry of ``op`` begins."""
        number = bisect_right(self._firsts, op) - 1
        if number < 0:
            return self._end() if not self._firsts else Position(self._firsts[0], SEGMENT_HEADER)
        segment = self._segments[number]
        return Position(segment.first_op, self._index(segment).by_op(op) or SEGMENT_HEADER)

    def _end(self) -> Position:
        return Position(self.head_op + 1, SEGMENT_HEADER)

    def _number(self, first_op: int) -> int | None:
        number = bisect_right(self._firsts, first_op) - 1
        return number if number >= 0 and self._firsts[number] == first_op else None

    # --- bytes -----------------------------------------------------------------------------------------------------

    def read_into(self, position: Position, buffer: Any) -> int:
        """Read from ``position`` into a writable buffer; 0 at the end of the segment's flushed bytes.

        Raises:
            Unreadable: the read failed.
            Damaged: the file is shorter than what was flushed.
        """
        number = self._number(position.segment)
        if number is None:
            return 0
        segment = self._segments[number]
        length = min(len(buffer), segment.size - position.byte)
        if length <= 0:
            return 0
        view = memoryview(buffer)[:length]
        try:
            handle = self._handle(segment)
            count = self._disk.preadv(handle, [view], position.byte)
            if count < length:
                count += read_exact(self._disk, handle, view[count:], position.byte + count)
        except OSError as error:
            raise disk_fault(error, segment.path, READ) from error
        if count < length:
            raise Damaged(segment.path, position.byte + count, None, length, count)
        return count

    def available(self, position: Position) -> int:
        """Flushed bytes from ``position`` to the end of its segment."""
        number = self._number(position.segment)
        return 0 if number is None else max(0, self._segments[number].size - position.byte)

    def next_segment(self, position: Position) -> Position | None:
        """The beginning of the segment behind that of ``position``; None at the end of the log."""
        number = bisect_right(self._firsts, position.segment)
        return Position(self._firsts[number], SEGMENT_HEADER) if number < len(self._firsts) else None

    def scan(self, from_op: int) -> Iterator[Prepare]:
        """The flushed entries from ``from_op`` on (from the first held, if that is later), each verified whole.

        Raises:
            Damaged: an entry does not hold, or does not follow.
            Unreadable: the read failed.
        """
        op = max(from_op, self.first_op)
        position: Position | None = self.locate_op(op)
        while position is not None and op <= self.head_op:
            length = self._entry_length(position)
            if length == 0:
                position = self.next_segment(position)
                continue
            prepare = self._load(position, length)
            if prepare.op >= op:
                if prepare.op != op:
                    raise Damaged(self._path(position), position.byte, op, op, prepare.op)
                yield prepare
                op += 1
            position = Position(position.segment, position.byte + length)

    def read_prepare(self, op: int) -> Prepare | None:
        """The entry of ``op``, verified whole; None when it is not held (dropped, not flushed, not there).

        Raises:
            Damaged, Unreadable: it should be held and cannot be trusted.
        """
        if not self.first_op <= op <= self.head_op:
            return None
        place = self.locate_op(op)
        number = self._number(place.segment)
        assert number is not None
        segment = self._segments[number]
        headers = walk_headers(self._disk, self._handle(segment), segment.path, place.byte, segment.size, 0)
        for byte, header, _ in headers:
            if header.op == op:
                return self._load(Position(place.segment, byte), header.size)
        raise Damaged(segment.path, place.byte, op, op, None)

    def _entry_length(self, position: Position) -> int:
        head = bytearray(SEGMENT_HEADER)
        if self.available(position) == 0:
            return 0
        count = self._fill(position, memoryview(head))
        verdict = Prepare.verify_header(memoryview(head)[:count], 0)
        if verdict != _core.VALID:
            raise Damaged(self._path(position), position.byte, None, _core.VALID, verdict)
        return Prepare.load_header(head, 0).size

    def _load(self, position: Position, length: int) -> Prepare:
        data = bytearray(length)
        count = self._fill(position, memoryview(data))
        try:
            return Prepare.load(memoryview(data)[:count], 0)
        except Damaged as damage:
            raise Damaged(self._path(position), position.byte, damage.op, damage.expected, damage.found) from damage

    def _fill(self, position: Position, buffer: memoryview) -> int:
        done = 0
        while done < len(buffer):
            count = self.read_into(Position(position.segment, position.byte + done), buffer[done:])
            if count == 0:
                break
            done += count
        return done

    def _path(self, position: Position) -> str:
        number = self._number(position.segment)
        return self.directory if number is None else self._segments[number].path

    # --- what a segment needs for reading --------------------------------------------------------------------------

    def _handle(self, segment: Segment) -> int:
        return segment.handle if segment.handle >= 0 else self._pool.get(segment.path)

    def _first_timestamp(self, segment: Segment) -> int:
        if segment.first_timestamp == 0 and segment.size > SEGMENT_HEADER:
            head = bytearray(SEGMENT_HEADER)
            try:
                read_exact(self._disk, self._handle(segment), memoryview(head), SEGMENT_HEADER)
            except OSError as error:
                raise disk_fault(error, segment.path, READ) from error
            segment.first_timestamp = Prepare.load_header(head, 0).timestamp
        return segment.first_timestamp

    def _index(self, segment: Segment) -> SparseIndex:
        """The index of a segment: held, cached, from its file, or made by a walk and written for the next time."""
        if segment.index is not None:
            return segment.index
        index = self._indexes.get(segment.path)
        if index is None:
            index = load_index(self._disk, self.directory, segment.first_op, segment.size)
            if index is None:
                index = build_index(self._disk, self._handle(segment), segment.path, segment.size, batch_range)
                self._save_index(segment, index)
            self._indexes.put(segment.path, index)
        return index

    def _save_index(self, segment: Segment, index: SparseIndex) -> None:
        """Write the index file. A failure only costs a walk later, so it is counted and told to nobody else."""
        try:
            save_index(self._disk, self.directory, segment.first_op, index)
        except OSError:
            self.index_failures += 1
