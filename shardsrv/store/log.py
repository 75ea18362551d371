"""The prepare log of one group: segments of prepares back to back, appended, synced, cut and dropped.

Invariants: entries chain (each names the identity of the one before, across files); what readers see ends at the last
flush; what is taken for durable ends at the last sync that succeeded; stored bytes never change; after a failed sync,
or a write whose rest could not be cut away, the log is fenced and takes nothing more. One owner, one thread; only
`SyncPlan.run` and `DropPlan.run` may run in another.

Order on disk: entries are written, then synced, then the directory that names a new file. A cut goes from the back and
is synced before the next append; head segments go from the front, one directory sync each, so that what is left is
always one unbroken run.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, Final

from shardsrv._core import Prepare
from shardsrv.errors import DiskFault, OurFault
from shardsrv.store.descriptors import DescriptorPool
from shardsrv.store.disk import Disk, disk_fault, write_all
from shardsrv.store.faults import LogFenced
from shardsrv.store.index import IndexCache, SparseIndex
from shardsrv.store.log_files import cut_suffix, index_path, load_index, segment_path, walk_headers
from shardsrv.store.log_opening import LogFacts, LogRecovery, recover
from shardsrv.store.log_reader import LogReader
from shardsrv.store.log_sync import SyncPlan
from shardsrv.store.log_walk import ResumePoint, Walk, batch_range
from shardsrv.store.segment import (
    PURGE_PARTITION,
    SEGMENT_HEADER,
    SEND_MESSAGES,
    GroupIdentity,
    Position,
    Segment,
    SegmentHeader,
    ends_segment,
)

_NO_SPACE_RESERVATION: Final = (errno.EOPNOTSUPP, errno.ENOSYS)


class _Run:
    """What is buffered for one segment: one write."""

    __slots__ = ("buffers", "end", "segment", "start")

    def __init__(self, segment: Segment, start: int, buffers: list[Any], end: int) -> None:
        self.segment = segment
        self.start = start
        self.buffers = buffers
        self.end = end


class DropPlan:
    """Head segments that are no longer part of the log; `run` (in a thread, if wanted) removes their files."""

    __slots__ = ("_directory", "_disk", "bytes", "first_ops")

    def __init__(self, disk: Disk, directory: str, first_ops: list[int], count: int) -> None:
        self._disk = disk
        self._directory = directory
        self.first_ops = first_ops
        self.bytes = count

    def run(self) -> None:
        """Remove the files, oldest first, each with its own directory sync.

        A file system may make the removal of two names durable in any order; with a sync between them a crash leaves a
        log that begins later, and never one with a hole. Idempotent: a second run removes what the first left.

        Raises:
            DiskFault: the step that failed.
        """
        for first_op in self.first_ops:
            path, action = segment_path(self._directory, first_op), "unlink"
            try:
                for path in (index_path(self._directory, first_op), segment_path(self._directory, first_op)):
                    if self._disk.exists(path):
                        self._disk.unlink(path)
                action = "sync"
                self._disk.fsync_dir(self._directory)
            except OSError as error:
                raise disk_fault(error, path, action) from error


class PrepareLog(LogReader):
    """See the module. `head_op`, `head_checksum` and `next_offset` are those of flushed entries."""

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        identity: GroupIdentity,
        *,
        segment_size: int,
        resume: ResumePoint | None = None,
        facts: LogFacts | None = None,
        on_prepare: Callable[[Prepare], None] | None = None,
        preallocate: bool = False,
        validate: bool = True,
        pool: DescriptorPool | None = None,
        indexes: IndexCache | None = None,
    ) -> tuple[PrepareLog, LogRecovery]:
        """Verify and open the log in ``directory``; an empty or missing one is a log without entries.

        Args:
            segment_size: bytes that end a segment.
            resume: what the owner's checkpoint covers; the walk begins there. None: the log must begin at op 1.
            facts: what the boot record knows.
            on_prepare: called with each entry above the resume point, in order, while walking. When opening is refused
            after
                all, what was told is void.
            preallocate: reserve the space of a segment when it is made.
            validate: check bodies also after a clean stop.
            pool, indexes: shared by the logs of a shard; own ones when None.

        Raises:
            LogDamaged: refused; nothing on disk was changed.
            LogForeign, UnsupportedVersion, Unreadable: not ours, not of this release, not readable; nothing was
            changed. DiskFault: a cut, or the rewrite of the unsynced tail, failed.
        """
        facts = facts or LogFacts()
        walk, recovery = recover(disk, directory, identity, resume, facts, validate, on_prepare)
        try:
            disk.mkdir(directory)
        except OSError as error:
            raise disk_fault(error, directory, "mkdir") from error
        pool = DescriptorPool(disk) if pool is None else pool
        log = cls(disk, directory, identity, pool, IndexCache() if indexes is None else indexes)
        log._segment_size = segment_size
        log._preallocate = preallocate
        log._adopt(walk, max(facts.synced_op, resume.op if resume is not None else 0))
        return log, recovery

    def __init__(
        self, disk: Disk, directory: str, identity: GroupIdentity, pool: DescriptorPool, indexes: IndexCache
    ) -> None:
        super().__init__(disk, directory, identity, pool, indexes)
        self._segment_size = 0
        self._preallocate = False
        self._fence: str | None = None
        self.next_offset = 0
        self.synced_op = 0
        self.synced_checksum = 0
        self.pending_bytes = 0
        # Head of what was appended and not yet flushed.
        self._tail_op = 0
        self._tail_checksum = 0
        self._tail_offset = 0
        self._tail_floor = 0
        self._tail_full = True
        self._head_full = True
        self._runs: list[_Run] = []
        self._run: _Run | None = None
        self._dirty: dict[int, Segment] = {}
        self._directory_dirty = False
        self._plans = 0
        self._epoch = 0
        self._retired: list[int] = []

    def _adopt(self, walk: Walk, synced_op: int) -> None:
        """Take over what the walk found."""
        self._segments = walk.segments
        self._firsts = [segment.first_op for segment in walk.segments]
        self._bases = [segment.header.base_offset for segment in walk.segments]
        self.head_op, self.head_checksum, self.next_offset = walk.head_op, walk.head_checksum, walk.next_offset
        self.floor_op = walk.floor_op
        last = self._segments[-1] if self._segments else None
        self._head_full = last is None or (
            last.size > SEGMENT_HEADER and ends_segment(last.size, self._segment_size, walk.last_operation)
        )
        for number, segment in enumerate(self._segments):
            sealed = number + 1 < len(self._segments) or self._head_full
            segment.synced = segment.size
            next_first = self._firsts[number + 1] if number + 1 < len(self._firsts) else self.head_op + 1
            if next_first - 1 > synced_op:
                segment.synced = 0
                self._dirty[segment.first_op] = segment
                self._directory_dirty = True
            if sealed and segment.index is not None:
                self._seal(segment)
        self.synced_op = min(self.head_op, synced_op)
        self.synced_checksum = self.head_checksum if self.synced_op == self.head_op else walk.synced_checksum
        self._rewind()

    def _rewind(self) -> None:
        """Forget what is appended and not flushed."""
        self._tail_op, self._tail_checksum = self.head_op, self.head_checksum
        self._tail_offset, self._tail_floor, self._tail_full = self.next_offset, self.floor_op, self._head_full
        self._runs.clear()
        self._run = None
        self.pending_bytes = 0

    # --- writing ---------------------------------------------------------------------------------------------------

    def append(self, prepare: Prepare) -> None:
        """Buffer the next entry; its body must stay as it is until `flush`. Nothing reaches the disk here.

        Raises:
            OurFault: it does not chain to the entry before it.
            LogFenced: the log takes nothing more.
        """
        if self._fence is not None:
            raise LogFenced(self.directory, self._fence)
        op = prepare.op
        if op != self._tail_op + 1 or prepare.parent != self._tail_checksum:
            raise OurFault(
                f"{self.directory}: op {op} with parent 0x{prepare.parent:016x} appended behind op {self._tail_op} "
                f"with identity 0x{self._tail_checksum:016x}"
            )
        if prepare.view != prepare.born_view:
            prepare = prepare.with_view(prepare.born_view)
        run = self._run or self._begin_run()
        position, size = run.end, prepare.size
        run.end = end = position + size
        run.buffers.append(prepare.header)
        operation = prepare.operation
        if size > 256:
            body = prepare.body
            run.buffers.append(body)
            if operation == SEND_MESSAGES:
                offset, count = batch_range(body)
                index = run.segment.index
                if position >= index.due:  # type: ignore[union-attr]
                    index.add(offset, prepare.timestamp, op, position)  # type: ignore[union-attr]
                self._tail_offset = offset + count
        self._tail_op = op
        self._tail_checksum = prepare.checksum
        self.pending_bytes += size
        if end >= self._segment_size or operation == PURGE_PARTITION:
            self._tail_full = True
            self._run = None
            if operation == PURGE_PARTITION:
                self._tail_offset, self._tail_floor = 0, op

    def _begin_run(self) -> _Run:
        if self._tail_full:
            header = SegmentHeader(self._tail_op + 1, self._tail_checksum, self._tail_offset, self._tail_floor)
            segment = Segment(segment_path(self.directory, header.first_op), header, 0, 0, SparseIndex())
            run = _Run(segment, 0, [header.encode(self.identity)], SEGMENT_HEADER)
            self._tail_full = False
        else:
            segment = self._segments[-1]
            if segment.index is None:
                segment.index = self._index(segment)
            run = _Run(segment, segment.size, [], segment.size)
        self._runs.append(run)
        self._run = run
        return run

    def flush(self) -> None:
        """Write everything that is buffered: one vectored write a file.

        Raises:
            DiskFull, WriteFailed: nothing of it was taken: the files were cut back and the head is as before.
            LogFenced: the files could not be cut back, or the log was fenced before.
        """
        runs = self._runs
        if not runs:
            return
        if self._fence is not None:
            raise LogFenced(self.directory, self._fence)
        run = runs[0]
        try:
            for run in runs:
                segment = run.segment
                handle = segment.handle if segment.handle >= 0 else self._open_segment(segment)
                write_all(self._disk, handle, run.buffers, run.start, run.end - run.start)
        except OSError as error:
            raise self._take_back(run, error) from error
        for run in runs:
            segment = run.segment
            if run.start == 0:
                self._segments.append(segment)
                self._firsts.append(segment.header.first_op)
                self._bases.append(segment.header.base_offset)
                self._directory_dirty = True
            segment.size = run.end
            self._dirty[segment.header.first_op] = segment
        if len(runs) > 1 or self._tail_full:
            self._seal_full(runs)
        self.head_op, self.head_checksum = self._tail_op, self._tail_checksum
        self.next_offset, self.floor_op, self._head_full = self._tail_offset, self._tail_floor, self._tail_full
        # The active segment stays the current run's: the next append starts a new run behind it.
        self._runs = []
        self._run = None
        self.pending_bytes = 0

    def _seal_full(self, runs: list[_Run]) -> None:
        for run in runs:
            if run is not runs[-1] or self._tail_full:
                self._seal(run.segment)

    def _seal(self, segment: Segment) -> None:
        """A segment takes no more entries: its index goes to a file and to the cache of sealed ones."""
        if segment.index is not None:
            self._save_index(segment, segment.index)
            self._indexes.put(segment.path, segment.index)
            segment.index = None
        if segment.handle >= 0 and segment.size == segment.synced:
            self._release(segment)

    def _open_segment(self, segment: Segment) -> int:
        """A handle for writing; a new segment's file is made, and its space reserved if that is wanted. Raises
        `OSError`."""
        if segment.size:
            segment.handle = self._disk.open_write(segment.path)
            return segment.handle
        segment.handle = self._disk.open_write(segment.path, exclusive=True)
        if self._preallocate:
            try:
                self._disk.fallocate(segment.handle, 0, self._segment_size)
            except OSError as error:
                if error.errno not in _NO_SPACE_RESERVATION:
                    raise
        return segment.handle

    def _take_back(self, failed: _Run, error: OSError) -> DiskFault:
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
                    assert segment.index is not None
                    segment.index.cut(run.start)
                    if segment.handle >= 0:
                        self._disk.truncate(segment.handle, run.start)
        except OSError as second:
            self.fence(f"{fault}; taking the write back failed with errno {second.errno}")
            fault = LogFenced(self.directory, self._fence or "")
        self._rewind()
        return fault

    def fence(self, reason: str) -> None:
        """Take nothing more from now on; the first reason stays."""
        if self._fence is None:
            self._fence = reason

    @property
    def fenced(self) -> str | None:
        """Why the log takes nothing more; None when it does."""
        return self._fence

    # --- syncing ---------------------------------------------------------------------------------------------------

    @property
    def unsynced_bytes(self) -> int:
        """Flushed bytes that no successful sync covers."""
        return sum(segment.size - segment.synced for segment in self._dirty.values())

    @property
    def dirty(self) -> bool:
        """True when a sync would cover anything."""
        return bool(self._dirty) or self._directory_dirty

    def sync_plan(self) -> SyncPlan:
        """What a sync started now covers. Every plan must be handed back to `mark_synced`, also after it failed.

        Raises:
            LogFenced: the log takes nothing more.
            DiskFault: a dirty segment could not be opened.
        """
        if self._fence is not None:
            raise LogFenced(self.directory, self._fence)
        for segment in self._dirty.values():
            if segment.handle < 0:
                try:
                    segment.handle = self._disk.open_write(segment.path)
                except OSError as error:
                    raise disk_fault(error, segment.path, "open") from error
        covered = [(segment, segment.size) for segment in self._dirty.values()]
        self._plans += 1
        plan = SyncPlan(self, self._disk, covered, self._directory_dirty, self._epoch)
        self._directory_dirty = False
        return plan

    def mark_synced(self, plan: SyncPlan) -> None:
        """Take back a plan: credit what it covered, if it ran and nothing was cut since.

        Raises:
            LogFenced: the plan failed or never ran: what was written since the last sync must not be taken for durable.
        """
        self._plans -= 1
        if not plan.done:
            self.fence("a sync was given up" if not plan.failed else "a sync failed")
        elif plan.epoch == self._epoch:
            if plan.op >= self.synced_op:
                self.synced_op, self.synced_checksum = plan.op, plan.checksum
            for segment, size in plan.covered:
                segment.synced = max(segment.synced, size)
                if segment.synced == segment.size:
                    self._dirty.pop(segment.first_op, None)
        if self._plans == 0:
            for handle in self._retired:
                self._disk.close(handle)
            self._retired.clear()
            for segment, _ in plan.covered:
                if segment is not self._active() and segment.synced == segment.size:
                    self._release(segment)
        if self._fence is not None:
            raise LogFenced(self.directory, self._fence)

    def _active(self) -> Segment | None:
        return self._segments[-1] if self._segments and not self._head_full else None

    def _release(self, segment: Segment) -> None:
        """Give the handle of a sealed, synced segment to the readers' pool."""
        if segment.handle >= 0 and self._plans == 0 and self._number(segment.first_op) is not None:
            self._pool.put(segment.path, segment.handle)
            segment.handle = -1

    def _retire(self, segment: Segment) -> None:
        """Close the handles of a segment that goes; while a plan is out, later, so that no number is used twice under
        it."""
        self._pool.forget(segment.path)
        self._indexes.forget(segment.path)
        self._dirty.pop(segment.first_op, None)
        if segment.handle >= 0:
            if self._plans:
                self._retired.append(segment.handle)
            else:
                self._disk.close(segment.handle)
            segment.handle = -1

    # --- cutting and dropping --------------------------------------------------------------------------------------

    def truncate_from(self, op: int) -> None:
        """Remove the entries from ``op`` on; durable when it returns, and so is everything before ``op``. Blocks on
        syncs.

        Raises:
            OurFault: entries are buffered, or ``op`` lies before the first one held.
            LogFenced: the log was fenced, or is now, because a step failed and what is left is not known.
        """
        if self._fence is not None:
            raise LogFenced(self.directory, self._fence)
        if self._runs:
            raise OurFault(f"{self.directory}: a cut at op {op} while entries are buffered")
        if op > self.head_op:
            return
        if op < self.first_op:
            raise OurFault(f"{self.directory}: a cut at op {op}, the first op held is {self.first_op}")
        try:
            self._truncate(op)
        except OSError as error:
            self.fence(f"a cut at op {op} failed: errno {error.errno}")
            raise LogFenced(self.directory, self._fence or "") from error
        except DiskFault as fault:
            self.fence(f"a cut at op {op} failed: {fault}")
            raise LogFenced(self.directory, self._fence or "") from fault

    def _truncate(self, op: int) -> None:
        place = self.locate_op(op)
        number = self._number(place.segment)
        assert number is not None
        boundary = self._segments[number]
        position, parent, offset = self._find_cut(boundary, op)
        keep = position > SEGMENT_HEADER
        removed = self._segments[number + keep :]
        index = self._cut_index(boundary, position) if keep else None
        for segment in [*removed, boundary] if keep else removed:
            self._retire(segment)
        remove = [segment.first_op for segment in removed]
        cut_suffix(self._disk, self.directory, remove, (boundary.first_op, position) if keep else None)
        for segment in self._dirty.values():
            if segment.handle < 0:
                segment.handle = self._disk.open_write(segment.path)
            self._disk.fdatasync(segment.handle)
            segment.synced = segment.size
        self._dirty.clear()
        self._directory_dirty = False
        del self._segments[number + keep :], self._firsts[number + keep :], self._bases[number + keep :]
        if keep:
            boundary.index = index
            boundary.size = boundary.synced = position
        self._epoch += 1
        self.floor_op = boundary.header.floor_op
        self.head_op, self.head_checksum, self.next_offset, self.synced_op = op - 1, parent, offset, op - 1
        self.synced_checksum = parent
        self._head_full = not keep
        self._rewind()

    def _find_cut(self, segment: Segment, op: int) -> tuple[int, int, int]:
        """(position of ``op``, identity of op - 1, next offset before it) in the segment that holds it. Raises
        `Damaged`."""
        offset = segment.header.base_offset
        start = self._index(segment).by_op(op - 1) or SEGMENT_HEADER
        for position, header, body in walk_headers(
            self._disk, self._handle(segment), segment.path, start, segment.size
        ):
            if header.op == op:
                return position, header.parent, offset
            if header.operation == SEND_MESSAGES:
                base, count = batch_range(body)
                offset = base + count
        raise OurFault(f"{segment.path}: op {op} is not where the segments say it is")

    def _cut_index(self, segment: Segment, position: int) -> SparseIndex:
        """The index of ``segment`` cut at ``position``, complete: the segment takes entries again."""
        index = segment.index or load_index(self._disk, self.directory, segment.first_op, segment.size) or SparseIndex()
        index.cut(position)
        start = index.positions[-1] if index.positions else SEGMENT_HEADER
        for at, header, body in walk_headers(self._disk, self._handle(segment), segment.path, start, position):
            if header.operation == SEND_MESSAGES and at >= index.due:
                index.add(batch_range(body)[0], header.timestamp, header.op, at)
        return index

    def drop_plan(self, op: int) -> DropPlan:
        """Take whole head segments whose last op is below ``op`` out of the log; the plan's `run` removes their files.

        What lies below must be durable elsewhere first: the checkpoint, and the pairing of a snapshot. The active
        segment stays; a full last one goes when ``op`` is above the head (a purge), and the log is then empty behind
        its head.
        """
        count = 0
        while count < len(self._segments):
            last = self._firsts[count + 1] - 1 if count + 1 < len(self._firsts) else self.head_op
            if last >= op or self._segments[count] is self._active() or self._buffered(self._segments[count]):
                break
            count += 1
        dropped = self._segments[:count]
        for segment in dropped:
            self._retire(segment)
        del self._segments[:count], self._firsts[:count], self._bases[:count]
        return DropPlan(
            self._disk,
            self.directory,
            [segment.first_op for segment in dropped],
            sum(segment.size for segment in dropped),
        )

    def _buffered(self, segment: Segment) -> bool:
        return any(run.segment is segment for run in self._runs)

    def drop_below(self, op: int) -> int:
        """`drop_plan` and its `run` at once; returns the bytes freed. Raises `DiskFault`."""
        plan = self.drop_plan(op)
        plan.run()
        return plan.bytes

    # --- the end ---------------------------------------------------------------------------------------------------

    def write_index(self) -> None:
        """Write the index of the active segment, so that the next start finds its resume point without a scan.

        Worth calling with a checkpoint and at a clean stop. Never needed for correctness.
        """
        active = self._active()
        if active is not None and active.index is not None and len(active.index):
            complete = SparseIndex()
            for offset, timestamp, op, position in zip(*active.index.columns(), strict=True):
                if position < active.size:
                    complete.add(offset, timestamp, op, position)
            self._save_index(active, complete)

    def release(self) -> None:
        """Close the handle of an idle log; the next write opens it again. Does nothing while bytes are unsynced."""
        if self._runs or self._dirty or self._plans:
            return
        for segment in self._segments:
            if segment.handle >= 0:
                self._disk.close(segment.handle)
                segment.handle = -1

    def close(self) -> None:
        """Write the active index and close every handle. Does not sync: whoever stops cleanly has done it."""
        self.write_index()
        for segment in self._segments:
            self._retire(segment)
        for handle in self._retired:
            self._disk.close(handle)
        self._retired.clear()
        self.fence("closed")


__all__ = [
    "DropPlan",
    "GroupIdentity",
    "LogFacts",
    "LogRecovery",
    "Position",
    "PrepareLog",
    "ResumePoint",
    "SyncPlan",
]
