"""The metadata group on shard 0: the driver of its replica, and the stream of committed entries to the other shards.

A client's answer to a metadata command leaves only when every shard of this node has applied the entry: any connection
to the node then reads its own and its neighbours' writes. In a cluster a member that does not lead passes commands on
to the one that does, and holds the answer until this node has applied the entry as well. Invariants:

* `COMMITTED` records are sent in op order without a gap, once each;
* answers leave in the order of their ops.
"""

import heapq
from collections.abc import Callable
from typing import Protocol

from shardsrv.errors import RequestRefused
from shardsrv.plane.metadata.plane import MetadataPlane
from shardsrv.shards import records
from shardsrv.shards.answers import Origin
from shardsrv.shards.forwarding import Forwarding
from shardsrv.shards.group import Group, Host
from shardsrv.shards.links import Links
from shardsrv.store.log import PrepareLog
from shardsrv.vsr.effects import Committed
from shardsrv.vsr.events import Request
from shardsrv.vsr.policy import PERSISTED
from shardsrv.vsr.replica import Replica
from shardsrv.wire.constants import Operation


class MetadataHost(Host, Protocol):
    """What the metadata group needs of shard 0."""

    links: Links

    def metadata_changed(self) -> None:
        """An entry was applied on shard 0: a checkpoint may be due."""


class MetadataGroup(Group):
    """Driver of the metadata group."""

    __slots__ = ("_applied", "_homes", "_number", "_waiting", "forwarding", "plane")

    refusal = records.REFUSED_RESULT
    host: MetadataHost

    def __init__(self, host: MetadataHost, replica: Replica, plane: MetadataPlane, log: PrepareLog) -> None:
        super().__init__(host, replica, log)
        self.plane = plane
        plane.gone.clear()
        self._applied = dict.fromkeys(host.links.peers, replica.commit_min)
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self._homes: dict[bytes, int] = {}
        self.forwarding: Forwarding | None = None
        """How commands reach the member that leads; None for a node alone."""

    def request(self, record: records.MetadataRequest, body: bytes, origin: Origin, now: int) -> None:
        """A client's command. Static refusals travel as a status, before anything is logged (wire-protocol.md 4.2)."""
        forwarding = self.forwarding
        if forwarding is not None and forwarding.takes(
            self.replica,
            origin,
            self.refusal,
            lambda: self.request(record, body, origin, now),
            lambda peer: self._pass_on(forwarding, peer, record, body, origin),
        ):
            return
        operation = record.operation
        if operation in (Operation.REGISTER, Operation.LOGOUT):
            resolved = b""
        elif record.resolved:
            resolved = body
        else:
            try:
                operation, resolved = self.plane.resolve(operation, body, self.replica.view, user_id=record.user_id)
            except RequestRefused as refusal:
                origin.refused(records.REFUSED_STATUS, refusal.code)
                return
        self.submit(
            Request(
                record.client,
                record.session,
                record.request,
                operation,
                record.user_id,
                record.digest,
                PERSISTED,
                resolved,
                origin,
                now,
            )
        )

    def _pass_on(
        self, forwarding: Forwarding, peer: int, record: records.MetadataRequest, body: bytes, origin: Origin
    ) -> None:
        forwarding.pass_on(
            peer,
            body,
            AppliedOrigin(self, origin),
            self.refusal,
            client=record.client,
            session=record.session,
            request=record.request,
            digest=record.digest,
            group=self.replica.identity.group,
            user_id=record.user_id,
            operation=record.operation,
            durability=PERSISTED,
            resolved=record.resolved,
            expects=record.answered,
        )

    def committed(self, effect: Committed) -> None:
        """Pass the entry on and keep the answer until all shards have applied it."""
        prepare = effect.prepare
        self.applied_checksum = prepare.checksum
        # The owners of partitions follow their own copies; what this copy recorded for them has no reader.
        self.plane.take_changes()
        victim = self.plane.gone.pop(prepare.op, b"")
        self._homes.pop(victim, None)
        self.host.links.broadcast(records.COMMITTED, bytes(prepare.header) + victim, prepare.body)
        self._follow_session(prepare.operation, prepare.client, prepare.op, effect.origin)
        self.host.metadata_changed()
        origin = effect.origin
        if origin is None:
            return
        op, timestamp, operation, reply = prepare.op, prepare.timestamp, prepare.operation, effect.reply
        self.when_applied(op, lambda: origin.committed(op, timestamp, operation, reply))

    def when_applied(self, op: int, answer: Callable[[], None]) -> None:
        """Call ``answer`` as soon as every shard of this node has applied entry ``op``."""
        self._number += 1
        heapq.heappush(self._waiting, (op, self._number, answer))
        self._answer()

    @property
    def applied_everywhere(self) -> int:
        """The op up to which every other shard of this node has applied metadata and made it true."""
        return min(self._applied.values())

    def applied(self, shard: int, op: int) -> None:
        """Another shard has applied everything up to ``op``; answers that waited for the last one leave."""
        self._applied[shard] = op
        self._answer()

    def _answer(self) -> None:
        waiting = self._waiting
        if waiting:
            everywhere = self.applied_everywhere
            while waiting and waiting[0][0] <= everywhere:
                heapq.heappop(waiting)[2]()

    def attachable(self, client: bytes, session: int, user_id: int) -> bool:
        """Whether a connection of ``user_id`` may act for ``client``: it is that user's, and ``session`` is its
        present one."""
        table = self.replica.table
        assert table is not None, "the metadata group has a client table"
        entry = table.get(client)
        return entry is not None and entry.user_id == user_id and entry.epoch == session

    def _follow_session(self, operation: int, client: bytes, op: int, origin: object) -> None:
        """Keep which shard a client id is bound on; a register elsewhere unbinds the older connection
        (wire-protocol.md 3.3). In a cluster each shard does that by itself, since it may be bound on another node."""
        if self.forwarding is not None:
            return
        if operation == Operation.LOGOUT:
            self._homes.pop(client, None)
        elif operation == Operation.REGISTER and isinstance(origin, MetadataOrigin):
            before = self._homes.get(client)
            self._homes[client] = origin.home
            if before is not None and before != origin.home:
                self.host.links.send(before, records.UNBIND, records.UNBIND_HEAD.pack(client, op))


class AppliedOrigin(Origin):
    """Origin of a command that another node carried out: its answer leaves when this node has applied the entry."""

    __slots__ = ("group", "origin")

    def __init__(self, group: MetadataGroup, origin: Origin) -> None:
        self.group = group
        self.origin = origin

    def committed(self, op: int, timestamp: int, operation: int, reply: bytes) -> None:
        """The entry is committed, and applied by the node that leads."""
        self.group.when_applied(op, lambda: self.origin.committed(op, timestamp, operation, reply))

    def refused(self, outcome: int, status: int) -> None:
        """The request did not become an entry, or nobody knows."""
        self.origin.refused(outcome, status)


class MetadataOrigin(Origin):
    """Origin of a metadata request: the connection's home shard and its token."""

    __slots__ = ("answered", "home", "links", "operation", "token")

    def __init__(self, links: Links, home: int, token: int, operation: int, answered: bool) -> None:
        self.links = links
        self.home = home
        self.token = token
        self.operation = operation
        self.answered = answered

    def committed(self, op: int, timestamp: int, operation: int, reply: bytes) -> None:
        """The entry is applied everywhere on this node."""
        self._send(records.MetadataReply(self.token, records.DONE, operation, 0, op, timestamp), reply)

    def refused(self, outcome: int, status: int) -> None:
        """The request did not become an entry."""
        self._send(records.MetadataReply(self.token, outcome, self.operation, status, 0, 0), b"")

    def _send(self, record: records.MetadataReply, body: bytes) -> None:
        if self.answered:
            self.links.send(self.home, records.METADATA_REPLY, record.pack(), body)
