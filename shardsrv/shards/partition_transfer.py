"""State transfer of a partition: its segments as they are, and a checkpoint of the op at which they end.

The checkpoint (offsets, deduplication window, purge generation) is made live when the offer is made, and the last
segment is offered up to its op: nothing uncommitted travels. Order of an install: everything fetched is synced and the
swap committed (`store.incoming`), then pair, then the swap itself: segments take the place of the old ones and the
checkpoint becomes the newest. A crash before the commitment leaves the old state, one behind it ends in the new one.
"""

from __future__ import annotations

from collections.abc import Callable

import xxhash

from shardsrv._core import SHORT, VALID, scan_log, xxh3
from shardsrv.errors import Damaged, DiskFault
from shardsrv.plane.partition import checkpoint as checkpoint_format
from shardsrv.plane.partition.checkpoint import PartitionCheckpoint
from shardsrv.shards.staging import staged_name
from shardsrv.shards.transfer_driver import OwnFault, Pair, Source, TransferDriver
from shardsrv.store.checkpoint import Checkpoint
from shardsrv.store.disk import READ, Disk, disk_fault
from shardsrv.store.incoming import commit_swap, finish_swap, retract_swap
from shardsrv.store.log import PrepareLog
from shardsrv.store.log_files import CHUNK
from shardsrv.store.log_reload import reload_log
from shardsrv.store.log_walk import ResumePoint
from shardsrv.store.segment import SEGMENT_HEADER, check_identity, decode_header
from shardsrv.vsr.transfer_effects import Note
from shardsrv.vsr.transfer_faults import ArtifactDamaged, ContentMismatch, NoSnapshot, SnapshotUnreadable
from shardsrv.vsr.transfer_install import Checked
from shardsrv.vsr.transfer_offer import Offer
from shardsrv.wire.manifest import Artifact, ArtifactKind
from shardsrv.wire.sealed_body import artifact_checksum

_SEGMENT = int(ArtifactKind.SEGMENT)
_CHECKPOINT = int(ArtifactKind.PARTITION_CHECKPOINT)


class PartitionTransferDriver(TransferDriver):
    """``directory`` is the partition's; ``log`` and ``checkpoint`` are the group's own."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        log: PrepareLog,
        checkpoint: Checkpoint,
        note: Callable[[Note], None] | None = None,
    ) -> None:
        super().__init__(disk, directory, note)
        self._log = log
        self._checkpoint = checkpoint

    # --- serving ------------------------------------------------------------------------------------------------------

    def load(self, commit_op: int, captured: bytes) -> Callable[[], Offer]:
        """See `TransferDriver.load`. The segments are opened here and now: a retention that comes later takes their
        names away, not their bytes. Raises `NoSnapshot` for a partition without an entry."""
        saved = checkpoint_format.decode(captured)
        if saved.op == 0:
            raise NoSnapshot
        log, disk = self._log, self.disk
        opened: list[tuple[int, int, Source]] = []
        try:
            for first_op, _, size in log.segments():
                path = f"{log.directory}/{staged_name(Artifact(_SEGMENT, first_op, 0, 0))}"
                if first_op <= commit_op:
                    opened.append((first_op, size, Source(disk, path=path, handle=_open(disk, path))))
        except DiskFault:
            _close(opened)
            raise

        def work() -> Offer:
            try:
                pairs = [self._segment_pair(first_op, size, source, saved) for first_op, size, source in opened]
            except DiskFault as fault:
                _close(opened)
                raise SnapshotUnreadable(cause=fault) from fault
            entry = Artifact(_CHECKPOINT, saved.op, len(captured), artifact_checksum(captured))
            return Offer(saved.op, commit_op, ((entry, Source(disk, captured)), *pairs))

        return work

    def _segment_pair(self, first_op: int, size: int, source: Source, saved: PartitionCheckpoint) -> Pair:
        """One segment, verified up to the checkpoint's op. Raises `DiskFault`."""
        look = SegmentLook(self.disk, source, self._log, first_op, size)
        look.run(saved.op)
        if look.last_op == saved.op and look.last_checksum != saved.checksum:
            raise Damaged(source.path, look.position, saved.op, saved.checksum, look.last_checksum)
        return Artifact(_SEGMENT, first_op, look.position, look.checksum), source

    # --- receiving ----------------------------------------------------------------------------------------------------

    def check(self, artifacts: tuple[Artifact, ...], clients_max: int) -> Checked:
        """See `TransferDriver.check`."""
        saved, payload = self._staged_checkpoint(artifacts)
        names: list[str] = []
        last_op, last_checksum = 0, 0
        for index, artifact in enumerate(artifacts):
            if artifact.kind != _SEGMENT:
                continue
            look = self._staged_segment(index, artifact)
            if names and (look.parent != last_checksum or artifact.frontier != last_op + 1):
                raise ContentMismatch("first op of a segment", last_op + 1, artifact.frontier)
            names.append(staged_name(artifact))
            last_op, last_checksum = look.last_op, look.last_checksum
        if names and (last_op, last_checksum) != (saved.op, saved.checksum):
            raise ContentMismatch("last entry", saved.op, last_op)
        return Checked(
            saved.op,
            saved.checksum,
            saved.timestamp,
            payload,
            purge_generation=saved.purge_generation,
            source=(names, payload, saved),
        )

    def _staged_checkpoint(self, artifacts: tuple[Artifact, ...]) -> tuple[PartitionCheckpoint, bytes]:
        index = next(number for number, artifact in enumerate(artifacts) if artifact.kind == _CHECKPOINT)
        try:
            payload = self.staging.read(index)
        except DiskFault as fault:
            raise OwnFault(fault) from fault
        found = artifact_checksum(payload)
        if found != artifacts[index].checksum:
            raise ArtifactDamaged(index, _CHECKPOINT, artifacts[index].checksum, found)
        return checkpoint_format.decode(payload), payload

    def _staged_segment(self, index: int, artifact: Artifact) -> SegmentLook:
        path = self.staging.path(index)
        try:
            source = Source(self.disk, path=path, handle=_open(self.disk, path))
        except DiskFault as fault:
            raise OwnFault(fault) from fault
        try:
            look = SegmentLook(self.disk, source, self._log, artifact.frontier, artifact.length)
            look.run(None)
        finally:
            source.close()
        if look.checksum != artifact.checksum or look.position != artifact.length:
            raise ArtifactDamaged(index, _SEGMENT, artifact.checksum, look.checksum)
        return look

    # --- installing ---------------------------------------------------------------------------------------------------

    def install(self, content: Checked) -> int:
        """See `TransferDriver.install`. A commitment that was not written whole is taken back; when even that fails,
        the log is fenced, since a start may find either state."""
        names, payload, _ = content.source
        try:
            commit_swap(self.disk, self.directory, names, payload)
        except DiskFault:
            try:
                retract_swap(self.disk, self.directory)
            except DiskFault as second:
                self._log.fence(f"a swap could not be taken back: {second}")
            raise
        return xxh3(payload)

    def rebase(self, content: Checked) -> int:
        """See `TransferDriver.rebase`."""
        log = self._log
        saved: PartitionCheckpoint = content.source[2]
        resume = ResumePoint(saved.op, saved.checksum, saved.next_offset, saved.purge_op, saved.purge_generation)
        self.staging.close(keep=True)
        reload_log(log, resume, lambda: self._swap())
        return log.first_op

    def _swap(self) -> None:
        finish_swap(self.disk, self.directory, self._checkpoint.write)


class SegmentLook:
    """One pass over a segment: its seals, its chain, and the checksum of its bytes up to where the pass ends."""

    def __init__(self, disk: Disk, source: Source, log: PrepareLog, first_op: int, size: int) -> None:
        self._disk = disk
        self._source = source
        self._log = log
        self._first_op = first_op
        self._size = size
        self._state = xxhash.xxh3_64()
        self.position = 0
        self.parent = 0
        self.last_op = first_op - 1
        self.last_checksum = 0

    @property
    def checksum(self) -> int:
        """XXH3-64 of the bytes before `position`."""
        return self._state.intdigest()

    def run(self, last_op: int | None) -> None:
        """Look up to the end of entry ``last_op`` (None: to the end of the file). Raises `DiskFault`."""
        path = self._source.path
        head = bytes(self._source.read(0, min(SEGMENT_HEADER, self._size)))
        identity, header = decode_header(head, path)
        check_identity(identity, self._log.identity, path)
        if header.first_op != self._first_op:
            raise Damaged(path, 48, self._first_op, self._first_op, header.first_op)
        self._state.update(head)
        self.parent = self.last_checksum = header.parent
        self.position = SEGMENT_HEADER
        needed = 0
        while self.position < self._size and (last_op is None or self.last_op < last_op):
            chunk = self._source.read(self.position, min(max(CHUNK, needed), self._size - self.position))
            end = self._cut(chunk, last_op)
            scan = scan_log(chunk[:end], 0, self.last_checksum, self.last_op + 1)
            short = scan.verdict == SHORT and self.position + scan.needed <= self._size
            if scan.verdict != VALID and not (short and (scan.position or scan.needed > end)):
                raise Damaged(path, self.position + scan.position, scan.last_op + 1, VALID, scan.verdict)
            self._state.update(chunk[: scan.position])
            self.position += scan.position
            needed = scan.needed
            if scan.count:
                self.last_op, self.last_checksum = scan.last_op, scan.last_checksum

    def _cut(self, chunk: memoryview, last_op: int | None) -> int:
        """Where the entry behind ``last_op`` begins in the chunk, or its end."""
        if last_op is None:
            return len(chunk)
        at, op = 0, self.last_op
        while at + SEGMENT_HEADER <= len(chunk) and op < last_op:
            size = int.from_bytes(chunk[at + 48 : at + 52], "little")
            if size < SEGMENT_HEADER:
                return len(chunk)
            at, op = at + size, op + 1
        return min(at, len(chunk)) if op == last_op else len(chunk)


def _open(disk: Disk, path: str) -> int:
    try:
        return disk.open_read(path)
    except OSError as error:
        raise disk_fault(error, path, READ) from error


def _close(opened: list[tuple[int, int, Source]]) -> None:
    for _, _, source in opened:
        source.close()


__all__ = ["PartitionTransferDriver", "SegmentLook"]
