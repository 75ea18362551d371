"""Links of one shard to the same shard of the other nodes: one connection a node, frames in and out.

Owns which connection stands for which node, and what leaves on it. Invariants: a connection is bound to the node that
the handshake proved, so a frame's sender is never taken from its bytes; a frame is queued or dropped at once, nobody
waits for a link; what the network does not take is bounded in frames and bytes, and beyond it frames are dropped and
counted (consensus sends again); a node has one connection, the newest, and what an older one would still say is gone.

Synchronous. The owner calls `receive` when the reactor's epoll set is readable, and `flush` once a turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import attrs

from shardsrv.bus._frame import Frame
from shardsrv.bus._net import Reactor

BYTES_MAX: Final = 128 << 20
"""Bytes that may wait for one node: two of the largest frame."""
PARTS_OF_A_FRAME: Final = 2


@attrs.define(slots=True, eq=False)
class Link:
    """One other node, by replica id. ``connection`` is 0 while there is none."""

    peer: int
    name: str
    connection: int = 0
    sent: int = 0
    dropped: int = 0
    """Frames that found no link, or no room in it."""


class LinkHandler(Protocol):
    """What the links call, from `receive` and `adopt` only."""

    def on_replica_frame(self, peer: int, frame: Frame) -> None:
        """A frame of node ``peer``, unverified; its bytes are valid as long as the frame is kept."""

    def on_link(self, peer: int, up: bool) -> None:
        """A link stands, or is lost."""


class ReplicaLinks:
    """See the module. ``names``: the other nodes by replica id; ``queue_frames``: what may wait on one link."""

    def __init__(self, reactor: Reactor, names: Mapping[int, str], handler: LinkHandler, *, queue_frames: int) -> None:
        self.reactor = reactor
        self.by_peer = {peer: Link(peer, name) for peer, name in names.items()}
        self._handler = handler
        self._parts_max = queue_frames * PARTS_OF_A_FRAME
        self._by_connection: dict[int, Link] = {}

    def adopt(self, peer: int, descriptor: int) -> None:
        """Take over a socket on which the handshake with ``peer`` is done; it belongs to the links now.

        Raises OSError when it is dead; it then still belongs to the caller.
        """
        link = self.by_peer[peer]
        connection = self.reactor.adopt(descriptor)
        self.reactor.set_authenticated(connection, True)
        before = link.connection
        link.connection = connection
        self._by_connection[connection] = link
        if before:
            del self._by_connection[before]
            self.reactor.close(before)
        else:
            self._handler.on_link(peer, True)

    def is_up(self, peer: int) -> bool:
        """Whether a link to ``peer`` stands."""
        return self.by_peer[peer].connection != 0

    def send(self, peer: int, parts: tuple[Any, ...]) -> bool:
        """Queue one frame, given as buffers that nobody changes any more. False when it was dropped."""
        link = self.by_peer[peer]
        connection = link.connection
        if not connection or not self._has_room(connection) or not self.reactor.reply(connection, parts):
            link.dropped += 1
            return False
        link.sent += 1
        return True

    def _has_room(self, connection: int) -> bool:
        """What a turn has queued is offered to the network before it counts against the bound."""
        parts, size = self.reactor.queued(connection)
        if parts < self._parts_max and size < BYTES_MAX:
            return True
        self.reactor.flush()
        parts, size = self.reactor.queued(connection)
        return parts < self._parts_max and size < BYTES_MAX

    def close(self, peer: int) -> None:
        """End the link of a node that said what it must not say; the handler hears of it."""
        connection = self.by_peer[peer].connection
        if connection:
            self.reactor.close(connection)

    # --- what the pump calls -----------------------------------------------------------------------------------------

    def has_backlog(self) -> bool:
        """Whether `receive` would do something without anything new from the network."""
        return self.reactor.has_backlog()

    def receive(self) -> int:
        """Deliver what has come, up to a burst of each link. Returns how many events there were."""
        return self.reactor.poll(0, self)

    def flush(self) -> None:
        """Write what is queued, one call a link."""
        self.reactor.flush()

    # --- handler of the reactor --------------------------------------------------------------------------------------

    def on_frame(self, frame: Frame) -> None:
        """See `_net.Handler`."""
        link = self._by_connection.get(frame.connection)
        if link is not None:
            self._handler.on_replica_frame(link.peer, frame)

    def on_close(self, connection: int, reason: int) -> None:
        """See `_net.Handler`."""
        link = self._by_connection.pop(connection, None)
        if link is not None:
            link.connection = 0
            self._handler.on_link(link.peer, False)

    def on_wake(self, key: int) -> None:
        """See `_net.Handler`: nothing is watched beside the links."""
