"""Consumer groups: their commands, and which member owns which partition.

Source: the rules of the group commands. Invariants:
- a partition of the topic has at most one owner in a group, and exactly one while the group has members;
- members are taken in the order of their ids (lowest free number), partitions in ascending order, so every copy assigns
  alike; `generation` rises with every change;
- a leave, a lost session or another number of partitions assigns everything anew: partition i to member i mod members;
- a join moves nothing at once: members above the fair share begin to hand over their highest partitions to members
  without any, and each moves when the progress of its owner is committed (operation 67); until then the owner may
  commit, not poll;
- a membership belongs to one session: it ends with its logout, with a newer register of the client id, when the
  client table gives the client up, or when the node that held its connection says that it is gone (operation 66).
"""

from __future__ import annotations

from shardsrv.errors import RequestRefused
from shardsrv.plane.metadata import lookup, permissions, records
from shardsrv.plane.metadata.changes import Change, GroupChanged, GroupDeleted
from shardsrv.plane.metadata.commands import CompleteHandOver, RemoveMember
from shardsrv.plane.metadata.entry import Entry
from shardsrv.plane.metadata.permissions import Right
from shardsrv.plane.metadata.state import ConsumerGroup, HandOver, Member, Membership, MetadataState, Stream, Topic
from shardsrv.wire.consumer_groups import (
    CreateConsumerGroup,
    DeleteConsumerGroup,
    JoinConsumerGroup,
    LeaveConsumerGroup,
)
from shardsrv.wire.error_codes import ErrorCode

GroupPlace = tuple[Stream, Topic, ConsumerGroup]
"""A consumer group with its topic and stream."""


def _target(entry: Entry, command: DeleteConsumerGroup | JoinConsumerGroup | LeaveConsumerGroup) -> GroupPlace:
    """The records that a command names. Raises RequestRefused: 1009, 2010, 5000, then 41."""
    stream, topic, group = lookup.find_group(entry.state, command.stream, command.topic, command.group)
    permissions.require(entry.state, entry.user_id, Right.READ_TOPIC, stream.id, topic.id)
    return stream, topic, group


def create_group(entry: Entry, command: CreateConsumerGroup) -> bytes:
    """Makes a group without members; its id is the next of the topic. Result codes: 1009, 2010, 41, 5004 name taken."""
    stream, topic = lookup.find_topic(entry.state, command.stream, command.topic)
    permissions.require(entry.state, entry.user_id, Right.READ_TOPIC, stream.id, topic.id)
    if command.name in topic.group_ids:
        raise RequestRefused(ErrorCode.CONSUMER_GROUP_NAME_ALREADY_EXISTS, name=command.name)
    group = ConsumerGroup(topic.next_group_id, command.name, entry.op)
    topic.next_group_id += 1
    topic.groups[group.id] = group
    topic.group_ids[group.name] = group.id
    return records.group_details(topic, group).encode()


def delete_group(entry: Entry, command: DeleteConsumerGroup) -> bytes:
    """Removes a group and its memberships. Result codes: 1009, 2010, 5000, 41."""
    stream, topic, group = _target(entry, command)
    for member in group.members.values():
        _forget(entry.state, member.client, (stream.id, topic.id, group.id))
    del topic.groups[group.id]
    del topic.group_ids[group.name]
    entry.changes.append(GroupDeleted(stream.id, topic.id, group.id, group.created_revision))
    return b""


def forget_members(state: MetadataState, stream: Stream, topic: Topic) -> None:
    """A topic is about to be deleted with its groups: their members are in them no more."""
    for group in topic.ordered_groups():
        for member in group.members.values():
            _forget(state, member.client, (stream.id, topic.id, group.id))


def join_group(entry: Entry, command: JoinConsumerGroup) -> bytes:
    """Makes the session a member; joining twice is a success without effect. Result codes: 1009, 2010, 5000, 41."""
    stream, topic, group = _target(entry, command)
    if group.find_member(entry.client) is not None:
        return b""
    number = next(number for number in range(len(group.members) + 1) if number not in group.members)
    group.members[number] = Member(number, entry.client, entry.session)
    entry.state.memberships.setdefault(entry.client, []).append((stream.id, topic.id, group.id))
    _place(group, len(topic.partitions), entry.op)
    _changed(entry.changes, stream.id, topic.id, group)
    return b""


def leave_group(entry: Entry, command: LeaveConsumerGroup) -> bytes:
    """Ends the session's membership. Result codes: 1009, 2010, 5000, 41, 5006 not a member."""
    stream, topic, group = _target(entry, command)
    member = group.find_member(entry.client)
    if member is None:
        raise RequestRefused(ErrorCode.CONSUMER_GROUP_MEMBER_NOT_FOUND, group=group.id)
    _leave(entry.state, entry.changes, stream, topic, group, member)
    return b""


def complete_hand_over(entry: Entry, command: CompleteHandOver) -> bytes:
    """Moves a partition to its new owner. A report about a hand-over that is not pending has no effect: code 20."""
    stream = entry.state.streams.get(command.stream)
    topic = None if stream is None else stream.topics.get(command.topic)
    group = None if topic is None else topic.groups.get(command.group)
    if stream is None or topic is None or group is None or group.created_revision != command.created_revision:
        raise RequestRefused(ErrorCode.RESOURCE_NOT_FOUND, group=command.group)
    for member in group.ordered_members():
        for hand_over in member.pending:
            if (hand_over.partition, hand_over.since) == (command.partition, command.since):
                member.pending.remove(hand_over)
                member.partitions.remove(hand_over.partition)
                successor = group.members[hand_over.successor]
                successor.partitions = sorted([*successor.partitions, hand_over.partition])
                _changed(entry.changes, stream.id, topic.id, group)
                return b""
    raise RequestRefused(ErrorCode.RESOURCE_NOT_FOUND, partition=command.partition, since=command.since)


def partitions_changed(entry: Entry, stream: Stream, topic: Topic) -> None:
    """The topic has another number of partitions: every group with members is assigned anew."""
    for group in topic.ordered_groups():
        if group.members:
            _assign(group, len(topic.partitions))
            _changed(entry.changes, stream.id, topic.id, group)


def end_session(state: MetadataState, changes: list[Change], client: bytes, session: int | None = None) -> None:
    """Ends the memberships of a client id: those of `session` alone, or all of them."""
    for stream_id, topic_id, group_id in state.memberships_of(client):
        stream = state.streams[stream_id]
        topic = stream.topics[topic_id]
        group = topic.groups[group_id]
        member = group.find_member(client)
        if member is not None and session in (None, member.session):
            _leave(state, changes, stream, topic, group, member)


def remove_member(entry: Entry, command: RemoveMember) -> bytes:
    """Ends the memberships of one session; without any it has no effect."""
    end_session(entry.state, entry.changes, command.client, command.session)
    return b""


def may_poll(group: ConsumerGroup, client: bytes, partition: int) -> bool:
    """Whether a member owns a partition and is not handing it over."""
    member = group.find_member(client)
    return member is not None and partition in member.pollable


def may_commit(group: ConsumerGroup, client: bytes, partition: int) -> bool:
    """Whether a member owns a partition; one that it is handing over still counts."""
    member = group.find_member(client)
    return member is not None and partition in member.partitions


def _leave(
    state: MetadataState, changes: list[Change], stream: Stream, topic: Topic, group: ConsumerGroup, member: Member
) -> None:
    del group.members[member.id]
    _forget(state, member.client, (stream.id, topic.id, group.id))
    _assign(group, len(topic.partitions))
    _changed(changes, stream.id, topic.id, group)


def _forget(state: MetadataState, client: bytes, membership: Membership) -> None:
    memberships = state.memberships[client]
    memberships.remove(membership)
    if not memberships:
        del state.memberships[client]


def _changed(changes: list[Change], stream: int, topic: int, group: ConsumerGroup) -> None:
    group.generation += 1
    changes.append(GroupChanged(stream, topic, group.id, group.created_revision, group.generation))


def _assign(group: ConsumerGroup, partitions_count: int) -> None:
    """Assigns every partition anew; pending hand-overs are moot."""
    members = group.ordered_members()
    for place, member in enumerate(members):
        member.partitions = list(range(place, partitions_count, len(members)))
        member.pending = []


def _place(group: ConsumerGroup, partitions_count: int, op: int) -> None:
    """Gives members without partitions those that nobody owns, in turn, or lets others begin to hand some over."""
    members = group.ordered_members()
    expecting = [hand_over.successor for member in members for hand_over in member.pending]
    idle = [member for member in members if not member.partitions and member.id not in expecting]
    owned = {partition for member in members for partition in member.partitions}
    unowned = [partition for partition in range(partitions_count) if partition not in owned]
    for place, partition in enumerate(unowned if idle else []):
        idle[place % len(idle)].partitions.append(partition)
    share = partitions_count // len(members)
    for receiver in idle:
        if receiver.partitions:
            continue
        for _ in range(share):
            donor = max(members, key=lambda member: (len(member.pollable), -member.id))
            if len(donor.pollable) <= share:
                break
            donor.pending.append(HandOver(donor.pollable[-1], receiver.id, op))
            donor.pending.sort(key=lambda hand_over: hand_over.partition)
