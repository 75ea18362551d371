"""The commands on streams: create, rename, delete, purge.

Invariants: a target that does not resolve is reported before rights are looked at; a refusal raises RequestRefused
with the result code and changes nothing; names are unique, case-sensitive.
"""

from __future__ import annotations

from shardsrv.errors import RequestRefused
from shardsrv.plane.metadata import groups, lookup, permissions, records, topics
from shardsrv.plane.metadata.entry import Entry
from shardsrv.plane.metadata.permissions import Right
from shardsrv.plane.metadata.state import Stream
from shardsrv.wire.error_codes import ErrorCode
from shardsrv.wire.streams import CreateStream, DeleteStream, PurgeStream, UpdateStream


def create_stream(entry: Entry, command: CreateStream) -> bytes:
    """Makes an empty stream under the lowest free id. Result codes: 41, 1012 name taken, 1020 full."""
    state = entry.state
    permissions.require(state, entry.user_id, Right.CREATE_STREAM)
    if command.name in state.stream_ids:
        raise RequestRefused(ErrorCode.STREAM_NAME_ALREADY_EXISTS, name=command.name)
    if state.stream_numbers.exhausted:
        raise RequestRefused(ErrorCode.TOO_MANY_STREAMS, streams=len(state.streams))
    stream = Stream(state.stream_numbers.take(), command.name, entry.timestamp, entry.op)
    state.streams[stream.id] = stream
    state.stream_ids[stream.name] = stream.id
    return records.encode_stream(stream, records.no_counters)


def update_stream(entry: Entry, command: UpdateStream) -> bytes:
    """Renames a stream; its own name is no conflict. Result codes: 1009, 41, 1012."""
    state = entry.state
    stream = lookup.find_stream(state, command.stream)
    permissions.require(state, entry.user_id, Right.WRITE_STREAM, stream.id)
    if state.stream_ids.get(command.name, stream.id) != stream.id:
        raise RequestRefused(ErrorCode.STREAM_NAME_ALREADY_EXISTS, name=command.name)
    del state.stream_ids[stream.name]
    stream.name = command.name
    state.stream_ids[stream.name] = stream.id
    return b""


def delete_stream(entry: Entry, command: DeleteStream) -> bytes:
    """Removes a stream with its topics. Result codes: 1009, 41."""
    state = entry.state
    stream = lookup.find_stream(state, command.stream)
    permissions.require(state, entry.user_id, Right.WRITE_STREAM, stream.id)
    for topic in stream.ordered_topics():
        groups.forget_members(entry.state, stream, topic)
        topics.remove_partitions(entry, stream, topic, len(topic.partitions))
    del state.streams[stream.id]
    del state.stream_ids[stream.name]
    state.stream_numbers.release(stream.id)
    return b""


def purge_stream(entry: Entry, command: PurgeStream) -> bytes:
    """Empties every partition of every topic. Result codes: 1009, 41."""
    stream = lookup.find_stream(entry.state, command.stream)
    permissions.require(entry.state, entry.user_id, Right.WRITE_STREAM, stream.id)
    for topic in stream.ordered_topics():
        topics.purge(entry, stream, topic)
    return b""
