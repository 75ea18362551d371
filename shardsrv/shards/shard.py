"""A shard: one process, one trio run, one pump.

`run` is what the supervisor calls in the forked child. Life of a shard: *recover* (read its part of the data directory,
tell the supervisor that it is ready), *serve* (until told to stop), *drain* (no new frames; what is in flight finishes
within the deadline), *close* (sync, checkpoint, clean mark).
`metadata_shard.MetadataShard` is shard 0, `partition_shard.PartitionShard` every other.
"""

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import structlog
import trio

from shardsrv.bus._frame import Frame
from shardsrv.bus._net import Reactor
from shardsrv.errors import OurFault
from shardsrv.logs import get_logger
from shardsrv.shards.control import ControlMessage, ExitCode
from shardsrv.shards.garbage import collect_idle, collect_rarely
from shardsrv.shards.group import Admission, Group
from shardsrv.shards.links import Links
from shardsrv.shards.peering import Peering
from shardsrv.shards.pump import Pump
from shardsrv.shards.spawn import ShardContext
from shardsrv.shards.syncer import Syncer
from shardsrv.shards.transfers import Transfers
from shardsrv.store.disk import Disk, OsDisk
from shardsrv.store.layout import DataDirectory
from shardsrv.vsr.effects import PersistState, Send
from shardsrv.vsr.transfer_effects import Restored
from shardsrv.wire.forward_headers import ForwardRequestHeader

WAKE_KEY = 0
HANDOVER_KEY = 1
LINKS_KEY = 2
SYNC_KEY = 3

DRAIN_POLL = 0.005
"""Seconds between two looks at what is still in flight while a shard drains; the shard stops receiving, so nothing
else wakes it."""


def run(context: ShardContext) -> int:
    """The life of the shard of ``context`` in its own process. Returns the exit code; what it raises is told to the
    supervisor."""
    from shardsrv.shards.metadata_shard import MetadataShard
    from shardsrv.shards.partition_shard import PartitionShard

    shard = MetadataShard(context) if context.shard == 0 else PartitionShard(context)
    trio.run(shard.main)
    return ExitCode.CLEAN


class Shard:
    """What both kinds of shard have in common."""

    def __init__(self, context: ShardContext) -> None:
        self.context = context
        self.shard = context.shard
        self.config = context.config
        self.log: structlog.stdlib.BoundLogger = get_logger(context.node, context.shard)
        self.cluster = hashlib.blake2b(self.config.cluster.name.encode(), digest_size=16).digest()
        self.disk: Disk = OsDisk()
        self.directory = DataDirectory(str(context.data))
        self.links = Links(context.shared, context.shard)
        self.arena = context.shared.arena(context.shard, owner=True)
        limits = self.config.limits
        self.reactor = Reactor(
            self.arena,
            frame_size_max=self.config.message_bus.max_message_size,
            connections_max=limits.connections_max,
            unauthenticated_bytes_max=limits.unauthenticated_bytes_max,
            ingress_bytes_max=limits.ingress_bytes_max,
        )
        self.admission = Admission()
        self.written: list[Group] = []
        self.pump = Pump(self.reactor, self.links, self.written, self, self.on_record)
        partition = self.config.partition
        self.syncer = Syncer(
            self.disk,
            str(context.data),
            context.boot.affinity,
            interval=partition.sync_interval,
            early_bytes=partition.sync_bytes,
            time_max=partition.unsynced_time_max,
            bytes_max=partition.unsynced_bytes_max,
            admission=self.admission,
            step=self.pump.step,
            start=self.start,
            watch=lambda descriptor: self.reactor.watch(descriptor, SYNC_KEY, False),
            after_round=self.after_sync,
        )
        self.pump.syncer = self.syncer
        self.nursery: trio.Nursery
        self._pressed: dict[Group, None] = {}
        self._recovering = trio.CancelScope()
        self._ready = False
        self._stop = trio.Event()
        self._deadline = 0.0
        self.draining = False
        self.peering: Peering | None = Peering(self) if self.config.cluster.enabled else None
        """The other nodes; None for a node alone."""
        self.transfers = Transfers(self)

    # ------------------------------------------------------------------------------------------------ life

    async def main(self) -> None:
        """Recover, serve, drain, close."""
        self.reactor.watch(self.links.wake.fd, WAKE_KEY)
        async with trio.open_nursery() as nursery:
            self.nursery = nursery
            nursery.start_soon(self._listen_to_supervisor)
            nursery.start_soon(self.pump.run)
            nursery.start_soon(self.syncer.run)
            nursery.start_soon(self.syncer.watch_age)
            with self._recovering:
                facts = await self.recover()
                collect_rarely()
                nursery.start_soon(collect_idle, self.pump)
                self._ready = True
                self.context.control.ready(**facts)
            await self._stop.wait()
            clean = self._ready and await self._drain()
            if self.peering is not None and self._ready:
                self.pump.step(self.resign)
            nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            if self._ready:
                clean = await self.close(clean) and clean
        self.context.control.stopped(clean=clean)

    async def recover(self) -> dict[str, Any]:
        """Read this shard's part of the data directory. Returns facts for the log."""
        raise NotImplementedError

    async def serve(self) -> None:
        """All shards are ready and listeners listen: take part."""

    async def close(self, clean: bool) -> bool:
        """Nothing is in flight any more: sync, checkpoint, mark. Returns whether the next start may trust all of it."""
        raise NotImplementedError

    def in_flight(self) -> int:
        """Requests that wait for something."""
        raise NotImplementedError

    async def _listen_to_supervisor(self) -> None:
        control = self.context.control
        while True:
            await trio.lowlevel.wait_readable(control.fileno())
            for message in control.receive():
                self._on_control(message)
            if control.ended:
                raise OurFault("the supervisor is gone")

    def _on_control(self, message: ControlMessage) -> None:
        if message.kind == "serve":
            self.nursery.start_soon(self.serve)
        elif message.kind == "stop":
            self._deadline = trio.current_time() + float(message.fields["deadline_seconds"])
            self._stop.set()
            if not self._ready:
                self._recovering.cancel()
        else:
            raise OurFault(f"the supervisor said {message.kind}")

    async def _drain(self) -> bool:
        """Let what is in flight finish. True when nothing was left at the deadline."""
        self.draining = True
        self.reactor.stop_receiving()
        while self.in_flight() and trio.current_time() < self._deadline:
            await trio.sleep(DRAIN_POLL)
        self.pump.settle_beside()
        return not self.in_flight()

    # ------------------------------------------------------------------------------------------------ host of groups

    def wants_sync(self, group: Group) -> None:
        """See `group.Host`."""
        self.syncer.urgent(group)

    def waits(self, group: Group) -> None:
        """See `group.Host`: a group looks at its waiting requests after each of its writes, and all do after a sync
        round."""
        self._pressed[group] = None

    def frontier_moved(self, group: Group, checksum: int) -> None:
        """See `group.Host`."""
        raise NotImplementedError

    def persist_state(self, group: Group, effect: PersistState) -> None:
        """See `group.Host`."""
        raise NotImplementedError

    def fenced(self, group: Group, error: Exception) -> None:
        """See `group.Host`."""
        raise NotImplementedError

    def send_frame(self, group: Group, effect: Send) -> None:
        """See `group.Host`: only groups of several members send frames."""
        assert self.peering is not None, "a node alone has nobody to send to"
        self.peering.send(effect)

    def lower_frontier(self, group: Group, op: int) -> None:
        """See `group.Host`."""
        raise NotImplementedError

    def trusted(self, group: Group) -> None:
        """See `group.Host`."""
        raise NotImplementedError

    def entry_damaged(self, group: Group, op: int, error: Exception) -> None:
        """See `group.Host`."""
        self.log.error(
            "an entry of the log does not verify", group=group.replica.identity.group, op=op, error=str(error)
        )

    def transfer_effect(self, group: Group, effect: Any) -> None:
        """See `group.Host`: only groups of several members transfer."""
        if type(effect) is Restored:
            self.restored(group, effect)
        else:
            self.transfers.carry_out(group, effect)

    def restored(self, group: Group, effect: Restored) -> None:
        """A transfer put another state in place of the group's: whoever follows it compares it whole."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------------ other nodes

    def group_at(self, group: int, revision: int) -> Group | None:
        """See `PeeringHost`."""
        raise NotImplementedError

    def member_groups(self) -> Iterable[Group]:
        """See `PeeringHost`."""
        raise NotImplementedError

    def ticked(self, now: int) -> None:
        """See `PeeringHost`."""
        raise NotImplementedError

    def resign(self) -> None:
        """Let other nodes lead what this one led: nothing is in flight any more."""
        for group in self.member_groups():
            group.resign()

    def forwarded(self, header: ForwardRequestHeader, body: Any, origin: Any) -> None:
        """See `forwarding.ForwardHost`."""
        raise NotImplementedError

    def after_sync(self) -> None:
        """A sync round ended: what waited for it goes on."""
        pressed, self._pressed = self._pressed, {}
        for group in pressed:
            group.resume()

    # ------------------------------------------------------------------------------------------------ handler of the
    # reactor

    def on_frame(self, frame: Frame) -> None:
        """See `_net.Handler`."""
        raise NotImplementedError

    def on_close(self, connection: int, reason: int) -> None:
        """See `_net.Handler`."""
        raise NotImplementedError

    def on_wake(self, key: int) -> None:
        """See `_net.Handler`: the wake descriptor only ends a sleep, records are drained at the start of each turn."""
        if key == LINKS_KEY:
            self.pump.outlet.receive()
        elif key == SYNC_KEY:
            self.syncer.woken()

    def on_record(self, sender: int, kind: int, head: memoryview, body: memoryview) -> None:
        """A record of a lane."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------------ tasks

    def start(self, task: Callable[..., Any], *arguments: Any) -> None:
        """Run an async function beside the pump."""
        self.nursery.start_soon(task, *arguments)
