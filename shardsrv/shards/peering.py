"""What one shard has to do with the other nodes of its cluster: links, frames, time.

Made only in a cluster; a node alone has none of it on any path. Invariants: frames of a turn leave with one write a
link, before the turn's entries are written and after; every group of the shard hears of each 10 ms, late rather than
never, and of at most a few at once: time in which the process did not run is not counted as silence of the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import structlog
import trio

from shardsrv.bus._arena import Arena
from shardsrv.bus._frame import Frame
from shardsrv.bus._net import Reactor
from shardsrv.bus.handshake import Births, LinkIdentity
from shardsrv.bus.replica_links import ReplicaLinks
from shardsrv.config import Config
from shardsrv.roster import roster_digest
from shardsrv.shards.forwarding import Forwarding
from shardsrv.shards.genesis import write_births
from shardsrv.shards.group import Group
from shardsrv.shards.link_tasks import Dialer
from shardsrv.shards.member_facts import TICK_SECONDS
from shardsrv.shards.pump import Pump
from shardsrv.shards.replica_frames import ReplicaFrames
from shardsrv.shards.spawn import ShardContext
from shardsrv.store.disk import OsDisk
from shardsrv.vsr.effects import Send
from shardsrv.vsr.gathering import Gathering
from shardsrv.wire.constants import Command
from shardsrv.wire.forward_headers import ForwardRequestHeader

LATE_TICKS = 5
"""Ticks that are made up for after the process was kept from running."""
CONNECTIONS_MAX = 32
FORWARDED = (int(Command.REQUEST), int(Command.REPLY))


class PeeringHost(Protocol):
    """What peering needs of its shard."""

    context: ShardContext
    config: Config
    shard: int
    cluster: bytes
    arena: Arena
    pump: Pump
    reactor: Reactor
    log: structlog.stdlib.BoundLogger

    def start(self, task: Callable[..., Any], *arguments: Any) -> None:
        """Run a task beside the pump."""

    def group_at(self, group: int, revision: int) -> Group | None:
        """The group of this shard with an id, in that life of it."""

    def member_groups(self) -> Iterable[Group]:
        """Every group of this shard."""

    def forwarded(self, header: ForwardRequestHeader, body: Any, origin: Any) -> None:
        """A request of another node, for a group of this shard; ``body`` is writable."""

    def ticked(self, now: int) -> None:
        """Every group has heard of a tick; ``now`` in microseconds of a clock that only goes forward."""


class Peering:
    """See the module."""

    def __init__(self, host: PeeringHost) -> None:
        config, context = host.config, host.context
        self._host = host
        roster = config.cluster.roster
        auth = config.cluster.auth
        self.replica = context.node
        self.nodes = len(roster)
        self.names = {node.replica: node.name for node in roster if node.replica != context.node}
        genesis = context.prepared.genesis
        self.identity = LinkIdentity(
            host.cluster,
            context.node,
            self.nodes,
            context.shard_count,
            roster_digest(roster),
            0 if genesis is None else genesis.digest,
            0 if genesis is None else genesis.birth,
            tuple(secret for secret in (auth.shared_secret, auth.previous_shared_secret) if secret)
            if auth.enabled
            else (),
        )
        disk, data = OsDisk(), str(context.data)
        # One process keeps the file; what another one has met it knows for this life.
        keep = (lambda births: write_births(disk, data, births)) if host.shard == 0 else None
        self.births = Births(context.prepared.births, keep)
        frame_max = config.message_bus.max_message_size
        self.links = ReplicaLinks(
            Reactor(
                host.arena,
                frame_size_max=frame_max,
                connections_max=CONNECTIONS_MAX,
                unauthenticated_bytes_max=frame_max,
                ingress_bytes_max=config.limits.ingress_bytes_max,
                lockstep=False,
            ),
            self.names,
            self,
            queue_frames=config.message_bus.peer_queue_capacity,
        )
        self.frames = ReplicaFrames(host.group_at, frame_max=frame_max, parks=host.shard != 0)
        self.forwarding = Forwarding(host, self.links, self.replica)
        self._dialers = {
            node.replica: Dialer(
                self.identity,
                host.shard,
                node,
                self.births,
                grace=config.message_bus.handshake_grace,
                pause_max=config.message_bus.reconnect_period,
                adopt=self.adopt,
                log=host.log,
            )
            for node in roster
            if node.replica > context.node
        }
        self._packed: tuple[Any, bytes] = (None, b"")
        self._gathering = Gathering()

    def serve(self, key: int) -> None:
        """Every shard of the node is ready: make links, let time pass. ``key`` stands for the links in the reactor."""
        self._host.reactor.watch(self.links.reactor.epoll_fd, key, False)
        self._host.pump.outlet = self
        for dialer in self._dialers.values():
            self._host.start(dialer.run)
        self._host.start(self._keep_time)

    def adopt(self, peer: int, descriptor: int) -> None:
        """A link stands. Raises OSError when it is dead; the descriptor then still belongs to the caller."""
        self._host.pump.step(self.links.adopt, peer, descriptor)

    def send(self, effect: Send) -> None:
        """Carry out a `Send`: at once, or with what other groups say to the same node in this turn."""
        if not self._gathering.add(effect):
            self._send(effect)

    def _send(self, effect: Send) -> None:
        """Most go to several members in a row, and are packed once."""
        header, body = effect.header, effect.body
        if isinstance(header, bytes):
            packed = header
        elif header is self._packed[0]:
            packed = self._packed[1]
        else:
            packed = header.pack()
            self._packed = (header, packed)
        self.links.send(effect.replica, (packed, body))

    # --- what the pump calls -----------------------------------------------------------------------------------------

    def has_backlog(self) -> bool:
        """See `ReplicaLinks.has_backlog`."""
        return self.links.has_backlog()

    def receive(self) -> int:
        """See `ReplicaLinks.receive`."""
        return self.links.receive()

    def flush(self) -> None:
        """Send what was gathered, and write what is queued."""
        if not self._gathering.empty:
            for effect in self._gathering.take():
                self._send(effect)
        self.links.flush()

    # --- handler of the links ----------------------------------------------------------------------------------------

    def on_replica_frame(self, peer: int, frame: Frame) -> None:
        """See `LinkHandler`."""
        data = bytes(frame.whole)
        if frame.command in FORWARDED:
            self.forwarding.receive(peer, data)
        else:
            self.frames.receive(peer, data)

    def on_link(self, peer: int, up: bool) -> None:
        """See `LinkHandler`."""
        if up:
            self._host.log.info("link to a node stands", peer=self.names[peer])
            return
        self._host.log.warning("link to a node is lost", peer=self.names[peer])
        self.forwarding.lost(peer)
        dialer = self._dialers.get(peer)
        if dialer is not None:
            dialer.lost()

    # --- time --------------------------------------------------------------------------------------------------------

    async def _keep_time(self) -> None:
        due = trio.current_time()
        while True:
            due = max(due + TICK_SECONDS, trio.current_time() - LATE_TICKS * TICK_SECONDS)
            await trio.sleep_until(due)
            self._host.pump.step(self._tick)

    def _tick(self) -> None:
        now = time.time_ns() // 1000
        # What has come by now is heard before silence is counted.
        self.links.receive()
        for group in list(self._host.member_groups()):
            group.tick(now)
        self.frames.tick()
        self.forwarding.tick()
        # What the shard plans must not stand still when the wall clock is set back.
        self._host.ticked(time.monotonic_ns() // 1000)
