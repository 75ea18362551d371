"""Consumer groups on the shard that owns partitions: who may poll and commit, hand-overs, and offsets that die with
their group.

The assignment is metadata; this shard applies it and fences by it. Invariants:

* whether a member owns a partition is decided on the shard that owns the partition, by the copy of the metadata that
  is applied there: once a hand-over is applied,
  no poll of the old owner is answered any more;
* a hand-over is reported (operation 67) when every message that the old owner polled is covered by a committed
  offset, or when the time for it is over; it is
  reported again as long as metadata shows it, so no answer has to be waited for;
* the offsets of a deleted group are removed by an entry of the partition's log; group ids of a topic are not used
  again, so a late removal hurts nobody.
"""

import time
from collections.abc import Callable, Iterable
from typing import Protocol

import trio

from shardsrv.plane.metadata.changes import Change, GroupChanged, GroupDeleted
from shardsrv.plane.metadata.commands import CompleteHandOver
from shardsrv.plane.metadata.groups import may_commit, may_poll
from shardsrv.plane.metadata.plane import MetadataPlane
from shardsrv.plane.metadata.state import ConsumerGroup, HandOver, Member, PartitionIdentity, Topic
from shardsrv.plane.partition import offsets
from shardsrv.shards.answers import NOBODY
from shardsrv.shards.partition_group import PartitionGroup
from shardsrv.vsr.events import Request
from shardsrv.wire.constants import ZERO_ID, Operation
from shardsrv.wire.groups import pack_group

REPORT_AGAIN = 5.0
"""Seconds after which a reported hand-over that metadata still shows is reported again."""


class GroupsHost(Protocol):
    """What this module needs of its shard."""

    plane: MetadataPlane
    groups: dict[int, PartitionGroup]


HandOverKey = tuple[PartitionIdentity, int, int]
"""(partition, consumer group, op at which the hand-over began)."""


class ConsumerGroups:
    """See the module."""

    def __init__(
        self,
        host: GroupsHost,
        *,
        submit: Callable[[int, bytes], None],
        mine: Callable[[int], bool],
        step: Callable[..., None],
        timeout: float,
        durability: Callable[[PartitionGroup], int],
    ) -> None:
        self._host = host
        self._submit = submit
        self._mine = mine
        self._step = step
        self._timeout = timeout
        self._durability = durability
        self._pending: dict[HandOverKey, tuple[float, float]] = {}
        """Deadline, and when it was reported last (0: never)."""
        self._missed: dict[tuple[int, int, int], None] = {}
        """Groups with a hand-over of a partition of this shard that is still being made."""
        self._wake = trio.Event()

    # ------------------------------------------------------------------------------------------------ fences

    def find(self, identity: PartitionIdentity, group_id: int) -> ConsumerGroup | None:
        """A group of the partition's topic."""
        topic = self._topic(identity.stream, identity.topic)
        return None if topic is None else topic.groups.get(group_id)

    def may_poll(self, identity: PartitionIdentity, group_id: int, client: bytes) -> bool:
        """Whether the member owns the partition and does not hand it over."""
        group = self.find(identity, group_id)
        return group is not None and may_poll(group, client, identity.partition)

    def may_commit(self, identity: PartitionIdentity, group_id: int, client: bytes) -> bool:
        """Whether the member owns the partition; one that it hands over still counts."""
        group = self.find(identity, group_id)
        return group is not None and may_commit(group, client, identity.partition)

    def polled(self, partition: PartitionGroup, group_id: int, client: bytes, last: int) -> None:
        """A member was given messages up to offset ``last``."""
        before = partition.polled.get(group_id)
        if before is None or before[0] != client or before[1] < last:
            partition.polled[group_id] = (client, last)

    # ------------------------------------------------------------------------------------------------ changes

    def follow(self, changes: Iterable[Change]) -> list[Change]:
        """Take the changes that concern groups; returns the others."""
        others: list[Change] = []
        for change in changes:
            if isinstance(change, GroupChanged):
                self._look(change.stream, change.topic, change.group)
            elif isinstance(change, GroupDeleted):
                self._forget(change.stream, change.topic, change.group)
            else:
                others.append(change)
        return others

    def reconcile_all(self) -> None:
        """After a start: hand-overs that are pending, offsets of groups that were deleted."""
        for stream, topic in self._host.plane.state.all_topics():
            for group_id in sorted(topic.groups):
                self._look(stream.id, topic.id, group_id)
        for partition in list(self._host.groups.values()):
            owner = self._topic(partition.identity.stream, partition.identity.topic)
            gone = [key for key in partition.plane.group_offsets if owner is None or key not in owner.groups]
            if gone:
                self._remove_offsets(partition, sorted(gone))

    def _look(self, stream: int, topic: int, group_id: int) -> None:
        """Note every hand-over of a partition of this shard, and report those that are drained."""
        record = self._topic(stream, topic)
        group = None if record is None else record.groups.get(group_id)
        if group is None:
            return
        for member in group.ordered_members():
            for hand_over in member.pending:
                partition = self._partition(stream, topic, hand_over.partition)
                if partition is not None:
                    key = (partition.identity, group_id, hand_over.since)
                    if key not in self._pending:
                        self._pending[key] = (trio.current_time() + self._timeout, 0.0)
                        self._wake.set()
                    self._consider(key, partition, group, member, hand_over)
                elif self._mine(pack_group(stream, topic, hand_over.partition)):
                    self._missed[stream, topic, group_id] = None

    def partitions_made(self) -> None:
        """Partitions of this shard have come: look at what was missed."""
        missed, self._missed = self._missed, {}
        for stream, topic, group_id in missed:
            self._look(stream, topic, group_id)

    def stored(self, partition: PartitionGroup) -> None:
        """Offsets of the partition were committed: hand-overs may be drained by it."""
        if not self._pending:
            return
        for key in [key for key in self._pending if key[0] == partition.identity]:
            self._recheck(key)

    def _recheck(self, key: HandOverKey) -> None:
        identity, group_id, since = key
        partition = self._host.groups.get(identity.group)
        group = self.find(identity, group_id)
        if partition is not None and partition.identity == identity and group is not None:
            for member in group.ordered_members():
                for hand_over in member.pending:
                    if (hand_over.partition, hand_over.since) == (identity.partition, since):
                        self._consider(key, partition, group, member, hand_over)
                        return
        del self._pending[key]

    def _consider(
        self, key: HandOverKey, partition: PartitionGroup, group: ConsumerGroup, member: Member, hand_over: HandOver
    ) -> None:
        """Report the hand-over when it is drained or overdue, and not only just reported. In a cluster that is the
        partition's primary's to say."""
        if not partition.replica.leads:
            return
        deadline, reported = self._pending[key]
        now = trio.current_time()
        client, last = partition.polled.get(group.id, (b"", -1))
        stored = partition.plane.stored_offset(offsets.GROUP, group.id)
        drained = client != member.client or (stored is not None and stored >= last)
        if (drained or now >= deadline) and (reported == 0.0 or now - reported >= REPORT_AGAIN):
            self._pending[key] = (deadline, now)
            identity = key[0]
            command = CompleteHandOver(
                identity.stream, identity.topic, group.id, group.created_revision, identity.partition, hand_over.since
            )
            self._submit(Operation.COMPLETE_CONSUMER_GROUP_REVOCATION, command.encode())

    async def run(self) -> None:
        """The task: hand-overs whose time is over, or whose report was lost; sleeps while none is pending."""
        while True:
            if not self._pending:
                self._wake = trio.Event()
                await self._wake.wait()
            await trio.sleep(min(1.0, max(0.05, self._timeout / 4)))
            self._step(self._recheck_all)

    def _recheck_all(self) -> None:
        for key in list(self._pending):
            self._recheck(key)

    # ------------------------------------------------------------------------------------------------ offsets of
    # deleted groups

    def _forget(self, stream: int, topic: int, group_id: int) -> None:
        for partition in self._host.groups.values():
            if (partition.identity.stream, partition.identity.topic) == (stream, topic):
                partition.polled.pop(group_id, None)
                if (
                    partition.replica.in_flight
                    or partition.waiting
                    or partition.plane.stored_offset(offsets.GROUP, group_id) is not None
                ):
                    self._remove_offsets(partition, [group_id])

    def _remove_offsets(self, partition: PartitionGroup, group_ids: list[int]) -> None:
        body = offsets.encode_keys([(offsets.GROUP, group_id) for group_id in group_ids])
        partition.submit(
            Request(
                ZERO_ID,
                0,
                0,
                Operation.DELETE_CONSUMER_OFFSET,
                0,
                0,
                self._durability(partition),
                body,
                NOBODY,
                time.time_ns() // 1000,
            )
        )

    # ------------------------------------------------------------------------------------------------ lookup

    def _topic(self, stream: int, topic: int) -> Topic | None:
        record = self._host.plane.state.streams.get(stream)
        return None if record is None else record.topics.get(topic)

    def _partition(self, stream: int, topic: int, partition: int) -> PartitionGroup | None:
        return self._host.groups.get(pack_group(stream, topic, partition))
