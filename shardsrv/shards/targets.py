"""Targets: from the names in a request to the partition and the shard that owns it.

Resolution reads this shard's copy of the metadata; results carry the metadata op at which they were made (`epoch`), and
are good until the copy moves on. Order of checks: what does not resolve is refused before permissions are looked at
(wire-messages.md 1.8).
"""

from shardsrv._core import xxh32
from shardsrv.errors import RequestRefused
from shardsrv.plane.metadata import queries
from shardsrv.plane.metadata.options_catalog import TopicSettings
from shardsrv.plane.metadata.permissions import Right, require
from shardsrv.plane.metadata.plane import MetadataPlane
from shardsrv.plane.metadata.state import ConsumerGroup, identity_of
from shardsrv.shards.session import Session
from shardsrv.shards.target import Target
from shardsrv.store.group_key import owner_shard
from shardsrv.wire.constants import ConsumerKind, PartitioningKind
from shardsrv.wire.error_codes import ErrorCode
from shardsrv.wire.primitives import Consumer, Identifier, Partitioning

BALANCES_MAX = 4096
"""Topics whose turn of partitions one connection may hold."""


class Targets:
    """Resolves the names of partition requests on one shard."""

    def __init__(self, plane: MetadataPlane, shard_count: int, durability_floor: int) -> None:
        self._plane = plane
        self._shard_count = shard_count
        self._floor = durability_floor

    def partition(
        self, session: Session, stream: Identifier, topic: Identifier, partition: int, right: Right
    ) -> Target:
        """The named partition. Raises `RequestRefused` with 1009, 2010, 3007 (not found) or 41 (not allowed)."""
        state = self._plane.state
        stream_record, topic_record, partition_record = queries.locate(state, stream, topic, partition)
        require(state, session.user_id, right, stream_record.id, topic_record.id)
        identity = identity_of(stream_record, topic_record, partition_record)
        settings = topic_record.settings
        group = identity.group
        return Target(
            identity,
            group,
            owner_shard(group, self._shard_count),
            self._plane.op,
            max(self._floor, settings.durability),
            self.offset_durability(settings),
        )

    def offset_durability(self, settings: TopicSettings) -> int:
        """The durability of offset writes in a topic, with the floor of the configuration."""
        return max(self._floor, settings.consumer_offset_durability)

    def send(
        self, session: Session, stream: Identifier, topic: Identifier, partitioning: Partitioning
    ) -> tuple[Target, bool]:
        """The partition of a send, and whether the same bytes always mean it. Everything that does not resolve is 20
        (wire-protocol.md 11.2)."""
        stream_record = self._plane.state.find_stream(stream)
        topic_record = stream_record.find_topic(topic) if stream_record is not None else None
        if stream_record is None or topic_record is None or not topic_record.partitions:
            raise RequestRefused(ErrorCode.RESOURCE_NOT_FOUND, stream=stream, topic=topic)
        kind = partitioning.kind
        count = len(topic_record.partitions)
        if kind == PartitioningKind.PARTITION_ID:
            assert isinstance(partitioning.value, int)
            partition = partitioning.value
        elif kind == PartitioningKind.MESSAGES_KEY:
            assert isinstance(partitioning.value, bytes)
            partition = xxh32(partitioning.value) % count
        else:
            place = (stream_record.id, topic_record.id)
            partition = session.balance.get(place, 0) % count
            if len(session.balance) >= BALANCES_MAX:
                session.balance.clear()
            session.balance[place] = partition + 1
        try:
            target = self.partition(session, stream_record.id, topic_record.id, partition, Right.SEND)
        except RequestRefused as refusal:
            if refusal.code == ErrorCode.UNAUTHORIZED:
                raise
            raise RequestRefused(
                ErrorCode.RESOURCE_NOT_FOUND, stream=stream, topic=topic, partition=partition
            ) from refusal
        return target, kind != PartitioningKind.BALANCED

    def offset_key(self, stream: Identifier, topic: Identifier, consumer: Consumer) -> int | None:
        """The key under which a consumer's offset is stored; None for a group that does not resolve."""
        if consumer.kind == ConsumerKind.CONSUMER:
            return consumer.offset_key()
        group = self._group(stream, topic, consumer.id)
        return None if group is None else group.id

    def only_partition(self, stream: Identifier, topic: Identifier, group_id: int, member: bytes) -> int | None:
        """The partition of a member that owns exactly one."""
        group = self._group(stream, topic, group_id)
        found = None if group is None else group.find_member(member)
        return found.partitions[0] if found is not None and len(found.partitions) == 1 else None

    def _group(self, stream: Identifier, topic: Identifier, group: Identifier) -> ConsumerGroup | None:
        stream_record = self._plane.state.find_stream(stream)
        topic_record = None if stream_record is None else stream_record.find_topic(topic)
        return None if topic_record is None else topic_record.find_group(group)
