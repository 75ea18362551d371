"""Requests and replies about the server: ping, statistics, snapshot archive, roster, options, clients, routing.

`run_time` and `start_time` are microseconds; sizes are bytes; ports of the roster are 0 when the transport is off.
"""

from typing import Annotated

import attrs

from shardsrv.errors import DecodeError
from shardsrv.wire.codec import Counted, Enum8, UntilEnd
from shardsrv.wire.codes import CommandCode
from shardsrv.wire.constants import (
    NodeRole,
    NodeStatus,
    OptionsScope,
    SnapshotCompression,
    SnapshotKind,
    Transport,
)
from shardsrv.wire.message import Message, Nested, Reply, Request
from shardsrv.wire.primitives import F32, U8, U16, U32, U64, Bytes32, ClientId, Name, RestBytes, Text32


@attrs.frozen
class Ping(Request):
    code = CommandCode.PING


@attrs.frozen
class GetStats(Request):
    code = CommandCode.GET_STATS


@attrs.frozen
class GetSnapshot(Request):
    code = CommandCode.GET_SNAPSHOT

    compression: Annotated[SnapshotCompression, Enum8(SnapshotCompression)]
    kinds: Annotated[tuple[SnapshotKind, ...], Counted(1, Enum8(SnapshotKind))]


@attrs.frozen
class GetClusterMetadata(Request):
    code = CommandCode.GET_CLUSTER_METADATA


@attrs.frozen
class DescribeOptions(Request):
    code = CommandCode.DESCRIBE_OPTIONS

    scope: Annotated[OptionsScope, Enum8(OptionsScope)]


@attrs.frozen
class AttachConsumerSession(Request):
    """This connection acts for the group member `client_id` in `session`, once metadata reached the watermark."""

    code = CommandCode.ATTACH_CONSUMER_SESSION

    client_id: ClientId
    session: U64
    metadata_watermark: U64


@attrs.frozen
class GetMe(Request):
    code = CommandCode.GET_ME


@attrs.frozen
class GetClient(Request):
    code = CommandCode.GET_CLIENT

    client_id: U32


@attrs.frozen
class GetClients(Request):
    code = CommandCode.GET_CLIENTS


@attrs.frozen
class Empty(Reply):
    """A reply without a payload."""


@attrs.frozen
class CacheMetrics(Message):
    stream: U32
    topic: U32
    partition: U32
    hits: U64
    misses: U64
    ratio: F32


@attrs.frozen
class StatsReply(Reply):
    """`iggy_server_semver` is major*1,000,000 + minor*1,000 + patch, 0 = none."""

    codes = (CommandCode.GET_STATS,)

    process_id: U32
    cpu_usage: F32
    total_cpu_usage: F32
    memory_usage: U64
    total_memory: U64
    available_memory: U64
    run_time: U64
    start_time: U64
    read_bytes: U64
    written_bytes: U64
    messages_size_bytes: U64
    streams_count: U32
    topics_count: U32
    partitions_count: U32
    segments_count: U32
    messages_count: U64
    clients_count: U32
    consumer_groups_count: U32
    hostname: Text32
    os_name: Text32
    os_version: Text32
    kernel_version: Text32
    iggy_server_version: Text32
    iggy_server_semver: U32
    cache_metrics: Annotated[tuple[CacheMetrics, ...], Counted(4, Nested(CacheMetrics))]
    threads_count: U32
    free_disk_space: U64
    total_disk_space: U64


@attrs.frozen
class SnapshotReply(Reply):
    """A ZIP archive, at most one frame."""

    codes = (CommandCode.GET_SNAPSHOT,)

    archive: RestBytes


@attrs.frozen
class ClusterNode(Message):
    name: Text32
    ip: Text32
    tcp: U16
    quic: U16
    http: U16
    websocket: U16
    role: Annotated[NodeRole, Enum8(NodeRole)]
    status: Annotated[NodeStatus, Enum8(NodeStatus)]


@attrs.frozen
class ClusterMetadataReply(Reply):
    codes = (CommandCode.GET_CLUSTER_METADATA,)

    name: Text32
    nodes: Annotated[tuple[ClusterNode, ...], Counted(4, Nested(ClusterNode))]


@attrs.frozen
class OptionDescriptor(Message):
    """One option of a catalogue; `default` holds the bytes of a value of `kind`."""

    key: Name
    kind: U8
    default: Bytes32
    description: Text32


@attrs.frozen
class OptionsReply(Reply):
    codes = (CommandCode.DESCRIBE_OPTIONS,)

    options: Annotated[tuple[OptionDescriptor, ...], Counted(4, Nested(OptionDescriptor))]


@attrs.frozen
class ClientRecord(Message):
    """A connection of this node. `client_id` is the connection's number, `user_id` 0xFFFFFFFF when not logged in."""

    client_id: U32
    user_id: U32
    transport: Annotated[Transport, Enum8(Transport)]
    address: Text32
    consumer_groups_count: U32


@attrs.frozen
class ClientMembership(Message):
    stream_id: U32
    topic_id: U32
    group_id: U32


@attrs.frozen
class ClientDetailsReply(Reply):
    codes = (CommandCode.GET_ME, CommandCode.GET_CLIENT)
    absent_when_empty = True

    client: ClientRecord
    consumer_groups: Annotated[tuple[ClientMembership, ...], UntilEnd(Nested(ClientMembership))]

    def check(self, offset: int) -> None:
        if len(self.consumer_groups) != self.client.consumer_groups_count:
            found = len(self.consumer_groups)
            raise DecodeError("consumer_groups", offset, self.client.consumer_groups_count, found)


@attrs.frozen
class ClientsReply(Reply):
    codes = (CommandCode.GET_CLIENTS,)

    clients: Annotated[tuple[ClientRecord, ...], UntilEnd(Nested(ClientRecord))]


@attrs.frozen
class AttachRecord(Message):
    """A member's session: the client id of its first connection, the session, and the metadata op to wait for."""

    client_id: ClientId
    session: U64
    metadata_watermark: U64


@attrs.frozen
class RoutingReply(Reply):
    """Where to poll or to write offsets: a hint, the node still checks that it is the primary."""

    codes = (CommandCode.GET_POLL_ROUTING, CommandCode.GET_CONSUMER_OFFSET_ROUTING)

    consumer_session: AttachRecord
    primary: ClusterNode
