"""The read-only walk over a log at start: what is there, and where and how it stops being whole.

Invariants: nothing is modified in here; the chain is followed across segment borders, so that a break between files is
found as one inside a file; what lies behind a bad place is looked for before anything is concluded from its absence.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import attrs

from shardsrv import _core
from shardsrv._core import Prepare, scan_log
from shardsrv.errors import Damaged
from shardsrv.store.disk import READ, Disk, disk_fault, read_exact
from shardsrv.store.faults import LogForeign
from shardsrv.store.index import SparseIndex
from shardsrv.store.log_files import CHUNK, list_segments, load_index, segment_path
from shardsrv.store.recovery import Shape
from shardsrv.store.segment import (
    PURGE_PARTITION,
    SEGMENT_HEADER,
    SEND_MESSAGES,
    GroupIdentity,
    Segment,
    SegmentHeader,
    check_identity,
    decode_header,
)

_BATCH: Final = struct.Struct("<Q32xI")
"""At byte 8 of a batch: base_offset u64; at byte 48: message count u32."""
_AT_BATCH: Final = 8
_CLUSTER_AT: Final = 32
_VERDICTS: Final = {
    _core.SHORT: "is cut short",
    _core.BAD_HEADER: "has a header that does not hold",
    _core.BAD_BODY: "has a body that does not match its checksum",
    _core.BAD_IDENTITY: "has an identity that does not hold",
    _core.BAD_CHAIN: "does not chain to the entry before it",
    _core.ZERO: "is zeros",
}


def batch_range(body: memoryview) -> tuple[int, int]:
    """(base offset, message count) of a stored batch; ``body`` holds at least its first 52 bytes."""
    return _BATCH.unpack_from(body, _AT_BATCH)  # type: ignore[return-value]


def purge_generation(body: memoryview) -> int:
    """The generation in the body of a purge; 0, which purges nothing, for a body that has none."""
    return int.from_bytes(body[:8], "little")


@attrs.frozen
class ResumePoint:
    """From where the owner's state goes on: its checkpoint or snapshot covers ``op`` with identity ``checksum``.

    ``next_offset``: the next message offset then (0 on metadata). ``op`` is at or below the synced frontier: a
    checkpoint of what could still be lost must not be made. ``purge_op`` and ``purge_generation``: the last purge that
    took effect, 0 for none.
    """

    op: int
    checksum: int
    next_offset: int = 0
    purge_op: int = 0
    purge_generation: int = 0


@attrs.frozen
class Damage:
    """The first place that is not whole: the entry of ``op`` should begin at byte ``position`` of segment
    ``first_op``."""

    op: int
    first_op: int
    position: int
    shape: Shape
    detail: str


@attrs.define
class Walk:
    """What was found. Segments end where the whole entries end; `firsts` and `sizes` are those of all files."""

    segments: list[Segment] = attrs.Factory(list)
    firsts: list[int] = attrs.Factory(list)
    sizes: dict[int, int] = attrs.Factory(dict)
    head_op: int = 0
    head_checksum: int = 0
    next_offset: int = 0
    purges: list[tuple[int, int]] = attrs.Factory(list)
    last_operation: int = 0
    synced_checksum: int = 0
    replayed: int = 0
    scanned_bytes: int = 0
    unsynced_at: tuple[int, int] | None = None
    damage: Damage | None = None


class LogWalker:
    """Walks once: `run()`."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        identity: GroupIdentity,
        resume: ResumePoint | None,
        synced_op: int,
        synced_checksum: int,
        check_body: bool,
        on_prepare: Callable[[Prepare], object] | None,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._identity = identity
        self._resume = resume
        self._synced_op = synced_op
        self._synced_checksum = synced_checksum
        self._check_body = check_body
        self._on_prepare = on_prepare
        self._firsts: list[int] = []
        self._contradicted = False
        self.walk = Walk()

    def run(self) -> Walk:
        """Walk from the segment of the resume point to the end, or to the first damage.

        Raises:
            LogForeign: a segment of another cluster, group or life.
            UnsupportedVersion: a segment of another format version.
            Unreadable: a file cannot be read.
        """
        walk, resume = self.walk, self._resume
        self._firsts = walk.firsts = list_segments(self._disk, self._directory)
        if resume is not None:
            walk.head_op, walk.head_checksum, walk.next_offset = resume.op, resume.checksum, resume.next_offset
            walk.synced_checksum = resume.checksum
            if resume.purge_op:
                walk.purges.append((resume.purge_op, resume.purge_generation))
        if not self._firsts:
            return walk
        start = self._start_segment()
        for number, first_op in enumerate(self._firsts):
            segment = self._open_segment(first_op)
            if segment is None:
                return walk
            if number < start:
                segment.size = walk.sizes[first_op]
                walk.segments.append(segment)
                continue
            if not self._enter(number, start, segment) or not self._scan(number, start, segment):
                return walk
        if resume is not None and walk.head_op == resume.op:
            walk.next_offset = resume.next_offset
        return walk

    def _start_segment(self) -> int:
        """Number of the segment in which the entry of the resume point lies, or that begins behind it; else the
        first."""
        if self._resume is None:
            return 0
        reached = [number for number, first_op in enumerate(self._firsts) if first_op <= self._resume.op + 1]
        return reached[-1] if reached else 0

    def _read(self, handle: int, path: str, position: int, length: int) -> memoryview:
        buffer = memoryview(bytearray(length))
        try:
            return buffer[: read_exact(self._disk, handle, buffer, position)]
        except OSError as error:
            raise disk_fault(error, path, READ) from error

    def _open(self, path: str) -> int:
        try:
            return self._disk.open_read(path)
        except OSError as error:
            raise disk_fault(error, path, READ) from error

    def _open_segment(self, first_op: int) -> Segment | None:
        """The segment with a checked header; None after recording damage."""
        path = segment_path(self._directory, first_op)
        size = self.walk.sizes[first_op] = self._size(path)
        handle = self._open(path)
        try:
            data = self._read(handle, path, 0, SEGMENT_HEADER)
        finally:
            self._disk.close(handle)
        try:
            identity, header = decode_header(bytes(data), path)
            check_identity(identity, self._identity, path)
            if header.first_op != first_op:
                raise LogForeign(path, first_op, header.first_op, "first_op")
        except Damaged as damage:
            verdict = _core.SHORT if size < SEGMENT_HEADER else _core.BAD_HEADER
            self._damage(first_op, first_op, 0, verdict, f"the segment header does not hold ({damage})")
            return None
        return Segment(path, header)

    def _size(self, path: str) -> int:
        try:
            return self._disk.size(path)
        except OSError as error:
            raise disk_fault(error, path, READ) from error

    def _enter(self, number: int, start: int, segment: Segment) -> bool:
        """Check the border before ``segment``; False after recording damage."""
        walk, resume, header = self.walk, self._resume, segment.header
        if number == start and (resume is None or header.first_op <= resume.op):
            if resume is None and header.first_op != 1:
                detail = f"the log begins at op {header.first_op} and there is no checkpoint of what was before"
                self._gap(1, header.first_op, detail)
                return False
            walk.head_op, walk.head_checksum = header.first_op - 1, header.parent
            walk.next_offset = header.base_offset
            return True
        expected = walk.head_op + 1
        if header.first_op > expected and number == start:
            detail = f"the entries of ops {expected}..{header.first_op - 1}, behind the checkpoint, are missing"
            self._gap(expected, header.first_op, detail)
            return False
        if header.first_op > expected:
            detail = f"the entries of ops {expected}..{header.first_op - 1} are missing"
            self._damage(expected, header.first_op, 0, _core.BAD_HEADER, detail)
            return False
        if header.first_op < expected:
            detail = f"a segment begins at op {header.first_op} although the entries before it end at op {walk.head_op}"
            self._record(expected, header.first_op, 0, Shape.CHAIN, detail)
            return False
        if header.parent != walk.head_checksum:
            detail = (
                f"op {header.first_op} does not chain to op {walk.head_op}: the border of the segments does not hold"
            )
            self._record(expected, header.first_op, 0, Shape.CHAIN, detail)
            return False
        return True

    def _seek(self, handle: int, segment: Segment, size: int) -> int:
        """Where to begin in the segment of the resume point: at an indexed entry if there is one, else behind the
        header."""
        assert self._resume is not None
        index = load_index(self._disk, self._directory, segment.first_op, size)
        position = index.by_op(self._resume.op) if index is not None else None
        if index is None or position is None:
            return SEGMENT_HEADER
        index.cut(position + 1)
        try:
            header = Prepare.load_header(self._read(handle, segment.path, position, SEGMENT_HEADER), 0)
        except Damaged:
            return SEGMENT_HEADER
        if header.op != index.ops[-1]:
            return SEGMENT_HEADER
        self.walk.head_op, self.walk.head_checksum = header.op - 1, header.parent
        # The entry itself comes again in the scan, so its index entry goes.
        index.cut(position)
        segment.index = index
        return position

    def _scan(self, number: int, start: int, segment: Segment) -> bool:
        """Scan a segment; False after recording damage."""
        walk = self.walk
        size = walk.sizes[segment.first_op]
        segment.index = SparseIndex()
        handle = self._open(segment.path)
        try:
            position, needed = SEGMENT_HEADER, 0
            if number == start and self._resume is not None and segment.first_op <= self._resume.op:
                position = self._seek(handle, segment, size)
            walk.segments.append(segment)
            segment.size = position
            while position < size:
                chunk = self._read(handle, segment.path, position, min(max(CHUNK, needed), size - position))
                base = position
                segment_chunk = self._visitor(segment, base)
                scan = scan_log(chunk, 0, walk.head_checksum, walk.head_op + 1, segment_chunk, self._check_body)
                walk.scanned_bytes += scan.position
                position = segment.size = base + scan.position
                if self._contradicted:
                    return False
                if scan.verdict == _core.VALID:
                    continue
                needed = scan.needed
                if scan.verdict == _core.SHORT and base + len(chunk) < size and needed <= size - position:
                    continue
                self._damage(walk.head_op + 1, segment.first_op, position, scan.verdict, "")
                return False
        finally:
            self._disk.close(handle)
        return True

    def _visitor(self, segment: Segment, base: int) -> Callable[[Prepare, int], None]:
        walk, index, resume_op = self.walk, segment.index, self._resume.op if self._resume is not None else 0
        assert index is not None

        def visit(prepare: Prepare, at: int) -> None:
            op, operation = prepare.op, prepare.operation
            if self._contradicted:
                return
            if op == resume_op or op == self._synced_op:
                detail = self._contradiction(op, prepare.checksum)
                if detail:
                    self._record(op, segment.first_op, base + at, Shape.CHAIN, detail)
                    self._contradicted = True
                    return
                walk.synced_checksum = prepare.checksum
            if operation == SEND_MESSAGES:
                offset, count = batch_range(prepare.body)
                if base + at >= index.due:
                    index.add(offset, prepare.timestamp, op, base + at)
                walk.next_offset = offset + count
            elif operation == PURGE_PARTITION and self._purges(op, purge_generation(prepare.body)):
                walk.next_offset = 0
            walk.head_op, walk.head_checksum, walk.last_operation = op, prepare.checksum, operation
            if walk.unsynced_at is None and op > self._synced_op:
                walk.unsynced_at = (segment.first_op, base + at)
            if op > resume_op:
                walk.replayed += 1
                if self._on_prepare is not None:
                    self._on_prepare(prepare)

        return visit

    def _purges(self, op: int, generation: int) -> bool:
        """True when the purge of ``op`` took effect: one of a generation that is not newer changes nothing."""
        resume, purges = self._resume, self.walk.purges
        if resume is not None and op <= resume.op:
            return op == resume.purge_op
        if generation <= (purges[-1][1] if purges else 0):
            return False
        purges.append((op, generation))
        return True

    def _contradiction(self, op: int, checksum: int) -> str:
        """What is wrong when the entry of ``op`` is not the one that checkpoint or boot record know; empty when all
        is well."""
        resume = self._resume
        if resume is not None and op == resume.op and checksum != resume.checksum:
            return f"op {op} is not the entry that the checkpoint was made at"
        if op == self._synced_op and self._synced_checksum not in (0, checksum):
            return f"op {op} is not the entry that was synced last"
        return ""

    # --- damage ----------------------------------------------------------------------------------------------------

    def _record(self, op: int, first_op: int, position: int, shape: Shape, detail: str) -> None:
        self.walk.damage = Damage(op, first_op, position, shape, detail)

    def _gap(self, op: int, first_op: int, detail: str) -> None:
        """The first file begins behind ``op``. Head segments go oldest first and only after the checkpoint: of what was
        synced no lost write explains that. Names of new files that were not synced may be lost in any order."""
        if op <= self._synced_op:
            self._record(op, first_op, 0, Shape.CHAIN, detail)
        else:
            self._damage(op, first_op, 0, _core.BAD_HEADER, detail)

    def _damage(self, op: int, first_op: int, position: int, verdict: int, detail: str) -> None:
        """Classify the bytes at ``position`` of segment ``first_op`` and record them."""
        text = detail or f"op {op} {_VERDICTS[verdict]}"
        if verdict == _core.BAD_CHAIN:
            text = f"the log is damaged inside: op {op} does not chain to op {op - 1}"
            self._record(op, first_op, position, Shape.CHAIN, text)
            return
        later = self._firsts[self._firsts.index(first_op) + 1 :]
        skip_here = verdict == _core.SHORT
        found = None if skip_here else self._whole_entry(first_op, position + (position > 0), op)
        for other in later:
            found = found or self._whole_entry(other, 0, op)
        if found is not None:
            text = f"the log is damaged inside: {text}, and the whole entry of op {found} lies behind it"
            shape = Shape.BAD_INSIDE
        elif all(self._zeros(other, position if other == first_op else 0) for other in [first_op, *later]):
            shape = Shape.ZEROS if self.walk.sizes[first_op] > position else Shape.SHORT
        else:
            shape = Shape.SHORT if skip_here else Shape.BAD_LAST
        self._record(op, first_op, position, shape, text)

    def _length(self, first_op: int) -> int:
        if first_op not in self.walk.sizes:
            self.walk.sizes[first_op] = self._size(segment_path(self._directory, first_op))
        return self.walk.sizes[first_op]

    def _zeros(self, first_op: int, position: int) -> bool:
        path, size = segment_path(self._directory, first_op), self._length(first_op)
        handle = self._open(path)
        try:
            while position < size:
                chunk = bytes(self._read(handle, path, position, min(CHUNK, size - position)))
                if chunk.strip(b"\0"):
                    return False
                position += len(chunk)
        finally:
            self._disk.close(handle)
        return True

    def _whole_entry(self, first_op: int, position: int, from_op: int) -> int | None:
        """The op of a whole entry of this group at any byte from ``position`` on, looked for by its cluster id."""
        path, size = segment_path(self._directory, first_op), self._length(first_op)
        cluster = self._identity.cluster
        handle = self._open(path)
        try:
            while position + SEGMENT_HEADER <= size:
                chunk = bytes(self._read(handle, path, position, min(CHUNK, size - position)))
                at = chunk.find(cluster, _CLUSTER_AT)
                while at >= 0:
                    op = self._entry_at(handle, path, position + at - _CLUSTER_AT, size)
                    if op is not None and op >= from_op:
                        return op
                    at = chunk.find(cluster, at + 1)
                # Overlap, so that a cluster id across the border of two chunks is found.
                position += max(1, len(chunk) - _CLUSTER_AT - len(cluster) + 1)
        finally:
            self._disk.close(handle)
        return None

    def _entry_at(self, handle: int, path: str, position: int, size: int) -> int | None:
        head = self._read(handle, path, position, min(SEGMENT_HEADER, size - position))
        if Prepare.verify_header(head, 0) != _core.VALID:
            return None
        header = Prepare.load_header(head, 0)
        if header.group != self._identity.group or header.created_revision != self._identity.created_revision:
            return None
        if position + header.size > size:
            return None
        whole = self._read(handle, path, position, header.size)
        return header.op if Prepare.verify(whole, 0) == _core.VALID else None


__all__ = ["Damage", "LogWalker", "ResumePoint", "SegmentHeader", "Walk", "batch_range"]
