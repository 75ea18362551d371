"""State as the records of replies. Counters of messages are not state: they are asked for partition by partition.

Invariants: size and message count of a topic or stream are sums over its partitions; options are written sorted by key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from shardsrv.plane.metadata.state import ConsumerGroup, Partition, Stream, Topic, User
from shardsrv.wire.consumer_groups import GroupDetailsReply, GroupRecord, MemberRecord
from shardsrv.wire.options import options_of
from shardsrv.wire.streams import StreamDetailsReply, StreamRecord
from shardsrv.wire.topics import PartitionRecord, TopicDetailsReply, TopicHeader
from shardsrv.wire.users import UserDetailsReply, UserRecord


class PartitionCounters(NamedTuple):
    """What the owner of a partition publishes. `size` in bytes; `current_offset` 0 when empty; `segments` at least
    1."""

    messages: int
    size: int
    current_offset: int
    segments: int


Counters = Callable[[Partition], tuple[int, int, int, int]]
"""(messages, bytes, current offset, segments) of a partition: any tuple in the order of `PartitionCounters`."""

ZERO_COUNTERS: Final = PartitionCounters(0, 0, 0, 0)


def no_counters(partition: Partition) -> PartitionCounters:
    """The counters in the reply to a creation: all zero, segments too."""
    return ZERO_COUNTERS


def topic_totals(topic: Topic, counters: Counters) -> tuple[int, int]:
    """(messages, bytes) of a topic."""
    messages = size = 0
    for partition in topic.partitions:
        counted = counters(partition)
        messages += counted[0]
        size += counted[1]
    return messages, size


def stream_record(stream: Stream, counters: Counters) -> StreamRecord:
    """The record of a stream."""
    messages = size = 0
    for topic in stream.topics.values():
        of_topic = topic_totals(topic, counters)
        messages += of_topic[0]
        size += of_topic[1]
    return StreamRecord(stream.id, stream.created_at, len(stream.topics), size, messages, stream.name)


def stream_details(stream: Stream, counters: Counters) -> StreamDetailsReply:
    """A stream with the headers of its topics."""
    headers = tuple(topic_header(topic, counters) for topic in stream.ordered_topics())
    return StreamDetailsReply(stream_record(stream, counters), headers)


def topic_header(topic: Topic, counters: Counters) -> TopicHeader:
    """The record of a topic, without its partitions."""
    messages, size = topic_totals(topic, counters)
    settings = topic.settings
    return TopicHeader(
        id=topic.id,
        created_at=topic.created_at,
        partitions_count=len(topic.partitions),
        message_expiry=settings.message_expiry,
        compression_algorithm=settings.compression_algorithm,
        max_topic_size=settings.max_topic_size,
        size_bytes=size,
        messages_count=messages,
        name=topic.name,
        options=options_of(topic.explicit),
        derived_options=options_of(topic.derived),
    )


def topic_details(topic: Topic, counters: Counters) -> TopicDetailsReply:
    """A topic with its partitions."""
    return TopicDetailsReply(
        topic_header(topic, counters), tuple(partition_record(partition, counters) for partition in topic.partitions)
    )


def partition_record(partition: Partition, counters: Counters) -> PartitionRecord:
    """The record of a partition."""
    messages, size, current_offset, segments = counters(partition)
    return PartitionRecord(partition.id, partition.created_at, segments, current_offset, size, messages)


def user_record(user: User) -> UserRecord:
    """The record of a user."""
    return UserRecord(user.id, user.created_at, int(user.status), user.username)


def user_details(user: User) -> UserDetailsReply:
    """A user with permissions."""
    return UserDetailsReply(user_record(user), user.permissions)


def group_record(topic: Topic, group: ConsumerGroup) -> GroupRecord:
    """The record of a consumer group."""
    return GroupRecord(group.id, len(topic.partitions), len(group.members), group.name)


def group_details(topic: Topic, group: ConsumerGroup) -> GroupDetailsReply:
    """A consumer group with its members and all that they own, also what they are handing over."""
    members = tuple(MemberRecord(member.id, tuple(member.partitions)) for member in group.ordered_members())
    return GroupDetailsReply(group_record(topic, group), members)
