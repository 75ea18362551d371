"""The reconciler: makes the partitions of a shard what the metadata says, one committed op after the other.

An op counts as applied on this shard, and is told to shard 0 as such, when everything it means for this shard's
partitions is done: files made and recorded, files removed, purge entries committed. In a cluster the purge entry is the
partition's primary's to make, and is waited for `PURGE_SECONDS` only: it may be on a node that cannot be reached.
Invariants: ops are followed in order; nothing is admitted to a partition while a purge of it is committed in metadata
and not in its log (`PartitionGroup.purging`).
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Protocol

import attrs
import structlog
import trio

from shardsrv.plane.metadata.changes import Change, PartitionsCreated, PartitionsDeleted, TopicPurged, TopicUpdated
from shardsrv.plane.metadata.plane import MetadataPlane, OwnedPartition
from shardsrv.plane.metadata.state import PartitionIdentity
from shardsrv.plane.partition import offsets
from shardsrv.shards import records
from shardsrv.shards.answers import Origin
from shardsrv.shards.consumer_groups import ConsumerGroups
from shardsrv.shards.links import Links
from shardsrv.shards.opening import Opened, key_of
from shardsrv.shards.partition_group import PartitionGroup
from shardsrv.shards.peering import Peering
from shardsrv.shards.pump import Pump
from shardsrv.shards.storage import PartitionStorage
from shardsrv.vsr.events import Request
from shardsrv.vsr.policy import PERSISTED
from shardsrv.wire.constants import ZERO_ID, Operation

PURGE_SECONDS = 2.0
PURGE_AGAIN = 500_000
"""Microseconds after which a primary asks again for a purge that has not taken effect."""


@attrs.frozen
class StateReplaced:
    """The metadata was replaced as a whole: a change that stands for all that may have been."""


class ReconcilerHost(Protocol):
    """What the reconciler needs of its shard."""

    shard: int
    plane: MetadataPlane
    links: Links
    pump: Pump
    storage: PartitionStorage
    groups: dict[int, PartitionGroup]
    consumer_groups: ConsumerGroups
    peering: Peering | None
    log: structlog.stdlib.BoundLogger

    def publish_counters(self, group: PartitionGroup) -> None:
        """Write the group's counters."""

    def clear_counters(self, slot: int) -> None:
        """A partition of this shard is gone."""

    def unpark(self) -> None:
        """Try parked requests again."""


class PurgeOrigin(Origin):
    """Origin of a purge entry: sets an event when it is committed or refused."""

    __slots__ = ("done", "failed")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.failed = 0

    def committed(self, op: int, timestamp: int, operation: int, reply: bytes) -> None:
        """The purge took effect."""
        self.done.set()

    def refused(self, outcome: int, status: int) -> None:
        """The partition cannot take entries; the purge is tried again when the node starts."""
        self.failed = status
        self.done.set()


class Reconciler:
    """See the module."""

    def __init__(self, host: ReconcilerHost) -> None:
        self._host = host
        self._work: deque[tuple[int, list[Any]]] = deque()
        self._wake = trio.Event()
        self._running = False
        self._purged = trio.Event()
        """Some purge took effect."""
        self._purging: dict[PartitionGroup, None] = {}
        """Partitions whose purge their primary has to ask for."""

    @property
    def busy(self) -> bool:
        """Whether an applied op is not yet true on this shard."""
        return self._running or bool(self._work)

    def follow(self, op: int, changes: list[Change]) -> None:
        """Entry ``op`` was applied to this shard's metadata."""
        for change in changes:
            if isinstance(change, TopicPurged):
                self._mark_purging(change)
        if not changes and not self.busy:
            self._applied(op)
            return
        self._work.append((op, changes))
        self._wake.set()

    def follow_state(self, op: int) -> None:
        """A whole state, as of entry ``op``, took the place of this shard's metadata."""
        self._work.append((op, [StateReplaced()]))
        self._wake.set()

    async def run(self) -> None:
        """The task: until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._work:
                self._running = True
                op, changes = self._work.popleft()
                for change in changes:
                    await self._carry_out(change)
                self._running = False
                self._applied(op)
                self._host.unpark()
                self._host.pump.settle_beside()

    def _applied(self, op: int) -> None:
        self._host.links.send(0, records.APPLIED, records.TOKEN.pack(op))

    # ------------------------------------------------------------------------------------------------ changes

    async def _carry_out(self, change: Change | StateReplaced) -> None:
        if isinstance(change, StateReplaced):
            await self._compare()
        elif isinstance(change, PartitionsCreated):
            owned = [
                OwnedPartition(made.identity, made.slot, made.created_view, 0, change.settings)
                for made in change.partitions
                if self._host.storage.owner(made.identity) == self._host.shard
            ]
            if owned:
                await self.adopt(await trio.to_thread.run_sync(self._host.storage.open_new, owned))
        elif isinstance(change, PartitionsDeleted):
            await self._delete(change)
        elif isinstance(change, TopicPurged):
            for identity in change.identities:
                group = self._group(identity)
                if group is not None:
                    await self.purge(group, change.generation)
        elif isinstance(change, TopicUpdated):
            for identity in change.identities:
                group = self._group(identity)
                if group is not None:
                    group.settings = change.settings

    async def adopt(self, opened: list[Opened]) -> None:
        """Start the replicas of opened partitions; returns when all of them serve, or cannot."""
        host = self._host
        for item in opened:
            host.pump.step(item.group.carry_out, item.effects)
        while any(not item.group.serving and item.group.fault is None for item in opened):
            await host.storage.settled()
        for item in opened:
            if item.group.fault is None:
                host.groups[item.group.identity.group] = item.group
                host.publish_counters(item.group)
                if item.group.purging and host.peering is not None:
                    self._purging[item.group] = None
                if host.peering is not None:
                    host.pump.step(host.peering.frames.made, *made_key(item.group))

    async def _delete(self, change: PartitionsDeleted) -> None:
        host = self._host
        keys = []
        for identity, slot in zip(change.identities, change.slots, strict=True):
            if host.storage.owner(identity) != host.shard:
                continue
            self._close(self._group(identity))
            host.clear_counters(slot)
            keys.append(key_of(identity))
        if keys:
            await host.storage.delete(keys)

    def _close(self, group: PartitionGroup | None) -> None:
        if group is not None:
            del self._host.groups[group.identity.group]
            self._purging.pop(group, None)
            self._host.pump.step(group.close)

    async def _compare(self) -> None:
        """Make the partitions of this shard what the present metadata says, whatever led to it."""
        host = self._host
        owned = [item for item in host.plane.owned() if host.storage.owner(item.identity) == host.shard]
        wanted = {key_of(item.identity): item for item in owned}
        for group in [group for group in host.groups.values() if key_of(group.identity) not in wanted]:
            self._close(group)
            host.clear_counters(group.counter_slot)
        strays = host.storage.strays(set(wanted), host.plane.op)
        if strays:
            await host.storage.delete(strays)
        missing = [item for item in owned if self._group(item.identity) is None]
        known = host.storage.doubtful
        if missing:
            missing = [item for item in missing if item.identity not in known]
            await self.adopt(await trio.to_thread.run_sync(host.storage.open_new, missing))
        for item in owned:
            held = self._group(item.identity)
            if held is not None:
                held.settings = item.settings
                self._want_purge(held, item.purge_generation)
        host.consumer_groups.reconcile_all()

    async def purge(self, group: PartitionGroup, generation: int) -> None:
        """Commit a purge entry in the partition's own log; everything below it is gone."""
        if self._host.peering is not None:
            self._want_purge(group, generation)
            with trio.move_on_after(PURGE_SECONDS):
                while group.purging and not group.closed:
                    await self._purged.wait()
            return
        origin = PurgeOrigin()
        self._host.pump.step(group.purge, purge_request(generation, origin))
        await origin.done.wait()
        if origin.failed:
            self._host.log.error(
                "purge refused", partition=str(group.identity), generation=generation, status=origin.failed
            )
        self._host.pump.step(group.purged)
        self._host.storage.checkpoint_soon(group)

    def _mark_purging(self, change: TopicPurged) -> None:
        for identity in change.identities:
            group = self._group(identity)
            if group is None:
                continue
            if self._host.peering is not None:
                self._want_purge(group, change.generation)
            else:
                group.purging += 1

    # ------------------------------------------------------------------------------------------------ purges in a
    # cluster

    def _want_purge(self, group: PartitionGroup, generation: int) -> None:
        """Metadata has committed a purge; nothing else is admitted until it is in the partition's log."""
        group.purge_wanted = max(group.purge_wanted, generation)
        if group.plane.purge_generation < group.purge_wanted:
            group.purging = 1
            self._purging[group] = None

    def ask_purges(self, now: int) -> None:
        """10 ms passed: put the purges that are wanted into the logs of the partitions that this node leads."""
        for group in self._purging:
            replica = group.replica
            if replica.is_primary and replica.accepts() and now >= group.purge_asked + PURGE_AGAIN:
                group.purge_asked = now
                group.carry_out(replica.step(purge_request(group.purge_wanted, None)))

    def purge_applied(self, group: PartitionGroup) -> None:
        """A purge entry took effect here."""
        if self._host.peering is None or group.plane.purge_generation < group.purge_wanted:
            return
        self._purging.pop(group, None)
        self._purged.set()
        self._purged = trio.Event()
        group.purged()
        self._host.storage.checkpoint_soon(group)

    def _group(self, identity: PartitionIdentity) -> PartitionGroup | None:
        group = self._host.groups.get(identity.group)
        return group if group is not None and group.identity == identity else None

    # ------------------------------------------------------------------------------------------------ start

    async def reconcile_all(self) -> None:
        """After a start: purges that were committed and not carried out, files of partitions that were deleted."""
        host = self._host
        mine = [owned for owned in host.plane.owned() if host.storage.owner(owned.identity) == host.shard]
        strays = host.storage.strays({key_of(owned.identity) for owned in mine}, host.plane.op)
        if strays:
            await host.storage.delete(strays)
        for owned in mine:
            group: Any = self._group(owned.identity)
            if host.peering is None and group is not None and group.plane.purge_generation < owned.purge_generation:
                group.purging += 1
                await self.purge(group, owned.purge_generation)


def purge_request(generation: int, origin: PurgeOrigin | None) -> Request:
    """The node's own request for a purge entry."""
    body = offsets.encode_purge(generation)
    now = time.time_ns() // 1000
    return Request(ZERO_ID, 0, 0, Operation.PURGE_PARTITION, 0, generation, PERSISTED, body, origin, now)


def made_key(group: PartitionGroup) -> tuple[int, int]:
    """What frames name a partition by."""
    return group.identity.group, group.identity.created_revision
