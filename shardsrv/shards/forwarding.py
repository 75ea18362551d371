"""Writes that reached a node which is not the primary of their group: passed on over a link, the answer relayed.

A client that knows no routing so works against any node. Invariants: a request is passed on at most once and never
from a node that it was passed on to, so that two nodes in doubt cannot play it to each other; one that found no primary
or no link certainly had no effect (58, after some waiting, `primary_wait`); one whose link or answer was lost has an
unknown outcome (57): its client repeats it under the same number, and the group knows it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import attrs

from shardsrv.bus.replica_links import ReplicaLinks
from shardsrv.errors import PeerFault
from shardsrv.shards import records
from shardsrv.shards.answers import Origin
from shardsrv.shards.primary_wait import PrimaryWait
from shardsrv.vsr.events import Request
from shardsrv.vsr.frames import body_fields
from shardsrv.vsr.identity import GroupIdentity
from shardsrv.vsr.quorum import primary_of
from shardsrv.vsr.status import NORMAL
from shardsrv.wire.constants import HEADER_SIZE, Command
from shardsrv.wire.error_codes import ErrorCode
from shardsrv.wire.forward_headers import ForwardReplyHeader, ForwardRequestHeader
from shardsrv.wire.replica_bodies import verify_body

ANSWER_TICKS: Final = 1000
"""How long an answer is waited for: 10 s, before the client of the request gives up."""


class ForwardHost(Protocol):
    """What forwarding needs of its shard."""

    cluster: bytes

    def forwarded(self, header: ForwardRequestHeader, body: Any, origin: Any) -> None:
        """A request of another node, for a group of this shard; ``body`` is writable."""


@attrs.define(slots=True, eq=False)
class Waiting:
    """A request that another node is working on."""

    origin: Any
    channel: int
    peer: int
    until: int


class Forwarding:
    """See the module."""

    def __init__(self, host: ForwardHost, links: ReplicaLinks, replica: int) -> None:
        self._host = host
        self._links = links
        self._replica = replica
        self._waiting: dict[int, Waiting] = {}
        self._token = 0
        self._ticks = 0
        self.wait = PrimaryWait(lambda replica: replica.leads or self._primary(replica) is not None)
        """What came while there was no primary."""
        self.passed_on = 0
        self.taken = 0
        self.refused = 0
        """Frames that did not verify."""

    @property
    def in_flight(self) -> int:
        """Requests whose answer, or whose group's primary, is waited for."""
        return len(self._waiting) + self.wait.count

    def takes(
        self, replica: Any, origin: Any, channel: int, again: Callable[[], None], forward: Callable[[int], None]
    ) -> bool:
        """Whether a request of the group of ``replica`` is not for this node to answer now: ``forward`` was called with
        the node that leads, or it waits and ``again`` is called when somebody leads. One that another node passed on,
        while this node knows of yet another one, does not wait: it is for its sender to ask there."""
        passed_on = isinstance(origin, PeerOrigin)
        if self.wait.must(replica) and not (passed_on and replica.status == NORMAL):
            self.wait.hold(replica, again, lambda: origin.refused(channel, ErrorCode.TRANSIENT_NOT_ACCEPTED))
            return True
        peer = None if passed_on else self._primary(replica)
        if peer is not None:
            forward(peer)
        return peer is not None

    def _primary(self, replica: Any) -> int | None:
        if replica.leads or replica.status != NORMAL:
            return None
        leader = primary_of(replica.view, replica.identity.replica_count)
        return leader if leader != self._replica and self._links.is_up(leader) else None

    def pass_on(self, peer: int, body: Any, origin: Any, channel: int, **fields: Any) -> None:
        """Send a request to ``peer``; ``origin`` hears how it ended. ``channel`` is that of the group's refusals,
        ``fields`` are those of the header."""
        self._token += 1
        fields.update(body_fields(body))
        header = ForwardRequestHeader(cluster=self._host.cluster, replica=self._replica, token=self._token, **fields)
        if not self._links.send(peer, (header.pack(), body)):
            origin.refused(channel, ErrorCode.TRANSIENT_NOT_ACCEPTED)
            return
        self.passed_on += 1
        if header.expects:
            self._waiting[self._token] = Waiting(origin, channel, peer, self._ticks + ANSWER_TICKS)

    def pass_request(self, peer: int, identity: GroupIdentity, request: Request, channel: int) -> None:
        """`pass_on` for a request of the group with ``identity``."""
        self.pass_on(
            peer,
            request.body,
            request.origin,
            channel,
            client=request.client,
            session=request.session,
            request=request.request,
            digest=request.digest,
            group=identity.group,
            created_revision=identity.created_revision,
            user_id=request.user_id,
            operation=request.operation,
            durability=request.durability,
        )

    def answer(self, peer: int, body: bytes, **fields: Any) -> None:
        """Tell ``peer`` how its request ended."""
        header = ForwardReplyHeader(cluster=self._host.cluster, replica=self._replica, **body_fields(body), **fields)
        self._links.send(peer, (header.pack(), body))

    def receive(self, peer: int, data: bytes) -> None:
        """A frame of ``peer``: a request or an answer."""
        body = memoryview(data)[HEADER_SIZE:]
        try:
            header: Any
            if data[60] == Command.REQUEST:
                header = ForwardRequestHeader.unpack(data)
            else:
                header = ForwardReplyHeader.unpack(data)
            header.validate()
            verify_body(header.checksum_body, body)
        except PeerFault:
            self.refused += 1
            return
        if isinstance(header, ForwardRequestHeader):
            self.taken += 1
            self._host.forwarded(header, bytearray(body), PeerOrigin(self, peer, header))
        else:
            self._answered(peer, header, bytes(body))

    def _answered(self, peer: int, header: ForwardReplyHeader, body: bytes) -> None:
        waiting = self._waiting.get(header.token)
        if waiting is None or waiting.peer != peer:
            return  # too late: its client has been told that the outcome is unknown
        del self._waiting[header.token]
        if header.outcome == records.DONE:
            waiting.origin.committed(header.op, header.timestamp, header.operation, body)
        else:
            waiting.origin.refused(header.outcome, header.status)

    def lost(self, peer: int) -> None:
        """The link to ``peer`` is gone, and with it what it would have answered."""
        self._unknown([token for token, waiting in self._waiting.items() if waiting.peer == peer])

    def tick(self) -> None:
        """10 ms passed."""
        self._ticks += 1
        while self._waiting:
            token, oldest = next(iter(self._waiting.items()))
            if oldest.until > self._ticks:
                break
            self._unknown([token])
        self.wait.tick()

    def _unknown(self, tokens: list[int]) -> None:
        for token in tokens:
            waiting = self._waiting.pop(token)
            waiting.origin.refused(waiting.channel, ErrorCode.TRANSIENT_NOT_COMMITTED)


def request_of(header: ForwardRequestHeader, body: Any, origin: Any, now: int) -> Request:
    """The request that another node passed on, as an event of its group at ``now`` (microseconds)."""
    return Request(
        header.client,
        header.session,
        header.request,
        header.operation,
        header.user_id,
        header.digest,
        header.durability,
        body,
        origin,
        now,
    )


class PeerOrigin(Origin):
    """Origin of a request that another node passed on: its answer goes back over the link."""

    __slots__ = ("forwarding", "header", "peer")

    def __init__(self, forwarding: Forwarding, peer: int, header: ForwardRequestHeader) -> None:
        self.forwarding = forwarding
        self.peer = peer
        self.header = header

    def committed(self, op: int, timestamp: int, operation: int, reply: bytes) -> None:
        """The request took effect as entry ``op``."""
        self._answer(reply, op=op, timestamp=timestamp, operation=operation, outcome=records.DONE)

    def refused(self, outcome: int, status: int) -> None:
        """The request was refused."""
        self._answer(b"", status=status, outcome=outcome)

    def _answer(self, body: bytes, **fields: Any) -> None:
        if self.header.expects:
            self.forwarding.answer(self.peer, body, token=self.header.token, **fields)
