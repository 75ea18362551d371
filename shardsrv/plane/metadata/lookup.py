"""Records by the identifiers of clients, or the refusal that says which part does not exist."""

from __future__ import annotations

from shardsrv.errors import RequestRefused
from shardsrv.plane.metadata.state import ConsumerGroup, MetadataState, Stream, Topic, User
from shardsrv.wire.error_codes import ErrorCode
from shardsrv.wire.primitives import Identifier


def find_stream(state: MetadataState, identifier: Identifier) -> Stream:
    """The stream, or RequestRefused (1009)."""
    stream = state.find_stream(identifier)
    if stream is None:
        raise RequestRefused(ErrorCode.STREAM_ID_NOT_FOUND, stream=identifier)
    return stream


def find_topic(state: MetadataState, stream: Identifier, topic: Identifier) -> tuple[Stream, Topic]:
    """The topic and its stream, or RequestRefused (1009, 2010)."""
    found_stream = find_stream(state, stream)
    found = found_stream.find_topic(topic)
    if found is None:
        raise RequestRefused(ErrorCode.TOPIC_ID_NOT_FOUND, stream=found_stream.id, topic=topic)
    return found_stream, found


def find_group(
    state: MetadataState, stream: Identifier, topic: Identifier, group: Identifier
) -> tuple[Stream, Topic, ConsumerGroup]:
    """The consumer group, its topic and stream, or RequestRefused (1009, 2010, 5000)."""
    found_stream, found_topic = find_topic(state, stream, topic)
    found = found_topic.find_group(group)
    if found is None:
        raise RequestRefused(ErrorCode.CONSUMER_GROUP_ID_NOT_FOUND, group=group)
    return found_stream, found_topic, found


def find_user(state: MetadataState, identifier: Identifier) -> User:
    """The user, or RequestRefused (20)."""
    user = state.find_user(identifier)
    if user is None:
        raise RequestRefused(ErrorCode.RESOURCE_NOT_FOUND, user=identifier)
    return user
