"""The tasks that make links between nodes: dialling those with a higher replica id, and meeting those that dial here.

A node dials for each of its shards; shard 0 of the other side accepts, goes through the handshake (`bus.handshake`),
and hands the socket to the shard that it is for. Invariants: a link counts only after the whole handshake, within
``message_bus.handshake_grace``; at most `MEETINGS_MAX` handshakes of strangers run at a time; a reason that stays the
same is logged once, a lost link once, each with the name of the node.
"""

from __future__ import annotations

import errno
import os
import random
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
import trio

from shardsrv.bus import handshake
from shardsrv.bus.acceptor import Acceptor
from shardsrv.bus.handshake import Births, LinkIdentity, Refusal
from shardsrv.errors import DiskFault
from shardsrv.roster import RosterNode
from shardsrv.wire.constants import HEADER_SIZE
from shardsrv.wire.session_headers import NONCE_SIZE, HandshakeStatus

FIRST_PAUSE = 0.02
"""Seconds between the first two attempts to reach a node; doubles from there."""
MEETINGS_MAX = 64
"""Handshakes of sockets that nobody has vouched for yet."""


class Dialer:
    """Keeps one link of one shard to one node with a higher replica id."""

    def __init__(
        self,
        own: LinkIdentity,
        shard: int,
        node: RosterNode,
        births: Births,
        *,
        grace: float,
        pause_max: float,
        adopt: Callable[[int, int], None],
        log: structlog.stdlib.BoundLogger,
    ) -> None:
        """``adopt(peer, descriptor)`` takes over the socket of a link; may raise OSError."""
        self._own = own
        self._shard = shard
        self._node = node
        self._births = births
        self._grace = grace
        self._pause_max = pause_max
        self._adopt = adopt
        self._log = log
        self._lost = trio.Event()
        self._said = ""
        self.attempts = 0
        """How often the node was dialled."""

    def lost(self) -> None:
        """The link is gone."""
        self._lost.set()

    async def run(self) -> None:
        """The task: until cancelled."""
        pause = FIRST_PAUSE
        while True:
            self.attempts += 1
            try:
                descriptor = await self._meet()
            except (OSError, Refusal, DiskFault) as error:
                self._say(error)
                # Nodes that start together must not knock together for ever.
                await trio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, self._pause_max)
                continue
            pause, self._said = FIRST_PAUSE, ""
            self._lost = trio.Event()
            try:
                self._adopt(self._node.replica, descriptor)
            except OSError as error:
                os.close(descriptor)
                self._say(error)
                continue
            await self._lost.wait()

    async def _meet(self) -> int:
        """A connected socket whose other end proved to be the node. Raises `OSError`, `Refusal`."""
        family = socket.AF_INET6 if ":" in self._node.ip else socket.AF_INET
        with trio.move_on_after(self._grace), trio.socket.socket(family, socket.SOCK_STREAM) as stream:
            await stream.connect((self._node.ip, self._node.tcp_replica))
            said = handshake.hello(self._own, self._shard, secrets.token_bytes(NONCE_SIZE))
            await _send(stream, said)
            answer = await _receive(stream)
            try:
                header = handshake.take_challenge(self._own, said, answer, self._node.replica, self._births)
            except Refusal as refusal:
                if not refusal.told:
                    await _send(stream, handshake.decline(self._own, refusal.status))
                raise
            await _send(stream, handshake.finish(self._own, said, answer))
            handshake.take_confirm(await _receive(stream))
            self._births.learn(header)
            return stream.detach()
        raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    def _say(self, error: Exception) -> None:
        reason = str(error)
        if reason != self._said:
            self._said = reason
            event = "a node refuses the link" if isinstance(error, Refusal) else "a node cannot be reached"
            self._log.warning(event, peer=self._node.name, ip=self._node.ip, port=self._node.tcp_replica, reason=reason)


class LinkAcceptor:
    """Meets those who dial this node; runs on shard 0.

    ``give(peer, shard, descriptor)`` passes the socket of a link on to its shard; the descriptor stays the acceptor's.
    """

    def __init__(
        self,
        own: LinkIdentity,
        births: Births,
        *,
        grace: float,
        give: Callable[[int, int, int], Awaitable[None]],
        start: Callable[..., Any],
        log: structlog.stdlib.BoundLogger,
    ) -> None:
        self._own = own
        self._births = births
        self._grace = grace
        self._give = give
        self._start = start
        self._log = log
        self._meeting = 0
        self._said: dict[str, str] = {}
        self.turned_away = 0
        """Sockets closed at once because too many were being met."""

    async def run(self, listener: socket.socket) -> None:
        """The task: until cancelled."""
        acceptor = Acceptor()
        while True:
            await trio.lowlevel.wait_readable(listener)
            for descriptor, address in acceptor.accept_all(listener):
                if self._meeting >= MEETINGS_MAX:
                    self.turned_away += 1
                    os.close(descriptor)
                else:
                    self._meeting += 1
                    self._start(self._meet, descriptor, address)

    async def _meet(self, descriptor: int, address: str) -> None:
        try:
            stream = trio.socket.from_stdlib_socket(socket.socket(fileno=descriptor))
            with stream, trio.move_on_after(self._grace):
                peer, shard = await self._shake(stream)
                await self._give(peer, shard, stream.fileno())
                self._said.pop(_host(address), None)
        except Refusal as refusal:
            self._say(address, str(refusal))
        except (OSError, DiskFault) as error:
            self._say(address, str(error))
        finally:
            self._meeting -= 1

    async def _shake(self, stream: Any) -> tuple[int, int]:
        """(replica id, shard) of who is at the other end. Raises `OSError`, `Refusal`."""
        said = await _receive(stream)
        try:
            header = handshake.take_hello(self._own, said, self._births)
            answer = handshake.challenge(self._own, said, secrets.token_bytes(NONCE_SIZE))
            await _send(stream, answer)
            handshake.take_finish(self._own, said, answer, await _receive(stream))
        except Refusal as refusal:
            if not refusal.told:
                await _send(stream, handshake.confirm(self._own, refusal.status))
            raise
        self._births.learn(header)
        await _send(stream, handshake.confirm(self._own, HandshakeStatus.OK))
        return header.replica, header.shard

    def _say(self, address: str, reason: str) -> None:
        host = _host(address)
        if self._said.get(host) != reason:
            if len(self._said) >= MEETINGS_MAX:
                self._said.clear()
            self._said[host] = reason
            self._log.warning("no link with who dialled here", address=address, reason=reason)


def _host(address: str) -> str:
    return address.rpartition(":")[0]


async def _send(stream: Any, frame: bytes) -> None:
    left = memoryview(frame)
    while left:
        left = left[await stream.send(left) :]


async def _receive(stream: Any) -> bytes:
    """Exactly one header: what follows belongs to the link. Raises `OSError` at its end."""
    frame = b""
    while len(frame) < HEADER_SIZE:
        more = await stream.recv(HEADER_SIZE - len(frame))
        if not more:
            raise OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        frame += more
    return frame
