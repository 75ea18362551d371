"""Requests that connections of other shards make of partitions of this one.

They name the metadata op at which their home shard resolved them: until this shard has applied that op and made it
true, they are parked.
"""

import time
from collections.abc import Callable
from typing import Any, Protocol

from shardsrv.plane.metadata.plane import MetadataPlane
from shardsrv.plane.partition import offsets
from shardsrv.shards import records
from shardsrv.shards.answers import RemoteOrigin
from shardsrv.shards.clients import Clients
from shardsrv.shards.consumer_groups import ConsumerGroups
from shardsrv.shards.links import Links
from shardsrv.shards.partition_group import PartitionGroup
from shardsrv.shards.polls import Polls
from shardsrv.shards.reconciler import Reconciler
from shardsrv.shards.retention import Retention
from shardsrv.vsr.events import Request
from shardsrv.wire.constants import Operation
from shardsrv.wire.error_codes import ErrorCode
from shardsrv.wire.groups import pack_group

REQUESTS = frozenset({records.PARTITION_REQUEST, records.POLL_REQUEST, records.OFFSET_REQUEST, records.CLIENTS_REQUEST})
"""Kinds of record that ask something of this shard."""


class RemoteHost(Protocol):
    """What remote requests need of their shard."""

    links: Links
    plane: MetadataPlane
    groups: dict[int, PartitionGroup]
    polls: Polls
    clients: Clients
    retention: Retention
    reconciler: Reconciler
    consumer_groups: ConsumerGroups

    def park(self, again: Callable[[], None], refuse: Callable[[], None]) -> None:
        """Keep a request until the reconciler has caught up."""


class RemoteRequests:
    """See the module."""

    def __init__(self, host: RemoteHost) -> None:
        self._host = host

    def take(self, sender: int, kind: int, head: memoryview, body: memoryview) -> None:
        """A record of one of the kinds in `REQUESTS`."""
        if kind == records.PARTITION_REQUEST:
            self._write(sender, records.unpack(records.PartitionRequest, head), body)
        elif kind == records.POLL_REQUEST:
            self._poll(sender, records.unpack(records.PollRequest, head))
        elif kind == records.OFFSET_REQUEST:
            self._offset(sender, records.unpack(records.OffsetRequest, head))
        else:
            self._host.clients.requested(sender, head)

    def _write(self, sender: int, record: records.PartitionRequest, body: memoryview) -> None:
        links = self._host.links
        data: Any = links.view(sender, record.offset, record.length) if record.length else bytearray(body)
        origin = RemoteOrigin(links, sender, record.token)
        request = Request(
            record.client,
            record.session,
            record.request,
            record.operation,
            record.user_id,
            record.digest,
            record.durability,
            data,
            origin,
            time.time_ns() // 1000,
        )
        self._with_group(
            record,
            lambda group: self._admit(group, request, record.member),
            lambda status: origin.refused(records.REFUSED_STATUS, status),
        )

    def _admit(self, group: PartitionGroup, request: Request, member: bytes) -> None:
        """To the group that owns the partition, if the member of a consumer group may write its offset there."""
        host = self._host
        operation = request.operation
        if operation == Operation.DELETE_SEGMENTS:
            host.retention.delete(group, request)
            return
        if operation in (Operation.STORE_CONSUMER_OFFSET, Operation.DELETE_CONSUMER_OFFSET):
            kind, key = offsets.first_key(request.body)
            if kind == offsets.GROUP and not host.consumer_groups.may_commit(group.identity, key, member):
                request.origin.refused(records.REFUSED_STATUS, ErrorCode.RESOURCE_NOT_FOUND)
                return
        group.submit(request)

    def _poll(self, sender: int, record: records.PollRequest) -> None:
        def refuse(status: int) -> None:
            reply = records.PollReply(record.token, status)
            self._host.links.send(sender, records.POLL_REPLY, reply.pack())

        self._with_group(record, lambda group: self._host.polls.requested(group, sender, record), refuse)

    def _offset(self, sender: int, record: records.OffsetRequest) -> None:
        def refuse(status: int) -> None:
            reply = records.OffsetReply(record.token, status, 0, 0, 0)
            self._host.links.send(sender, records.OFFSET_REPLY, reply.pack())

        self._with_group(record, lambda group: self._host.polls.offset_requested(group, sender, record), refuse)

    def _with_group(self, record: Any, use: Callable[[PartitionGroup], None], refuse: Callable[[int], None]) -> None:
        """Run ``use`` with the group that a record names, when this shard has applied the op at which it was
        resolved."""
        host = self._host
        group = host.groups.get(pack_group(record.stream, record.topic, record.partition))
        if group is not None and group.identity.created_revision == record.created_revision and not group.closed:
            use(group)
        elif host.plane.op < record.epoch or host.reconciler.busy:
            host.park(lambda: self._with_group(record, use, refuse), lambda: refuse(ErrorCode.TRANSIENT_NOT_ACCEPTED))
        else:
            refuse(ErrorCode.RESOURCE_NOT_FOUND)
