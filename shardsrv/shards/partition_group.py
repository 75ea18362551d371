"""One partition on the shard that owns it: the group driver, its polls and its counters.

A poll is planned by the pure plane, read from the log into a buffer of the arena and answered as buffers that skip the prepare headers.
Nothing above the committed op is ever returned.
"""

import struct
from typing import Any, Protocol

from shardsrv._core import VALID, slice_prepares
from shardsrv.bus._memory import Arena
from shardsrv.errors import Damaged
from shardsrv.plane.metadata.state import PartitionIdentity
from shardsrv.plane.partition import poll
from shardsrv.plane.partition.plane import PartitionPlane
from shardsrv.shards.group import Group, Host
from shardsrv.store.log import PrepareLog
from shardsrv.vsr.effects import Committed
from shardsrv.vsr.replica import Replica

POLL_HEAD = struct.Struct("<IQI")
"""u32 partition_id | u64 current_offset | u32 message count (wire-operations.md 5)."""

READ_MIN = 64 * 1024
READ_MAX = 8 * 1024 * 1024
"""Bytes read at once for a poll: one index step at least; large polls go on in further reads, so that a read stays short."""

RESUME_POINTS = 8
"""Where recent polls ended, kept per partition: a consumer that goes on reads without looking into the index."""


class PartitionHost(Host, Protocol):
    """What a partition group needs of its shard."""

    arena: Arena
    poll_bytes_max: int
    validate_checksum: bool

    def partition_changed(self, group: "PartitionGroup", operation: int) -> None:
        """Committed state moved on: counters and checkpoints may be due."""


class PartitionGroup(Group):
    """Driver of one partition group."""

    __slots__ = (
        "checkpoint_due", "checkpointed_bytes", "closed", "counter_slot", "counters_stale", "durability", "identity", "offset_durability", "plane",
        "resume_points", "table_pair",
    )

    host: PartitionHost

    def __init__(
        self, host: PartitionHost, identity: PartitionIdentity, replica: Replica, plane: PartitionPlane, log: PrepareLog, *, counter_slot: int,
        durability: int, offset_durability: int, table_pair: int,
    ) -> None:
        super().__init__(host, replica, log)
        self.identity = identity
        self.plane = plane
        self.counter_slot = counter_slot
        self.durability = durability
        self.offset_durability = offset_durability
        self.table_pair = table_pair
        self.checkpointed_bytes = log.bytes
        self.checkpoint_due = False
        self.counters_stale = False
        self.closed = False
        self.resume_points: dict[int, Any] = {}

    def committed(self, effect: Committed) -> None:
        """Answer the request and tell the shard."""
        prepare = effect.prepare
        operation = prepare.operation
        self.host.partition_changed(self, operation)
        origin = effect.origin
        if origin is not None:
            origin.committed(prepare.op, prepare.timestamp, operation, effect.reply)

    def poll(self, strategy: int, value: int, count: int, stored: int | None) -> tuple[list[Any], int, int, int]:
        """Read messages. Returns (parts, body length, messages, last offset); the first part is the 16-byte head of the reply body.

        Args: ``stored`` the consumer's stored offset, or None. Raises `Damaged` when stored bytes do not verify: nothing is served
        around damage.
        """
        plane = self.plane
        current = plane.committed_offset
        plan = poll.plan(strategy, value, count, committed=current, stored=stored, first=plane.first_offset)
        partition = self.identity.partition
        if plan is None:
            return [POLL_HEAD.pack(partition, current or 0, 0)], POLL_HEAD.size, 0, 0
        parts, messages, length, last = self._read(plan)
        parts.insert(0, POLL_HEAD.pack(partition, current or 0, messages))
        return parts, POLL_HEAD.size + length, messages, last

    def _read(self, plan: poll.PollPlan) -> tuple[list[Any], int, int, int]:
        log = self.log
        commit = self.replica.commit
        start = plan.value
        position = self.resume_points.get(start) if not plan.by_time else None
        if position is None:
            position = log.locate_time(start) if plan.by_time else log.locate_offset(start)
        parts: list[Any] = []
        messages = length = last = 0
        wanted = self._read_size(plan.count)
        while position is not None and messages < plan.count and length < self.host.poll_bytes_max:
            buffer = self.host.arena.allocate(wanted)
            if buffer is None:
                break
            read = log.read_into(position, memoryview(buffer)[:wanted])
            if read == 0:
                position = log.next_segment(position)
                continue
            found = slice_prepares(
                buffer, 0, read, start, plan.count - messages, commit, plan.by_time, self.host.validate_checksum
            )
            if found.verdict != VALID:
                raise Damaged(path=str(log.path_of(position)), offset=position.offset + found.position)
            parts += found.parts
            if found.count:
                messages += found.count
                length += found.bytes
                last = found.last_offset
            if found.position == 0 and found.needed:
                if read < wanted:
                    position = log.next_segment(position)
                    continue
                wanted = min(max(found.needed, wanted * 2), self.host.poll_bytes_max + READ_MAX)
                continue
            position = position.advanced(found.position)
            if found.done:
                break
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
