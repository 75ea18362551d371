"""The commands on topics and their partitions.

Invariants: as in `streams`; partitions are added behind the highest and removed from the tail; each takes the lowest
free counter slot; what the owning shards must do is recorded in `entry.changes`. Options reach this module resolved or
checked, and are checked again against the topic as it is when the entry is applied.
"""

from __future__ import annotations

from shardsrv.errors import InvalidOptionValue, RequestRefused
from shardsrv.plane.metadata import groups, lookup, options_catalog, permissions, records
from shardsrv.plane.metadata.changes import (
    CreatedPartition,
    PartitionsCreated,
    PartitionsDeleted,
    TopicPurged,
    TopicUpdated,
)
from shardsrv.plane.metadata.commands import CreatePartitionsResolved, CreateTopicResolved
from shardsrv.plane.metadata.entry import Entry
from shardsrv.plane.metadata.options_catalog import TopicSettings, Values
from shardsrv.plane.metadata.permissions import Right
from shardsrv.plane.metadata.state import Partition, PartitionIdentity, Stream, Topic, identity_of
from shardsrv.wire.error_codes import ErrorCode
from shardsrv.wire.groups import MAX_PARTITIONS
from shardsrv.wire.topics import DeletePartitions, DeleteTopic, PurgeTopic, UpdateTopic


def identities(stream: Stream, topic: Topic) -> tuple[PartitionIdentity, ...]:
    """The partitions of a topic, in ascending order."""
    return tuple(identity_of(stream, topic, partition) for partition in topic.partitions)


def create_topic(entry: Entry, command: CreateTopicResolved) -> bytes:
    """Makes a topic with its partitions. Result codes: 1009, 41, 2013 name taken, 2021 full, 3013, 4042."""
    stream = lookup.find_stream(entry.state, command.stream)
    permissions.require(entry.state, entry.user_id, Right.CREATE_TOPIC, stream.id)
    if command.name in stream.topic_ids:
        raise RequestRefused(ErrorCode.TOPIC_NAME_ALREADY_EXISTS, name=command.name)
    if stream.topic_numbers.exhausted:
        raise RequestRefused(ErrorCode.TOO_MANY_TOPICS, stream=stream.id)
    _check_space(command.partitions_count)
    explicit = {option.key: option.value for option in command.explicit}
    derived = {option.key: option.value for option in command.derived}
    settings = options_catalog.check_stored(explicit, derived)
    number = stream.topic_numbers.take()
    topic = Topic(number, command.name, entry.timestamp, entry.op, explicit, derived, settings)
    stream.topics[topic.id] = topic
    stream.topic_ids[topic.name] = topic.id
    add_partitions(entry, stream, topic, command.partitions_count, command.created_view)
    return records.encode_topic_details(topic, records.no_counters)


def update_topic(entry: Entry, command: UpdateTopic) -> bytes:
    """Sets the name, and the options whose keys are present. Result codes: 1009, 2010, 41, 2013, 4042."""
    stream, topic = lookup.find_topic(entry.state, command.stream, command.topic)
    permissions.require(entry.state, entry.user_id, Right.WRITE_TOPIC, stream.id, topic.id)
    if stream.topic_ids.get(command.name, topic.id) != topic.id:
        raise RequestRefused(ErrorCode.TOPIC_NAME_ALREADY_EXISTS, name=command.name)
    explicit, derived, settings = updated_options(topic, command)
    del stream.topic_ids[topic.name]
    topic.name = command.name
    stream.topic_ids[topic.name] = topic.id
    changed = settings != topic.settings
    topic.set_options(explicit, derived, settings)
    if changed:
        entry.changes.append(TopicUpdated(identities(stream, topic), settings))
    return b""


def updated_options(topic: Topic, command: UpdateTopic) -> tuple[Values, Values, TopicSettings]:
    """Explicit options, derived options and settings of a topic after an update. Raises InvalidOptionValue (4042) when
    the topic, which may be another one than at admission, could then hold less than a segment."""
    changes = options_catalog.check_update(command.options)
    explicit, derived = options_catalog.update(topic.explicit, topic.derived, changes)
    settings = options_catalog.settings_of(explicit, derived)
    if settings.max_topic_size < settings.segment_size:
        raise InvalidOptionValue("max_topic_size", settings.max_topic_size, "less than a segment")
    return explicit, derived, settings


def delete_topic(entry: Entry, command: DeleteTopic) -> bytes:
    """Removes a topic with its partitions and groups. Result codes: 1009, 2010, 41."""
    stream, topic = lookup.find_topic(entry.state, command.stream, command.topic)
    permissions.require(entry.state, entry.user_id, Right.WRITE_TOPIC, stream.id, topic.id)
    groups.forget_members(entry.state, stream, topic)
    remove_partitions(entry, stream, topic, len(topic.partitions))
    del stream.topics[topic.id]
    del stream.topic_ids[topic.name]
    stream.topic_numbers.release(topic.id)
    return b""


def purge_topic(entry: Entry, command: PurgeTopic) -> bytes:
    """Empties every partition. Result codes: 1009, 2010, 41."""
    stream, topic = lookup.find_topic(entry.state, command.stream, command.topic)
    permissions.require(entry.state, entry.user_id, Right.WRITE_TOPIC, stream.id, topic.id)
    purge(entry, stream, topic)
    return b""


def purge(entry: Entry, stream: Stream, topic: Topic) -> None:
    """Sets the purge generation of a topic to this op."""
    topic.purge_generation = entry.op
    if topic.partitions:
        entry.changes.append(TopicPurged(identities(stream, topic), entry.op))


def _check_space(partitions: int) -> None:
    """Raises RequestRefused (3013) for more partitions than a topic has ids for."""
    if partitions > MAX_PARTITIONS:
        raise RequestRefused(ErrorCode.PARTITION_ID_SPACE_EXHAUSTED, partitions=partitions)


def create_partitions(entry: Entry, command: CreatePartitionsResolved) -> bytes:
    """Adds partitions. Result codes: 1009, 2010, 41, 3013 no ids left."""
    stream, topic = lookup.find_topic(entry.state, command.stream, command.topic)
    permissions.require(entry.state, entry.user_id, Right.WRITE_TOPIC, stream.id, topic.id)
    _check_space(len(topic.partitions) + command.partitions_count)
    add_partitions(entry, stream, topic, command.partitions_count, command.created_view)
    groups.partitions_changed(entry, stream, topic)
    return b""


def delete_partitions(entry: Entry, command: DeletePartitions) -> bytes:
    """Removes partitions from the tail. Result codes: 1009, 2010, 41, 2019 more than there are."""
    stream, topic = lookup.find_topic(entry.state, command.stream, command.topic)
    permissions.require(entry.state, entry.user_id, Right.WRITE_TOPIC, stream.id, topic.id)
    if command.partitions_count > len(topic.partitions):
        raise RequestRefused(ErrorCode.INVALID_PARTITIONS_COUNT, partitions=len(topic.partitions))
    remove_partitions(entry, stream, topic, command.partitions_count)
    groups.partitions_changed(entry, stream, topic)
    return b""


def add_partitions(entry: Entry, stream: Stream, topic: Topic, count: int, view: int) -> None:
    """Appends `count` partitions and records the change."""
    created: list[CreatedPartition] = []
    for _ in range(count):
        partition = Partition(len(topic.partitions), entry.op, entry.timestamp, view, entry.state.slots.take())
        topic.partitions.append(partition)
        created.append(CreatedPartition(identity_of(stream, topic, partition), partition.slot, view))
    if created:
        entry.changes.append(PartitionsCreated(tuple(created), topic.settings))


def remove_partitions(entry: Entry, stream: Stream, topic: Topic, count: int) -> None:
    """Removes the last `count` partitions, gives their slots back and records the change."""
    if count == 0:
        return
    removed = topic.partitions[-count:]
    del topic.partitions[-count:]
    for partition in removed:
        entry.state.slots.release(partition.slot)
    gone = tuple(identity_of(stream, topic, partition) for partition in removed)
    entry.changes.append(PartitionsDeleted(gone, tuple(partition.slot for partition in removed)))
