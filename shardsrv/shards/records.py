"""Records that travel between shards: kinds, and the packed head of each.

All little-endian, packed without padding. A *token* (u64) is drawn by the home shard of a connection and names the
waiting request there; it comes back in the answer. Large request bodies are not sent: a partition request carries
(offset, length) in the arena of its home shard, which keeps the frame until the answer. `epoch` is the metadata op at
which the home shard resolved names; the owner parks the request until it has applied that op.
"""

import struct
from typing import Final, TypeVar

import attrs

from shardsrv.wire.constants import ZERO_ID

METADATA_REQUEST: Final = 1
METADATA_REPLY: Final = 2
COMMITTED: Final = 3  # head: a prepare header, then the client id that the client table gave up with it, if any
APPLIED: Final = 4
PARTITION_REQUEST: Final = 5
PARTITION_REPLY: Final = 6
POLL_REQUEST: Final = 7
POLL_REPLY: Final = 8
OFFSET_REQUEST: Final = 9
OFFSET_REPLY: Final = 10
CLIENTS_REQUEST: Final = 11
CLIENTS_REPLY: Final = 12
UNBIND: Final = 13
ATTACH_REQUEST: Final = 14
ATTACH_REPLY: Final = 15
ROSTER: Final = 16
RESTORED: Final = 17  # head: the op of a state that takes the place of entries; the state comes as a memfd
CAME_BACK: Final = 18  # head: a node that was begun anew holds what the others have, up to this metadata op

# How a request ended (`MetadataReply.outcome`, `PartitionReply.outcome`).
DONE: Final = 0
REFUSED_STATUS: Final = 1  # header status, empty body
REFUSED_RESULT: Final = 2  # result section
EVICTED: Final = 3  # eviction frame, reason in `status`
SILENT: Final = 4  # no answer


@attrs.define(slots=True, eq=False)
class MetadataRequest:
    """Home shard -> shard 0; body: the request body. ``client`` and ``session`` are those bound to the connection."""

    LAYOUT = struct.Struct("<Q16sQQQIBBB")
    token: int
    client: bytes
    session: int
    request: int
    digest: int
    user_id: int
    operation: int
    answered: int  # 1: the home shard waits for a reply
    resolved: int  # 1: the body is that of the entry, not the client's

    def pack(self) -> bytes:
        return self.LAYOUT.pack(
            self.token,
            self.client,
            self.session,
            self.request,
            self.digest,
            self.user_id,
            self.operation,
            self.answered,
            self.resolved,
        )


@attrs.define(slots=True, eq=False)
class MetadataReply:
    """Shard 0 -> home shard; body: reply body with its result section."""

    LAYOUT = struct.Struct("<QBBIQQ")
    token: int
    outcome: int
    operation: int
    status: int
    op: int
    timestamp: int

    def pack(self) -> bytes:
        return self.LAYOUT.pack(self.token, self.outcome, self.operation, self.status, self.op, self.timestamp)


@attrs.define(slots=True, eq=False)
class PartitionRequest:
    """Home shard -> owner. The body lies at (offset, length) of the home shard's arena, or is the record's body when
    length is 0."""

    LAYOUT = struct.Struct("<QQIIIQ16sQQQIBBQI16s")
    token: int
    epoch: int
    stream: int
    topic: int
    partition: int
    created_revision: int
    client: bytes
    session: int
    request: int
    digest: int
    user_id: int
    operation: int
    durability: int
    offset: int
    length: int
    member: bytes = ZERO_ID  # the group member that an offset write is made for

    def pack(self) -> bytes:
        return self.LAYOUT.pack(
            self.token,
            self.epoch,
            self.stream,
            self.topic,
            self.partition,
            self.created_revision,
            self.client,
            self.session,
            self.request,
            self.digest,
            self.user_id,
            self.operation,
            self.durability,
            self.offset,
            self.length,
            self.member,
        )


@attrs.define(slots=True, eq=False)
class PartitionReply:
    """Owner -> home shard; body: reply body."""

    LAYOUT = struct.Struct("<QBIQQ")
    token: int
    outcome: int
    status: int
    op: int
    timestamp: int

    def pack(self) -> bytes:
        return self.LAYOUT.pack(self.token, self.outcome, self.status, self.op, self.timestamp)


@attrs.define(slots=True, eq=False)
class PollRequest:
    """Home shard -> owner. ``consumer_kind`` 1 consumer, 2 group; ``key`` its offset key."""

    LAYOUT = struct.Struct("<QQIIIQBQIBBIIB16s")
    token: int
    epoch: int
    stream: int
    topic: int
    partition: int
    created_revision: int
    strategy: int
    value: int
    count: int
    auto_commit: int
    consumer_kind: int
    key: int
    user_id: int
    durability: int
    member: bytes = ZERO_ID  # the member of a group that polls

    def pack(self) -> bytes:
        return self.LAYOUT.pack(
            self.token,
            self.epoch,
            self.stream,
            self.topic,
            self.partition,
            self.created_revision,
            self.strategy,
            self.value,
            self.count,
            self.auto_commit,
            self.consumer_kind,
            self.key,
            self.user_id,
            self.durability,
            self.member,
        )


@attrs.define(slots=True, eq=False)
class PollReply:
    """Owner -> home shard; body: the whole reply body (16-byte head and batch records)."""

    LAYOUT = struct.Struct("<QI")
    token: int
    status: int

    def pack(self) -> bytes:
        return self.LAYOUT.pack(self.token, self.status)


@attrs.define(slots=True, eq=False)
class OffsetRequest:
    """Home shard -> owner: read a stored consumer offset."""

    LAYOUT = struct.Struct("<QQIIIQBI")
    token: int
    epoch: int
    stream: int
    topic: int
    partition: int
    created_revision: int
    consumer_kind: int
    key: int

    def pack(self) -> bytes:
        return self.LAYOUT.pack(
            self.token,
            self.epoch,
            self.stream,
            self.topic,
            self.partition,
            self.created_revision,
            self.consumer_kind,
            self.key,
        )


@attrs.define(slots=True, eq=False)
class OffsetReply:
    """Owner -> home shard. ``found`` 0: nothing is stored."""

    LAYOUT = struct.Struct("<QIBQQ")
    token: int
    status: int
    found: int
    current: int
    stored: int

    def pack(self) -> bytes:
        return self.LAYOUT.pack(self.token, self.status, self.found, self.current, self.stored)


Record = TypeVar("Record")

TOKEN = struct.Struct("<Q")
"""Head of CLIENTS_REQUEST and CLIENTS_REPLY (the token), and of APPLIED (the op)."""

ATTACH_REQUEST_HEAD = struct.Struct("<Q16sQI")
"""Home shard -> shard 0: token, client id to act for, its session, the user who asks."""

ATTACH_REPLY_HEAD = struct.Struct("<QB")
"""Shard 0 -> home shard: token, whether it may."""

ROSTER_HEAD = struct.Struct("<bI")
"""Head of ROSTER, shard 0 -> all: the node that leads the metadata (-1: nobody known), a bit for each node reached."""

UNBIND_HEAD = struct.Struct("<16sQ")
"""Head of UNBIND: the client id and the session that took its place."""


def unpack(record_type: type[Record], head: memoryview) -> Record:
    """The record of ``head``. Records come from our own processes: a wrong length is our fault and raises
    `struct.error`."""
    return record_type(*record_type.LAYOUT.unpack(head))  # type: ignore[attr-defined]
