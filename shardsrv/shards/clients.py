"""Clients: the connections of the whole node, asked of all shards.

A client's number on the wire is `shard << 24 | slot` of its connection: unique on the node while it lives
(wire-operations.md 1.2).
"""

import struct
from collections.abc import Callable

import attrs

from shardsrv.plane.metadata.state import Membership
from shardsrv.shards import records
from shardsrv.shards.links import Links
from shardsrv.shards.session import Session
from shardsrv.shards.sessions import Sessions
from shardsrv.wire.constants import NO_USER, Transport
from shardsrv.wire.system import ClientDetailsReply, ClientMembership, ClientRecord

SLOT_BITS = 24
_LENGTH = struct.Struct("<I")


@attrs.define(slots=True, eq=False)
class _Gathering:
    waiting_for: int
    found: list[ClientDetailsReply]
    done: Callable[[list[ClientDetailsReply]], None]


class Clients:
    """Answers get_me, get_client, get_clients and the number of connections."""

    def __init__(
        self, shard: int, sessions: Sessions, links: Links, memberships: Callable[[bytes], list[Membership]]
    ) -> None:
        self._shard = shard
        self._sessions = sessions
        self._links = links
        self._memberships = memberships
        self._peers = [peer for peer in links.peers if peer != 0]
        self._gathering: dict[int, _Gathering] = {}
        self._token = 0

    def record(self, session: Session) -> ClientDetailsReply:
        """The record of one connection of this shard, with its consumer groups."""
        number = self._shard << SLOT_BITS | (session.connection & ((1 << SLOT_BITS) - 1))
        user = session.user_id if session.bound else NO_USER
        groups = self._memberships(session.client) if session.bound else []
        client = ClientRecord(number, user, Transport.TCP, session.address, len(groups))
        return ClientDetailsReply(client, tuple(ClientMembership(*membership) for membership in groups))

    def details(self, session: Session) -> bytes:
        """Reply of get_me."""
        return self.record(session).encode()

    def all(self, done: Callable[[bytes], None]) -> None:
        """Reply of get_clients, given to ``done``."""
        self._gather(lambda found: done(b"".join(details.client.encode() for details in found)))

    def count(self, done: Callable[[int], None]) -> None:
        """The number of connections of the node, given to ``done``."""
        self._gather(lambda found: done(len(found)))

    def find(self, number: int, done: Callable[[bytes], None]) -> None:
        """Reply of get_client, given to ``done``; empty when there is no such connection."""

        def pick(found: list[ClientDetailsReply]) -> None:
            for details in found:
                if details.client.client_id == number:
                    done(details.encode())
                    return
            done(b"")

        self._gather(pick)

    def _gather(self, done: Callable[[list[ClientDetailsReply]], None]) -> None:
        own = [self.record(session) for session in self._sessions.all()]
        if not self._peers:
            done(own)
            return
        self._token += 1
        self._gathering[self._token] = _Gathering(len(self._peers), own, done)
        for peer in self._peers:
            self._links.send(peer, records.CLIENTS_REQUEST, records.TOKEN.pack(self._token))

    def requested(self, sender: int, head: memoryview) -> None:
        """Another shard gathers: tell it this shard's connections, each record behind its length."""
        body = b""
        for session in self._sessions.all():
            record = self.record(session).encode()
            body += _LENGTH.pack(len(record)) + record
        self._links.send(sender, records.CLIENTS_REPLY, bytes(head), body)

    def replied(self, head: memoryview, body: memoryview) -> None:
        """Another shard told its connections."""
        token = records.TOKEN.unpack(head)[0]
        gathering = self._gathering[token]
        position = 0
        while position < len(body):
            (length,) = _LENGTH.unpack_from(body, position)
            position += _LENGTH.size
            gathering.found.append(ClientDetailsReply.decode(body[position : position + length]))
            position += length
        gathering.waiting_for -= 1
        if gathering.waiting_for == 0:
            del self._gathering[token]
            gathering.found.sort(key=lambda details: details.client.client_id)
            gathering.done(gathering.found)
