"""Retention on the shard that owns partitions: by time, by size, and by request; the deciding part is
`plane.partition.retention`.

Order: an entry of the partition's log says what goes (first offset kept, bytes removed), and with it every number that
clients see changes; then a checkpoint is made durable; then whole files are unlinked. Invariants: one plan at a time on
a shard; a plan is carried out only while what it was made from still holds; only time of appending counts; what a batch
takes is counted from the segment that goes.
"""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Protocol

import attrs
import structlog
import trio

from shardsrv.errors import DiskFault
from shardsrv.plane.metadata.plane import MetadataPlane
from shardsrv.plane.partition import offsets, retention
from shardsrv.plane.partition.retention import NEVER, RetentionPlan, SegmentTotals
from shardsrv.shards import records
from shardsrv.shards.answers import Origin
from shardsrv.shards.group import Admission
from shardsrv.shards.partition_group import PartitionGroup
from shardsrv.shards.segment_deletes import COUNT
from shardsrv.shards.storage import PartitionStorage
from shardsrv.store.disk import Disk
from shardsrv.store.segment_totals import batch_bytes
from shardsrv.vsr.events import Request
from shardsrv.vsr.policy import PERSISTED
from shardsrv.wire.constants import ZERO_ID, Operation
from shardsrv.wire.error_codes import ErrorCode


class RetentionHost(Protocol):
    """What retention needs of its shard."""

    plane: MetadataPlane
    groups: dict[int, PartitionGroup]
    storage: PartitionStorage
    disk: Disk
    log: structlog.stdlib.BoundLogger

    admission: Admission


class TruncateOrigin(Origin):
    """Origin of a truncation entry: sets an event when it is committed or refused."""

    __slots__ = ("done", "op", "outcome", "status", "timestamp")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.outcome = records.DONE
        self.status = 0
        self.op = 0
        self.timestamp = 0

    def committed(self, op: int, timestamp: int, operation: int, reply: bytes) -> None:
        """The truncation took effect."""
        self.op, self.timestamp = op, timestamp
        self.done.set()

    def refused(self, outcome: int, status: int) -> None:
        """It did not."""
        self.outcome, self.status = outcome, status
        self.done.set()


@attrs.frozen(slots=True)
class Sealed:
    """A sealed segment at the head of a log that may still hold readable messages."""

    first_op: int
    last_op: int
    base_offset: int
    next_offset: int
    size: int


class Retention:
    """See the module."""

    def __init__(
        self, host: RetentionHost, interval: float, step: Callable[..., None], start: Callable[..., None]
    ) -> None:
        self._host = host
        self._interval = interval
        self._step = step
        self._start = start
        self._turn = trio.Lock()
        self._due: dict[PartitionGroup, None] = {}
        self._wake = trio.Event()
        self.deleting = 0
        """Deletions of segments that are asked for and not answered."""

    def rolled(self, group: PartitionGroup) -> None:
        """The group has a new segment: a limit of its size is looked at soon, not only once an interval."""
        if group.settings.max_topic_size != NEVER:
            self._due[group] = None
            self._wake.set()

    async def run(self) -> None:
        """The task: until cancelled."""
        while True:
            due = False
            with trio.move_on_after(self._interval):
                await self._wake.wait()
                due = True
            self._wake = trio.Event()
            groups = list(self._due) if due else list(self._host.groups.values())
            self._due.clear()
            for group in groups:
                await self._clean(group)

    async def _clean(self, group: PartitionGroup) -> None:
        """One round for one partition. A fault of its disk ends the round of this partition only."""
        async with self._turn:
            try:
                plan = await self._plan(group, time.time_ns() // 1000) if group.replica.leads else None
                if plan is not None:
                    await self._truncate(group, plan, self._request(ZERO_ID, plan))
                elif not group.closed and self._host.storage.droppable(group):
                    self._host.storage.checkpoint_soon(group)
            except DiskFault as error:
                self._host.log.error("retention failed", partition=str(group.identity), error=str(error))

    # ------------------------------------------------------------------------------------------------ by request

    def delete(self, group: PartitionGroup, request: Request) -> None:
        """Operation 138 on this shard: up to so many of the oldest sealed segments."""
        self.deleting += 1
        self._start(self._delete, group, request)

    async def _delete(self, group: PartitionGroup, request: Request) -> None:
        origin = request.origin
        try:
            async with self._turn:
                answer = await self._delete_now(group, request)
        except DiskFault as error:
            self._host.log.error("segments could not be deleted", partition=str(group.identity), error=str(error))
            self._step(origin.refused, records.REFUSED_STATUS, error.code)
        else:
            if answer.outcome == records.DONE:
                self._step(origin.committed, answer.op, answer.timestamp, Operation.TRUNCATE_PARTITION, bytes(4))
            else:
                self._step(origin.refused, answer.outcome, answer.status)
        finally:
            self.deleting -= 1

    async def _delete_now(self, group: PartitionGroup, request: Request) -> TruncateOrigin:
        (wanted,) = COUNT.unpack(bytes(request.body))
        totals = []
        for segment in self._sealed(group)[:wanted]:
            totals.append(await self._count(group, segment))
        plan = retention.plan_explicit([*totals, _REST], group.plane.first_offset, wanted)
        if plan is None:
            done = TruncateOrigin()
            done.timestamp = request.now
            return done
        wanted_entry = Request(
            request.client,
            request.session,
            request.request,
            Operation.TRUNCATE_PARTITION_LOG,
            request.user_id,
            request.digest,
            PERSISTED,
            offsets.encode_truncate(plan.first_offset, plan.removed_bytes),
            None,
            request.now,
        )
        return await self._truncate(group, plan, wanted_entry)

    # ------------------------------------------------------------------------------------------------ plans

    def _sealed(self, group: PartitionGroup) -> list[Sealed]:
        """The sealed segments with readable messages, oldest first."""
        plane = group.plane
        found = []
        for (first, base, size), (following, next_base, _) in pairwise(group.log.segments()):
            if following - 1 > plane.purge_op and next_base > plane.first_offset:
                found.append(Sealed(first, following - 1, base, next_base, size))
        return found

    async def _count(self, group: PartitionGroup, segment: Sealed) -> SegmentTotals:
        """Its totals. The bytes are counted in a thread; the time of its last entry is near its end."""
        path = group.log.segment_path(segment.first_op)
        newest = group.log.last_timestamp(segment.first_op)
        counted = await trio.to_thread.run_sync(batch_bytes, self._host.disk, path, segment.size)
        return SegmentTotals(
            segment.first_op,
            segment.last_op,
            segment.next_offset,
            segment.next_offset - segment.base_offset,
            counted or 0,
            newest,
            True,
        )

    async def _plan(self, group: PartitionGroup, now: int) -> RetentionPlan | None:
        """By time and by size together: whichever lets more go. Segments are counted from the oldest on, as long as
        one of both may want them."""
        expiry, limit = group.settings.message_expiry, self._share(group)
        if group.closed or group.fault is not None or (expiry == NEVER and limit == NEVER):
            return None
        held = group.plane.bytes
        totals: list[SegmentTotals] = []
        for segment in self._sealed(group):
            expired = expiry != NEVER and group.log.last_timestamp(segment.first_op) + expiry <= now
            if not expired and (limit == NEVER or held <= limit):
                break
            totals.append(await self._count(group, segment))
            held -= totals[-1].bytes
        rest = attrs.evolve(_REST, bytes=max(held, 0))
        first_offset = group.plane.first_offset
        plans = [
            retention.plan_expiry([*totals, rest], first_offset, now, expiry),
            retention.plan_size([*totals, rest], first_offset, limit),
        ]
        return max((plan for plan in plans if plan is not None), key=lambda plan: plan.segments, default=None)

    def _share(self, group: PartitionGroup) -> int:
        """Bytes that the partition may hold: its share of the topic's limit."""
        limit = group.settings.max_topic_size
        stream = self._host.plane.state.streams.get(group.identity.stream)
        topic = None if stream is None else stream.topics.get(group.identity.topic)
        return NEVER if limit == NEVER or topic is None or not topic.partitions else limit // len(topic.partitions)

    # ------------------------------------------------------------------------------------------------ carrying out

    def _request(self, client: bytes, plan: RetentionPlan) -> Request:
        body = offsets.encode_truncate(plan.first_offset, plan.removed_bytes)
        return Request(
            client, 0, 0, Operation.TRUNCATE_PARTITION_LOG, 0, 0, PERSISTED, body, None, time.time_ns() // 1000
        )

    async def _truncate(self, group: PartitionGroup, plan: RetentionPlan, request: Request) -> TruncateOrigin:
        """Commit the entry, make a checkpoint durable, unlink. Raises `DiskFault`."""
        request.origin = origin = TruncateOrigin()
        self._step(self._submit, group, plan, request)
        await origin.done.wait()
        if origin.outcome == records.DONE:
            await self._host.storage.checkpoint_now(group)
        return origin

    def _submit(self, group: PartitionGroup, plan: RetentionPlan, request: Request) -> None:
        """Only while the plan holds: nothing was purged or truncated since, and the entry need not wait."""
        stale = plan.first_offset <= group.plane.first_offset or plan.first_offset > group.plane.next_offset
        if (
            stale
            or group.closed
            or group.purging
            or group.waiting
            or not group.replica.leads
            or not group.replica.accepts()
            or not self._host.admission.open
        ):
            request.origin.refused(records.REFUSED_STATUS, ErrorCode.TRANSIENT_NOT_ACCEPTED)
        else:
            group.submit(request)


_REST = SegmentTotals(0, 0, 0, 0, 0, 0, False)
"""Stands for everything behind the segments that were counted: it stays."""
