"""The sections of a metadata snapshot turned into records, every field checked; the layout is in `snapshot`.

Invariants: nothing that exists is touched; ids ascend and lie within their limits, names are unique among siblings,
partition ids are 0..n-1, revisions are not above the op of the snapshot, no two partitions share a counter slot, root
exists.
"""

from __future__ import annotations

from typing import Any

from shardsrv.errors import DecodeError, InvalidOptionValue, UnsupportedOptionKey
from shardsrv.plane.metadata import options_catalog
from shardsrv.plane.metadata.options_catalog import Values
from shardsrv.plane.metadata.snapshot_fields import U32_MAX, ascending, blob, number, record, sequence, text
from shardsrv.plane.metadata.state import (
    MAX_SLOTS,
    MAX_USERS,
    ROOT_ID,
    ConsumerGroup,
    HandOver,
    Member,
    Partition,
    Stream,
    Token,
    Topic,
    User,
)
from shardsrv.wire.constants import UserStatus
from shardsrv.wire.groups import MAX_PARTITIONS, MAX_STREAMS, MAX_TOPICS
from shardsrv.wire.options import MAX_OPTIONS_SIZE, decode_options
from shardsrv.wire.permissions import Permissions, decode_permissions

MAX_HASH: int = 1024
"""Bytes of an encoded password hash or token digest."""


def read_streams(value: Any, op: int) -> list[Stream]:
    """The section of streams of a snapshot taken at `op`."""
    slots: set[int] = set()
    streams: list[Stream] = []
    names: set[str] = set()
    previous = -1
    for item in sequence(value, "snapshot section streams"):
        number_, name, created_at, revision, topics = record(item, "stream", 5)
        previous = ascending(previous, number(number_, "stream id", MAX_STREAMS - 1), "stream id")
        stream = Stream(
            previous,
            _unique(names, text(name, "stream name"), "stream name"),
            number(created_at, "stream created_at"),
            number(revision, "stream created_revision", op),
        )
        stream.topics = {topic.id: topic for topic in _read_topics(topics, op, slots)}
        streams.append(stream)
    return streams


def _read_topics(value: Any, op: int, slots: set[int]) -> list[Topic]:
    topics: list[Topic] = []
    names: set[str] = set()
    previous = -1
    for item in sequence(value, "topics"):
        topic = _read_topic(record(item, "topic", 10), op, slots)
        previous = ascending(previous, topic.id, "topic id")
        _unique(names, topic.name, "topic name")
        topics.append(topic)
    return topics


def _read_topic(fields: list[Any], op: int, slots: set[int]) -> Topic:
    number_, name, created_at, revision, explicit, derived, purge_generation, partitions, next_group_id, groups = fields
    explicit_values, derived_values = _read_options(explicit), _read_options(derived)
    try:
        settings = options_catalog.check_stored(explicit_values, derived_values)
    except (UnsupportedOptionKey, InvalidOptionValue) as error:
        raise DecodeError("topic options", 0, "the catalogue", str(error)) from None
    topic = Topic(
        number(number_, "topic id", MAX_TOPICS - 1),
        text(name, "topic name"),
        number(created_at, "topic created_at"),
        number(revision, "topic created_revision", op),
        explicit_values,
        derived_values,
        settings,
        number(purge_generation, "topic purge_generation", op),
        _read_partitions(partitions, op, slots),
        number(next_group_id, "next group id", U32_MAX),
    )
    topic.groups = {group.id: group for group in _read_groups(groups, op, topic)}
    return topic


def _read_options(value: Any) -> Values:
    values: Values = {}
    last = ""
    for option in decode_options(blob(value, "options", 0, MAX_OPTIONS_SIZE)):
        if option.key <= last:
            raise DecodeError("option key", 0, f"a key above {last!r}", option.key)
        last = option.key
        values[option.key] = option.value
    return values


def _read_partitions(value: Any, op: int, slots: set[int]) -> list[Partition]:
    partitions: list[Partition] = []
    for item in sequence(value, "partitions"):
        number_, revision, created_at, view, slot = record(item, "partition", 5)
        if number(number_, "partition id", MAX_PARTITIONS - 1) != len(partitions):
            raise DecodeError("partition id", 0, len(partitions), number_)
        if number(slot, "partition slot", MAX_SLOTS - 1) in slots:
            raise DecodeError("partition slot", 0, "a slot of its own", slot)
        slots.add(slot)
        partitions.append(
            Partition(
                number_,
                number(revision, "partition created_revision", op),
                number(created_at, "partition created_at"),
                number(view, "partition created_view", U32_MAX),
                slot,
            )
        )
    return partitions


def _read_groups(value: Any, op: int, topic: Topic) -> list[ConsumerGroup]:
    groups: list[ConsumerGroup] = []
    names: set[str] = set()
    previous = -1
    for item in sequence(value, "consumer groups"):
        number_, name, revision, generation, members = record(item, "consumer group", 5)
        previous = ascending(
            previous, number(number_, "consumer group id", topic.next_group_id - 1), "consumer group id"
        )
        group = ConsumerGroup(
            previous,
            _unique(names, text(name, "consumer group name"), "consumer group name"),
            number(revision, "consumer group created_revision", op),
            number(generation, "consumer group generation"),
        )
        group.members = {member.id: member for member in _read_members(members, op, len(topic.partitions))}
        groups.append(group)
    return groups


def _read_members(value: Any, op: int, partitions_count: int) -> list[Member]:
    members: list[Member] = []
    owned: set[int] = set()
    clients: set[bytes] = set()
    previous = -1
    for item in sequence(value, "members"):
        number_, client, session, partitions, pending = record(item, "member", 5)
        previous = ascending(previous, number(number_, "member id", U32_MAX), "member id")
        member = Member(previous, blob(client, "member client", 16, 16), number(session, "member session", op))
        last = -1
        for partition in sequence(partitions, "member partitions"):
            last = ascending(last, number(partition, "member partition", partitions_count - 1), "member partition")
            if last in owned:
                raise DecodeError("member partition", 0, "a partition of one member", last)
            owned.add(last)
            member.partitions.append(last)
        if member.client in clients:
            raise DecodeError("member client", 0, "one membership a client", member.client)
        clients.add(member.client)
        member.pending = _read_hand_overs(pending, op, member)
        members.append(member)
    for member in members:
        for hand_over in member.pending:
            if hand_over.successor == member.id or all(hand_over.successor != other.id for other in members):
                raise DecodeError("hand-over successor", 0, "another member", hand_over.successor)
    return members


def _read_hand_overs(value: Any, op: int, member: Member) -> list[HandOver]:
    pending: list[HandOver] = []
    last = -1
    for item in sequence(value, "hand-overs"):
        partition, successor, since = record(item, "hand-over", 3)
        last = ascending(last, number(partition, "hand-over partition", U32_MAX), "hand-over partition")
        if last not in member.partitions:
            raise DecodeError("hand-over partition", 0, "a partition of the member", last)
        successor = number(successor, "hand-over successor", U32_MAX)
        pending.append(HandOver(last, successor, number(since, "hand-over since", op)))
    return pending


def read_users(value: Any) -> list[User]:
    """The section of users."""
    users: list[User] = []
    names: set[str] = set()
    digests: set[str] = set()
    previous = -1
    for item in sequence(value, "snapshot section users"):
        user = _read_user(record(item, "user", 7))
        previous = ascending(previous, user.id, "user id")
        _unique(names, user.username, "username")
        for token in user.tokens.values():
            _unique(digests, token.digest, "token digest")
        users.append(user)
    if not users or users[0].id != ROOT_ID:
        raise DecodeError("snapshot section users", 0, "the root user", None)
    return users


def _read_user(fields: list[Any]) -> User:
    number_, username, created_at, status, password_hash, permissions, tokens = fields
    user = User(
        number(number_, "user id", MAX_USERS - 1),
        text(username, "username"),
        number(created_at, "user created_at"),
        _read_status(status),
        text(password_hash, "password hash", 1, MAX_HASH),
        _read_permissions(permissions),
    )
    last = ""
    for item in sequence(tokens, "tokens"):
        name, digest, expiry_at = record(item, "token", 3)
        if text(name, "token name") <= last:
            raise DecodeError("token name", 0, f"a name above {last!r}", name)
        last = name
        user.tokens[name] = Token(name, text(digest, "token digest", 1, MAX_HASH), number(expiry_at, "token expiry"))
    return user


def _read_status(value: Any) -> UserStatus:
    if number(value, "user status", 255) not in tuple(UserStatus):
        raise DecodeError("user status", 0, "1 or 2", value)
    return UserStatus(value)


def _read_permissions(value: Any) -> Permissions | None:
    return None if value is None else decode_permissions(blob(value, "permissions", 1, U32_MAX))


def _unique(names: set[str], name: str, what: str) -> str:
    if name in names:
        raise DecodeError(what, 0, "a name of its own", name)
    names.add(name)
    return name
