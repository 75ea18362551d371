"""Reads of metadata: from a request body to a reply body.

Invariants: nothing is changed; order of refusals is undecodable (3), not found (an empty body where the protocol says
so, else the code), denied (41); lists are in ascending order of ids.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs

from shardsrv.errors import DecodeError, RequestRefused
from shardsrv.plane.metadata import lookup, options_catalog, permissions, records
from shardsrv.plane.metadata.options_catalog import TopicDefaults
from shardsrv.plane.metadata.permissions import Right
from shardsrv.plane.metadata.records import Counters
from shardsrv.plane.metadata.state import MetadataState, Partition, PartitionIdentity, Stream, Topic, identity_of
from shardsrv.wire.codes import CommandCode
from shardsrv.wire.constants import OptionsScope
from shardsrv.wire.consumer_groups import (
    AssignmentReply,
    GetConsumerGroup,
    GetConsumerGroups,
    GroupsReply,
    SyncConsumerGroup,
)
from shardsrv.wire.cursor import Buffer
from shardsrv.wire.error_codes import ErrorCode
from shardsrv.wire.message import Request
from shardsrv.wire.primitives import Identifier
from shardsrv.wire.streams import GetStream, GetStreams
from shardsrv.wire.system import DescribeOptions, OptionDescriptor, OptionsReply
from shardsrv.wire.topics import GetTopic, GetTopics
from shardsrv.wire.users import GetPersonalAccessTokens, GetUser, GetUsers, TokenRecord, TokensReply, UsersReply


@attrs.frozen(slots=True)
class Reader:
    """Who asks (`client`: the 16 bytes of the session's client id), and what the answer is made from."""

    state: MetadataState
    defaults: TopicDefaults
    user_id: int
    counters: Counters
    client: bytes

    def require(self, right: Right, stream: int | None = None, topic: int | None = None) -> None:
        """Raises RequestRefused (41)."""
        permissions.require(self.state, self.user_id, right, stream, topic)


@attrs.frozen(slots=True)
class Totals:
    """Sums over everything, for the statistics. `size` in bytes."""

    streams: int
    topics: int
    partitions: int
    segments: int
    messages: int
    size: int
    consumer_groups: int


def answer(reader: Reader, code: int, body: Buffer) -> bytes:
    """The reply body of a read; `code` is a key of `QUERIES`. Raises RequestRefused with the status."""
    kind, run = QUERIES[code]
    try:
        request = kind.decode(body)
    except DecodeError as error:
        raise RequestRefused(error.code, **error.facts()) from None
    return run(reader, request)


def get_stream(reader: Reader, request: GetStream) -> bytes:
    stream = reader.state.find_stream(request.stream)
    if stream is None:
        return b""
    reader.require(Right.READ_STREAM, stream.id)
    return records.encode_stream_details(stream, reader.counters)


def get_streams(reader: Reader, request: GetStreams) -> bytes:
    reader.require(Right.LIST_STREAMS)
    return b"".join([records.encode_stream(stream, reader.counters) for stream in reader.state.ordered_streams()])


def get_topic(reader: Reader, request: GetTopic) -> bytes:
    stream = reader.state.find_stream(request.stream)
    topic = None if stream is None else stream.find_topic(request.topic)
    if stream is None or topic is None:
        return b""
    reader.require(Right.READ_TOPIC, stream.id, topic.id)
    return records.encode_topic_details(topic, reader.counters)


def get_topics(reader: Reader, request: GetTopics) -> bytes:
    stream = reader.state.find_stream(request.stream)
    if stream is None:
        return records.encode_topics([], reader.counters)
    reader.require(Right.LIST_TOPICS, stream.id)
    return records.encode_topics(stream.ordered_topics(), reader.counters)


def get_user(reader: Reader, request: GetUser) -> bytes:
    user = reader.state.find_user(request.user)
    if user is None:
        return b""
    if user.id != reader.user_id:
        reader.require(Right.READ_USERS)
    return records.user_details(user).encode()


def get_users(reader: Reader, request: GetUsers) -> bytes:
    reader.require(Right.READ_USERS)
    return UsersReply(tuple(records.user_record(user) for user in reader.state.ordered_users())).encode()


def get_tokens(reader: Reader, request: GetPersonalAccessTokens) -> bytes:
    user = reader.state.users.get(reader.user_id)
    tokens = (
        () if user is None else tuple(TokenRecord(name, user.tokens[name].expiry_at) for name in sorted(user.tokens))
    )
    return TokensReply(tokens).encode()


def get_group(reader: Reader, request: GetConsumerGroup) -> bytes:
    """Status 1009, 2010, 41; empty when the group does not exist."""
    stream, topic = lookup.find_topic(reader.state, request.stream, request.topic)
    group = topic.find_group(request.group)
    if group is None:
        return b""
    reader.require(Right.READ_TOPIC, stream.id, topic.id)
    return records.group_details(topic, group).encode()


def get_groups(reader: Reader, request: GetConsumerGroups) -> bytes:
    """Status 1009, 2010, 41."""
    stream, topic = lookup.find_topic(reader.state, request.stream, request.topic)
    reader.require(Right.READ_TOPIC, stream.id, topic.id)
    return GroupsReply(tuple(records.group_record(topic, group) for group in topic.ordered_groups())).encode()


def sync_group(reader: Reader, request: SyncConsumerGroup) -> bytes:
    """What the asking member may poll; empty when it is not a member, or anything does not exist."""
    stream = reader.state.find_stream(request.stream)
    topic = None if stream is None else stream.find_topic(request.topic)
    group = None if topic is None else topic.find_group(request.group)
    member = None if group is None else group.find_member(reader.client)
    if group is None or member is None:
        return b""
    return AssignmentReply(group.generation, tuple(member.pollable)).encode()


def describe_options(reader: Reader, request: DescribeOptions) -> bytes:
    """The catalogue of a scope; those of streams and users are empty."""
    if request.scope is not OptionsScope.TOPIC:
        return OptionsReply(()).encode()
    described = tuple(
        OptionDescriptor(
            spec.key, int(spec.kind), options_catalog.default_of(reader.defaults, spec).raw, spec.description
        )
        for spec in options_catalog.CATALOG
    )
    return OptionsReply(described).encode()


QUERIES: Final[dict[int, tuple[type[Request], Callable[[Reader, Any], bytes]]]] = {
    CommandCode.GET_STREAM: (GetStream, get_stream),
    CommandCode.GET_STREAMS: (GetStreams, get_streams),
    CommandCode.GET_TOPIC: (GetTopic, get_topic),
    CommandCode.GET_TOPICS: (GetTopics, get_topics),
    CommandCode.GET_USER: (GetUser, get_user),
    CommandCode.GET_USERS: (GetUsers, get_users),
    CommandCode.GET_PERSONAL_ACCESS_TOKENS: (GetPersonalAccessTokens, get_tokens),
    CommandCode.GET_CONSUMER_GROUP: (GetConsumerGroup, get_group),
    CommandCode.GET_CONSUMER_GROUPS: (GetConsumerGroups, get_groups),
    CommandCode.SYNC_CONSUMER_GROUP: (SyncConsumerGroup, sync_group),
    CommandCode.DESCRIBE_OPTIONS: (DescribeOptions, describe_options),
}
"""The reads that metadata answers alone, by command code."""


def locate(
    state: MetadataState, stream: Identifier, topic: Identifier, partition: int
) -> tuple[Stream, Topic, Partition]:
    """The records behind what a client names. Raises RequestRefused (1009, 2010, 3007)."""
    found_stream, found_topic = lookup.find_topic(state, stream, topic)
    if not 0 <= partition < len(found_topic.partitions):
        raise RequestRefused(ErrorCode.PARTITION_NOT_FOUND, partition=partition)
    return found_stream, found_topic, found_topic.partitions[partition]


def find_partition(state: MetadataState, stream: Identifier, topic: Identifier, partition: int) -> PartitionIdentity:
    """The identity behind what a client names. Raises RequestRefused (1009, 2010, 3007)."""
    return identity_of(*locate(state, stream, topic, partition))


def totals(state: MetadataState, counters: Counters) -> Totals:
    """Sums over all streams, topics and partitions."""
    topics_count = partitions = segments = messages = size = groups = 0
    for _, topic in state.all_topics():
        topics_count += 1
        groups += len(topic.groups)
        for partition in topic.partitions:
            counted = counters(partition)
            partitions += 1
            messages += counted[0]
            size += counted[1]
            segments += counted[3]
    return Totals(len(state.streams), topics_count, partitions, segments, messages, size, groups)
