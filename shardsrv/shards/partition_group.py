"""One partition on the shard that owns it: the group driver, its polls and its counters.

A poll is planned by the pure plane, read from the log into a buffer of the arena and answered as buffers that skip the
prepare headers. Nothing above the committed op is ever returned.
"""

import struct
from collections import deque
from contextlib import suppress
from typing import Any, Protocol

from shardsrv._core import VALID, slice_prepares
from shardsrv.bus._arena import Arena
from shardsrv.errors import Damaged, DiskFull, NotAccepted
from shardsrv.plane.metadata.options_catalog import TopicSettings
from shardsrv.plane.metadata.state import PartitionIdentity
from shardsrv.plane.partition.plane import PartitionPlane
from shardsrv.plane.partition.poll import PollPlan, plan_poll
from shardsrv.shards import records
from shardsrv.shards.disk_space import DiskSpace
from shardsrv.shards.group import Group, Host
from shardsrv.store.checkpoint import Checkpoint
from shardsrv.store.faults import LogFenced
from shardsrv.store.log import PrepareLog
from shardsrv.store.log_sync import SyncPlan
from shardsrv.store.segment import Position
from shardsrv.vsr.effects import Committed
from shardsrv.vsr.events import PersistFailed, Request
from shardsrv.vsr.replica import Replica
from shardsrv.vsr.status import NORMAL
from shardsrv.wire.constants import Operation
from shardsrv.wire.error_codes import ErrorCode

POLL_HEAD = struct.Struct("<IQI")
"""u32 partition_id | u64 current_offset | u32 message count (wire-operations.md 5)."""

READ_MIN = 64 * 1024
READ_MAX = 8 * 1024 * 1024
"""Bytes read at once for a poll: one index step at least; large polls go on in further reads, so that a read stays
short."""

_SEND = int(Operation.SEND_MESSAGES)

RESUME_POINTS = 8
"""Where recent polls ended, kept per partition: a consumer that goes on reads without looking into the index."""


class PartitionHost(Host, Protocol):
    """What a partition group needs of its shard."""

    arena: Arena
    poll_bytes_max: int
    validate_checksum: bool

    syncer: Any
    disk_space: DiskSpace
    checkpoint_bytes: int
    shares_counters: bool
    """Whether other shards read the counters page; alone, a shard reads its own groups."""

    def pass_on(self, group: "PartitionGroup", request: Request) -> bool:
        """Whether the request was sent to the node that leads the group instead."""

    def partition_changed(self, group: "PartitionGroup", operation: int) -> None:
        """An entry that is no send took effect."""

    def partition_rolled(self, group: "PartitionGroup") -> None:
        """The log of the group got another segment, or lost some."""

    def checkpoint_soon(self, group: "PartitionGroup") -> None:
        """Much was written since the last checkpoint."""

    def publish_counters(self, group: "PartitionGroup") -> None:
        """Show the group's counters to other shards."""


class PartitionGroup(Group):
    """Driver of one partition group."""

    __slots__ = (
        "_checkpoint_bytes",
        "_disk_space",
        "_shares_counters",
        "_syncer",
        "checkpoint",
        "checkpointed_at",
        "closed",
        "counter_slot",
        "identity",
        "plane",
        "polled",
        "purge_asked",
        "purge_wanted",
        "purging",
        "replayed",
        "resume_points",
        "segments_seen",
        "settings",
        "written_bytes",
    )

    host: PartitionHost

    def __init__(
        self,
        host: PartitionHost,
        identity: PartitionIdentity,
        replica: Replica,
        plane: PartitionPlane,
        log: PrepareLog,
        *,
        counter_slot: int,
        settings: TopicSettings,
        checkpoint: Checkpoint,
    ) -> None:
        Group.__init__(self, host, replica, log)
        # What every send asks its shard for.
        self._disk_space = host.disk_space
        self._syncer = host.syncer
        self._shares_counters = host.shares_counters
        self._checkpoint_bytes = host.checkpoint_bytes
        self.identity = identity
        self.plane = plane
        self.counter_slot = counter_slot
        self.settings = settings
        self.checkpoint = checkpoint
        self.checkpointed_at = 0
        """`appended_bytes` when the last checkpoint was begun."""
        self.written_bytes = 0
        self.replayed = bool(log.head_op)
        """Whether entries may lie above the last checkpoint although nothing was appended in this life."""
        self.closed = False
        self.purging = 0
        """Purges that metadata has committed and this log has not: nothing else is admitted meanwhile."""
        self.purge_wanted = 0
        """In a cluster: generation of the last purge that metadata has committed; the primary asks for it."""
        self.purge_asked = 0
        """When it asked last, microseconds."""
        self.resume_points: dict[int, Position] = {}
        self.segments_seen = log.segment_count
        self.polled: dict[int, tuple[bytes, int]] = {}
        """By consumer group: the member that polled last, and the highest offset that it was given."""

    @property
    def serving(self) -> bool:
        """Whether the group has its durable record and can take part."""
        replica = self.replica
        return replica.status == NORMAL or (replica.member is not None and replica.durable_state is not None)

    def submit(self, request: Request) -> None:
        """See `Group.submit`; a partition that is being purged, or is gone, makes requests wait or refuses them, and a
        disk without room refuses the messages that this node would lead."""
        if self.closed:
            request.origin.refused(records.REFUSED_STATUS, ErrorCode.RESOURCE_NOT_FOUND)
        elif request.operation == _SEND and self.replica.leads and not self._disk_space.admits(len(request.body)):
            request.origin.refused(records.REFUSED_STATUS, DiskFull.code)
        elif self.purging:
            self.waiting.append(request)
        elif self.replica.leads or not self.host.pass_on(self, request):
            Group.submit(self, request)

    def resume(self) -> None:
        """See `Group.resume`."""
        if not self.purging:
            Group.resume(self)

    def purge(self, request: Request) -> None:
        """Admit a purge entry past everything that waits."""
        if self.replica.accepts() or self.fault is not None:
            self.carry_out(self.replica.step(request))
        else:
            self.waiting.appendleft(request)
            self.host.waits(self)

    def purged(self) -> None:
        """The purge entry took effect: what waited goes on."""
        self.purging -= 1
        self.resume_points.clear()
        self.polled.clear()
        self.resume()

    def restored(self, checksum: int) -> None:
        """A transfer put another state in place; its last entry has identity ``checksum``."""
        self.applied_checksum = checksum
        self.replayed = True
        self.resume_points.clear()
        self.polled.clear()
        self.segments_seen = self.log.segment_count

    def close(self) -> None:
        """The partition is deleted: what waits is refused, what is in flight has an unknown outcome."""
        self.closed = True
        self.carry_out(self.replica.step(PersistFailed(self.append_token, "the partition was deleted")))
        # Whoever still holds the group, for a write or a sync, finds that nothing is to be written or synced any more.
        self.fault = NotAccepted("the partition was deleted")
        waiting, self.waiting = self.waiting, deque()
        for request in waiting:
            request.origin.refused(records.REFUSED_STATUS, ErrorCode.RESOURCE_NOT_FOUND)
        if self.transfer is not None:
            self.transfer.close()
        self.log.close()

    def synced(self, plan: SyncPlan, token: int, checksum: int) -> None:
        """See `Group.synced`; a round that was under way when the partition was deleted has nothing to tell."""
        if self.closed:
            self._hand_back(plan)
            return
        Group.synced(self, plan, token, checksum)
        if self._shares_counters:
            # What it committed is counted before its answers leave.
            self.host.publish_counters(self)

    def sync_failed(self, plan: SyncPlan, token: int, error: Exception) -> None:
        """See `Group.sync_failed` and `synced`."""
        if self.closed:
            self._hand_back(plan)
        else:
            Group.sync_failed(self, plan, token, error)

    def _hand_back(self, plan: SyncPlan) -> None:
        """The closed log lets go of what the plan held."""
        with suppress(LogFenced):
            self.log.mark_synced(plan)

    def committed(self, effect: Committed) -> None:
        """Answer the request and tell the shard."""
        prepare = effect.prepare
        operation = prepare.operation
        self.applied_checksum = prepare.checksum
        if operation != _SEND:
            self.host.partition_changed(self, operation)
        origin = effect.origin
        if origin is not None:
            origin.committed(prepare.op, prepare.timestamp, operation, effect.reply)

    def flushed(self) -> None:
        """See `Group.flushed`: background sync, counters, roll of segments and checkpoints are the shard's business."""
        written = self.appended_bytes - self.written_bytes
        self.written_bytes = self.appended_bytes
        self._syncer.dirty(self, written)
        if self.log.segment_count != self.segments_seen:
            self.host.partition_rolled(self)
        if self.appended_bytes - self.checkpointed_at >= self._checkpoint_bytes:
            self.host.checkpoint_soon(self)
        if self._shares_counters:
            self.host.publish_counters(self)

    def poll(self, strategy: int, value: int, count: int, stored: int | None) -> tuple[list[Any], int, int, int]:
        """Read messages. Returns (parts, body length, messages, last offset); the first part is the 16-byte head of
        the reply body.

        Args: ``stored`` the consumer's stored offset, or None. Raises `Damaged` when stored bytes do not verify:
        nothing is served
        around damage.
        """
        plane = self.plane
        partition, current = self.identity.partition, plane.committed_offset
        plan = plan_poll(strategy, value, count, plane.first_offset, plane.next_offset, stored)
        if plan is None:
            return [POLL_HEAD.pack(partition, current, 0)], POLL_HEAD.size, 0, 0
        parts, messages, length, last = self._read(plan)
        parts.insert(0, POLL_HEAD.pack(partition, current, messages))
        return parts, POLL_HEAD.size + length, messages, last

    def _read(self, plan: PollPlan) -> tuple[list[Any], int, int, int]:
        log = self.log
        commit = self.replica.commit_min
        start = plan.start
        position: Position | None = None if plan.by_time else self.resume_points.get(start)
        if position is None:
            position = log.locate_time(start) if plan.by_time else log.locate_offset(start)
        parts: list[Any] = []
        messages = length = last = 0
        wanted = self._read_size(plan.count)
        while position is not None and messages < plan.count and length < self.host.poll_bytes_max:
            buffer = self.host.arena.allocate(wanted)
            if buffer is None:
                raise NotAccepted("no room for a poll in the arena")
            read = log.read_into(position, memoryview(buffer)[:wanted])
            found = slice_prepares(
                buffer, 0, read, start, plan.count - messages, commit, plan.by_time, self.host.validate_checksum
            )
            if found.verdict != VALID:
                raise Damaged(log.directory, position.byte + found.position, None, VALID, found.verdict)
            if found.count:
                parts += found.parts
                messages += found.count
                length += found.bytes
                last = found.last_offset
            position = Position(position.segment, position.byte + found.position)
            if found.needed == 0:
                break
            available = log.available(position)
            if not available:
                position = log.next_segment(position)
            elif available < found.needed:
                raise Damaged(log.directory, position.byte, None, found.needed, available)
            else:
                wanted = max(wanted, found.needed)
        if messages and not plan.by_time and position is not None:
            self._remember(last + 1, position)
        return parts, messages, length, last

    def _remember(self, offset: int, position: Any) -> None:
        points = self.resume_points
        if len(points) >= RESUME_POINTS:
            del points[next(iter(points))]
        points[offset] = position

    def _read_size(self, count: int) -> int:
        """Bytes that ``count`` messages are likely to take, from the partition's average."""
        plane = self.plane
        average = plane.bytes // plane.messages if plane.messages else 0
        return min(max(READ_MIN, (count + 1) * (average + 64) + 8192), READ_MAX)
