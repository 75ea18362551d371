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

from collections.abc import Callable

from shardsrv._core import Prepare
from shardsrv.errors import DiskFault, OurFault
from shardsrv.store.descriptors import DescriptorPool
from shardsrv.store.disk import Disk, disk_fault
from shardsrv.store.faults import LogFenced
from shardsrv.store.index import IndexCache, SparseIndex
from shardsrv.store.log_drop import DropPlan
from shardsrv.store.log_files import cut_suffix, load_index, walk_headers
from shardsrv.store.log_opening import LogFacts, LogRecovery, recover
from shardsrv.store.log_sync import SyncPlan
from shardsrv.store.log_walk import ResumePoint, Walk, batch_range
from shardsrv.store.log_writer import CLOSED, LogWriter
from shardsrv.store.segment import (
    SEGMENT_HEADER,
    SEND_MESSAGES,
    GroupIdentity,
    Position,
    Segment,
    ends_segment,
)


class PrepareLog(LogWriter):
    """See the module. `head_op`, `head_checksum` and `next_offset` are those of flushed entries."""

    __slots__ = ("_epoch", "_plans", "_retired", "synced_checksum", "synced_op")

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
        on_prepare: Callable[[Prepare], object] | None = None,
        preallocate: bool = False,
        validate: bool = True,
        pool: DescriptorPool | None = None,
        indexes: IndexCache | None = None,
        with_peers: bool = False,
    ) -> tuple[PrepareLog, LogRecovery]:
        """Verify and open the log in ``directory``; an empty or missing one is a log without entries.

        When the log is then `dirty`, sync it before it takes anything. The name of ``directory`` itself is the owner's
        to make durable (`sync_names`).

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
            with_peers: cut where other members decide or repair (`LogRecovery.action` tells), instead of refusing.

        Raises:
            LogDamaged: refused; nothing on disk was changed.
            LogForeign, UnsupportedVersion, Unreadable: not ours, not of this release, not readable; nothing was
            changed. DiskFault: a cut, or the rewrite of the unsynced tail, failed.
        """
        facts = facts or LogFacts()
        walk, recovery = recover(disk, directory, identity, resume, facts, validate, on_prepare, with_peers)
        try:
            disk.mkdir(directory)
        except OSError as error:
            raise disk_fault(error, directory, "mkdir") from error
        pool = DescriptorPool(disk) if pool is None else pool
        indexes = IndexCache() if indexes is None else indexes
        log = cls(disk, directory, identity, pool, indexes, segment_size, preallocate)
        log._adopt(walk, max(facts.synced_op, resume.op if resume is not None else 0))
        if (facts.same_boot or facts.fenced) and not facts.clean:
            log._distrust()
        return log, recovery

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
        """Use `open`."""
        super().__init__(disk, directory, identity, pool, indexes, segment_size, preallocate)
        self.synced_op = 0
        self.synced_checksum = 0
        self._plans = 0
        self._epoch = 0
        self._retired: list[int] = []

    def _adopt(self, walk: Walk, synced_op: int) -> None:
        """Take over what the walk found."""
        self._segments = walk.segments
        self._firsts = [segment.first_op for segment in walk.segments]
        self._bases = [segment.header.base_offset for segment in walk.segments]
        self.head_op, self.head_checksum, self.next_offset = walk.head_op, walk.head_checksum, walk.next_offset
        self._purges = walk.purges
        self.floor_op = walk.purges[-1][0] if walk.purges else 0
        last = self._segments[-1] if self._segments else None
        self._head_full = last is None or (
            last.size > SEGMENT_HEADER and ends_segment(last.size, self._segment_size, walk.last_operation)
        )
        for number, segment in enumerate(self._segments):
            following = self._firsts[number + 1] if number + 1 < len(self._firsts) else self.head_op + 1
            if following - 1 > synced_op:
                self._dirty[segment.first_op] = segment
                self._directory_dirty = True
            else:
                segment.synced = segment.size
            if segment is not self._active():
                self._seal(segment)
        self.synced_op = min(self.head_op, synced_op)
        known = self.synced_op == self.head_op
        self.synced_checksum = self.head_checksum if known else walk.synced_checksum

    def _distrust(self) -> None:
        """What the dead process changed and did not sync is seen now and may be lost: names (a cut, a new checkpoint),
        and the length of the last segment. The first sync covers both."""
        self._directory_dirty = True
        if self._segments:
            self._dirty[self._segments[-1].first_op] = self._segments[-1]

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
        if not self._settled():
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
        while self._purges and self._purges[-1][0] >= op:
            self._purges.pop()
        self.floor_op = self._purges[-1][0] if self._purges else 0
        self.head_op, self.head_checksum, self.next_offset, self.synced_op = op - 1, parent, offset, op - 1
        self.synced_checksum = parent
        self._head_full = not keep
        self._discard()

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
            if last >= op or self._segments[count] is self._active():
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
        if not self._settled() or self._dirty or self._plans:
            return
        self._discard()
        for segment in self._segments:
            if segment.handle >= 0:
                self._disk.close(segment.handle)
                segment.handle = -1

    def close(self, index: bool = True) -> None:
        """Close every handle, after writing the active ``index``; those that a sync under way needs when its plan is
        handed back. Does not sync: whoever stops cleanly has done it."""
        if index:
            self.write_index()
        for segment in self._segments:
            self._retire(segment)
        if not self._plans:
            for handle in self._retired:
                self._disk.close(handle)
            self._retired.clear()
        self.fence(CLOSED)


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
