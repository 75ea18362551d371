"""The payload of a metadata snapshot: MessagePack, byte-stable, checked whole before anything is built on it.

Layout, format version 1; every level is a positional array, times are microseconds:

    snapshot  = [version, created_at, op, op checksum, timestamp, streams, users, client table]
    stream    = [id, name, created_at, created_revision, topics]
    topic     = [id, name, created_at, created_revision, explicit, derived, purge_generation, partitions,
    next_group_id, groups] option    = [key, kind, raw value]                    sorted by key
    partition = [id, created_revision, created_at, created_view, slot]
    group     = [id, name, created_revision, generation, members]
    member    = [id, client (16 bytes), session, partitions, [[partition, successor's member id, since]...]]
    user      = [id, username, created_at, status, password hash, permissions (wire bytes or nil), tokens]
    token     = [name, digest, expiry_at]                 sorted by name

Invariants: lists are in ascending order of id, so equal states give equal bytes and `encode(decode(x)) == x`; `decode`
changes nothing that exists and raises DecodeError (naming the place) or UnsupportedVersion. Counter slots are part of a
partition's record: no shard invents them. The client table is carried, not understood: its owner checks it before
anything is replaced.
"""

from __future__ import annotations

from typing import Any, Final

import attrs
import msgpack  # type: ignore[import-untyped]

from shardsrv.errors import DecodeError, UnsupportedVersion
from shardsrv.plane.metadata.snapshot_fields import number, sequence
from shardsrv.plane.metadata.snapshot_reader import read_streams, read_users
from shardsrv.plane.metadata.state import ConsumerGroup, Member, MetadataState, Partition, Stream, Topic, User
from shardsrv.wire.constants import MAX_OP
from shardsrv.wire.permissions import encode_permissions

FORMAT_VERSION: Final = 1
SECTIONS: Final = ("version", "created_at", "op", "op checksum", "timestamp", "streams", "users", "client table")


@attrs.frozen(slots=True)
class Snapshot:
    """A decoded snapshot. `checksum` is the identity of the entry `op`; `client_table` is as its owner gave it."""

    op: int
    checksum: int
    timestamp: int
    created_at: int
    state: MetadataState
    client_table: list[Any]


def encode(
    state: MetadataState, *, op: int, checksum: int, timestamp: int, created_at: int, client_table: list[Any]
) -> bytes:
    """The payload. `client_table` holds lists, ints, bytes and text only, in an order that its owner fixes."""
    sections = [
        FORMAT_VERSION,
        created_at,
        op,
        checksum,
        timestamp,
        [_stream(stream) for stream in state.ordered_streams()],
        [_user(user) for user in state.ordered_users()],
        client_table,
    ]
    return bytes(msgpack.packb(sections, use_bin_type=True))


def decode(payload: bytes) -> Snapshot:
    """The snapshot in a payload whose hash its caller has checked. Raises DecodeError, UnsupportedVersion."""
    try:
        sections = msgpack.unpackb(payload, raw=False, strict_map_key=True)
    except ValueError as error:
        raise DecodeError("snapshot", 0, "one MessagePack value", str(error)) from None
    if type(sections) is not list or not sections:
        raise DecodeError("snapshot section version", 0, "an array of sections", type(sections).__name__)
    version = number(sections[0], "snapshot section version")
    if version != FORMAT_VERSION:
        raise UnsupportedVersion("metadata snapshot", "", version, FORMAT_VERSION, FORMAT_VERSION)
    if len(sections) < len(SECTIONS):
        raise DecodeError(f"snapshot section {SECTIONS[len(sections)]}", 0, "present", None)
    if len(sections) > len(SECTIONS):
        raise DecodeError("snapshot", 0, f"{len(SECTIONS)} sections", len(sections))
    _, created_at, op, checksum, timestamp, streams, users, client_table = sections
    number(op, "snapshot section op", MAX_OP)
    state = MetadataState.assemble(read_streams(streams, op), read_users(users))
    snapshot = Snapshot(
        op=op,
        checksum=number(checksum, "snapshot section op checksum"),
        timestamp=number(timestamp, "snapshot section timestamp", MAX_OP),
        created_at=number(created_at, "snapshot section created_at"),
        state=state,
        client_table=sequence(client_table, "snapshot section client table"),
    )
    if reencode(snapshot) != payload:
        raise DecodeError("snapshot", 0, "the canonical form", "another encoding of the same state")
    return snapshot


def reencode(snapshot: Snapshot) -> bytes:
    """The payload of a decoded snapshot: the same bytes."""
    return encode(
        snapshot.state,
        op=snapshot.op,
        checksum=snapshot.checksum,
        timestamp=snapshot.timestamp,
        created_at=snapshot.created_at,
        client_table=snapshot.client_table,
    )


def _stream(stream: Stream) -> list[Any]:
    topics = [_topic(topic) for topic in stream.ordered_topics()]
    return [stream.id, stream.name, stream.created_at, stream.created_revision, topics]


def _topic(topic: Topic) -> list[Any]:
    explicit, derived = topic.option_blocks
    return [
        topic.id,
        topic.name,
        topic.created_at,
        topic.created_revision,
        explicit,
        derived,
        topic.purge_generation,
        [_partition(partition) for partition in topic.partitions],
        topic.next_group_id,
        [_group(group) for group in topic.ordered_groups()],
    ]


def _partition(partition: Partition) -> list[Any]:
    return [partition.id, partition.created_revision, partition.created_at, partition.created_view, partition.slot]


def _group(group: ConsumerGroup) -> list[Any]:
    members = [_member(member) for member in group.ordered_members()]
    return [group.id, group.name, group.created_revision, group.generation, members]


def _member(member: Member) -> list[Any]:
    pending = [[hand_over.partition, hand_over.successor, hand_over.since] for hand_over in member.pending]
    return [member.id, member.client, member.session, list(member.partitions), pending]


def _user(user: User) -> list[Any]:
    return [
        user.id,
        user.username,
        user.created_at,
        int(user.status),
        user.password_hash,
        None if user.permissions is None else encode_permissions(user.permissions),
        [[token.name, token.digest, token.expiry_at] for token in (user.tokens[name] for name in sorted(user.tokens))],
    ]
