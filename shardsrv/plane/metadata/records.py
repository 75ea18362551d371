"""State as the records of replies. Counters of messages are not state: they are asked for partition by partition.

Invariants: size and message count of a topic or stream are sums over its partitions; options are written sorted by key.
Lists of thousands of topics are answered between two turns of a pump, so streams, topics and partitions are packed
here, in the layouts of `wire.streams` and `wire.topics` (which read the same bytes back):

    stream    = u32 id, u64 created_at, u32 topics, u64 size, u64 messages, u8+N name, u32+N options (none)
    topic     = u32 id, u64 created_at, u32 partitions, u64 message expiry, u8 compression, u64 max size, u64 size,
                u64 messages, u8+N name, u32+N explicit options, u32+N derived options
    partition = u32 id, u64 created_at, u32 segments, u64 current offset, u64 size, u64 messages
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from shardsrv.plane.metadata.state import ConsumerGroup, Partition, Stream, Topic, User
from shardsrv.wire.consumer_groups import GroupDetailsReply, GroupRecord, MemberRecord
from shardsrv.wire.users import UserDetailsReply, UserRecord

_STREAM: Final = struct.Struct("<IQIQQ")
_TOPIC: Final = struct.Struct("<IQIQBQQQ")
_PARTITION: Final = struct.Struct("<IQIQQQ")
_LENGTH: Final = struct.Struct("<I")
_NO_OPTIONS: Final = bytes(4)


class PartitionCounters(NamedTuple):
    """What the owner of a partition publishes. `size` in bytes; `current_offset` 0 when empty."""

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


def encode_stream(stream: Stream, counters: Counters) -> bytes:
    """The record of a stream."""
    messages = size = 0
    for topic in stream.topics.values():
        of_topic = topic_totals(topic, counters)
        messages += of_topic[0]
        size += of_topic[1]
    head = _STREAM.pack(stream.id, stream.created_at, len(stream.topics), size, messages)
    return head + _name(stream.name) + _NO_OPTIONS


def encode_stream_details(stream: Stream, counters: Counters) -> bytes:
    """A stream with the headers of its topics."""
    headers = [encode_topic_header(topic, counters) for topic in stream.ordered_topics()]
    return encode_stream(stream, counters) + b"".join(headers)


def encode_topic_header(topic: Topic, counters: Counters) -> bytes:
    """The record of a topic, without its partitions."""
    messages, size = topic_totals(topic, counters)
    settings = topic.settings
    explicit, derived = topic.option_blocks
    head = _TOPIC.pack(
        topic.id,
        topic.created_at,
        len(topic.partitions),
        settings.message_expiry,
        settings.compression_algorithm,
        settings.max_topic_size,
        size,
        messages,
    )
    return b"".join(
        (head, _name(topic.name), _LENGTH.pack(len(explicit)), explicit, _LENGTH.pack(len(derived)), derived)
    )


def encode_topic_details(topic: Topic, counters: Counters) -> bytes:
    """A topic with its partitions."""
    parts = [encode_topic_header(topic, counters)]
    for partition in topic.partitions:
        messages, size, current_offset, segments = counters(partition)
        parts.append(_PARTITION.pack(partition.id, partition.created_at, segments, current_offset, size, messages))
    return b"".join(parts)


def encode_topics(topics: list[Topic], counters: Counters) -> bytes:
    """A count and the headers of topics."""
    return _LENGTH.pack(len(topics)) + b"".join([encode_topic_header(topic, counters) for topic in topics])


def _name(name: str) -> bytes:
    encoded = name.encode("utf-8")
    return bytes((len(encoded),)) + encoded


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
