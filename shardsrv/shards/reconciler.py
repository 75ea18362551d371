"""The reconciler: makes the partitions of a shard what the metadata says, one committed op after the other.

An op counts as applied on this shard, and is told to shard 0 as such, when everything it means for this shard's
partitions is done: files made and
recorded, files removed, purge entries committed. Invariants: ops are followed in order; nothing is admitted to a
partition while a purge of it is
committed in metadata and not in its log (`PartitionGroup.purging`).
"""

import time
from collections import deque
from typing import Any, Protocol

import structlog
import trio

from shardsrv.plane.metadata.changes import Change, PartitionsCreated, PartitionsDeleted, TopicPurged, TopicUpdated
from shardsrv.plane.metadata.plane import MetadataPlane, OwnedPartition
from shardsrv.plane.metadata.state import PartitionIdentity
from shardsrv.plane.partition import offsets
from shardsrv.shards import records
from shardsrv.shards.links import Links
from shardsrv.shards.partition_group import PartitionGroup
from shardsrv.shards.pump import Pump
from shardsrv.shards.storage import Opened, PartitionStorage, key_of
from shardsrv.vsr.events import Request
from shardsrv.vsr.policy import PERSISTED
from shardsrv.wire.constants import ZERO_ID, Operation


class ReconcilerHost(Protocol):
    """What the reconciler needs of its shard."""

    shard: int
    plane: MetadataPlane
    links: Links
    pump: Pump
    storage: PartitionStorage
    groups: dict[int, PartitionGroup]
    log: structlog.stdlib.BoundLogger

    def publish_counters(self, group: PartitionGroup) -> None:
        """Write the group's counters."""

    def clear_counters(self, slot: int) -> None:
        """A partition of this shard is gone."""

    def unpark(self) -> None:
        """Try parked requests again."""


class PurgeOrigin:
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
        self._work: deque[tuple[int, list[Change]]] = deque()
        self._wake = trio.Event()
        self._running = False

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

    async def _carry_out(self, change: Change) -> None:
        if isinstance(change, PartitionsCreated):
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

    async def _delete(self, change: PartitionsDeleted) -> None:
        host = self._host
        keys = []
        for identity, slot in zip(change.identities, change.slots, strict=True):
            if host.storage.owner(identity) != host.shard:
                continue
            group = self._group(identity)
            if group is not None:
                del host.groups[identity.group]
                host.pump.step(group.close)
            host.clear_counters(slot)
            keys.append(key_of(identity))
        if keys:
            await host.storage.delete(keys)

    async def purge(self, group: PartitionGroup, generation: int) -> None:
        """Commit a purge entry in the partition's own log; everything below it is gone."""
        origin = PurgeOrigin()
        body = offsets.encode_purge(generation)
        request = Request(
            ZERO_ID, 0, 0, Operation.PURGE_PARTITION, 0, generation, PERSISTED, body, origin, time.time_ns() // 1000
        )
        self._host.pump.step(group.purge, request)
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
            if group is not None:
                group.purging += 1

    def _group(self, identity: PartitionIdentity) -> PartitionGroup | None:
        group = self._host.groups.get(identity.group)
        return group if group is not None and group.identity == identity else None

    # ------------------------------------------------------------------------------------------------ start

    async def reconcile_all(self) -> None:
        """After a start: purges that were committed and not carried out, files of partitions that were deleted."""
        host = self._host
        mine = [owned for owned in host.plane.owned() if host.storage.owner(owned.identity) == host.shard]
        strays = host.storage.strays({key_of(owned.identity) for owned in mine})
        if strays:
            await host.storage.delete(strays)
        for owned in mine:
            group: Any = self._group(owned.identity)
            if group is not None and group.plane.purge_generation < owned.purge_generation:
                group.purging += 1
                await self.purge(group, owned.purge_generation)
