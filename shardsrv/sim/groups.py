"""Drivers of consensus groups on a simulated member: the server's own driver, with the member as its host.

What is added is only what the server's shards add: what a commit means to the node. Each effect is shown to the oracles
before it is carried out.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from shardsrv.plane.metadata.plane import MetadataPlane
from shardsrv.plane.metadata.state import PartitionIdentity
from shardsrv.plane.partition.plane import PartitionPlane
from shardsrv.shards import records
from shardsrv.shards.group import Group
from shardsrv.store.checkpoint import Checkpoint
from shardsrv.store.faults import LogFenced
from shardsrv.store.group_key import METADATA, GroupKey
from shardsrv.store.log import PrepareLog
from shardsrv.store.log_sync import SyncPlan
from shardsrv.vsr.effects import Committed
from shardsrv.vsr.events import PersistFailed, Request
from shardsrv.vsr.replica import Replica
from shardsrv.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from shardsrv.sim.node import Node


class SimGroup(Group):
    """A group on ``host``. ``durable_view`` is the view of the superblock record that the disk holds."""

    __slots__ = (
        "checkpointed_at",
        "checkpointing",
        "closed",
        "durable_view",
        "key",
        "plane",
    )

    host: Node
    plane: Any

    def __init__(self, host: Node, key: GroupKey, replica: Replica, plane: Any, log: PrepareLog) -> None:
        super().__init__(host, replica, log)
        self.key = key
        self.plane = plane
        self.checkpointed_at = 0
        self.checkpointing = False
        self.closed = False
        state = replica.durable_state
        self.durable_view = -1 if state is None else state.view

    def carry_out(self, effects: list[Any]) -> None:
        """See `Group.carry_out`."""
        if effects:
            self.host.oracles.effects(self.host, self, effects)
        super().carry_out(effects)
        if effects:
            self.host.oracles.logs.carried_out(self.host, self, effects)

    def state_persisted(self, token: int, state: Any) -> None:
        """See `Group.state_persisted`."""
        self.durable_view = state.view
        self.host.oracles.state_persisted(self.host, self, state)
        super().state_persisted(token, state)
        if self.waiting:
            self.resume()

    def synced(self, plan: SyncPlan, token: int, checksum: int) -> None:
        """See `Group.synced`; a round that was under way when the partition was deleted has nothing to tell."""
        if self.closed:
            with suppress(LogFenced):
                self.log.mark_synced(plan)
        else:
            super().synced(plan, token, checksum)

    def sync_failed(self, plan: SyncPlan, token: int, error: Exception) -> None:
        """See `Group.sync_failed` and `synced`."""
        if self.closed:
            with suppress(LogFenced):
                self.log.mark_synced(plan)
        else:
            super().sync_failed(plan, token, error)

    def committed(self, effect: Committed) -> None:
        """Answer the request."""
        prepare = effect.prepare
        self.applied_checksum = prepare.checksum
        self.host.oracles.committed(self.host, self, prepare, effect.reply)
        self.applied(prepare)
        if effect.origin is not None:
            effect.origin.committed(prepare.op, prepare.timestamp, prepare.operation, effect.reply)

    def applied(self, prepare: Any) -> None:
        """The entry is applied; nothing has been answered yet."""


class MetadataSimGroup(SimGroup):
    """The metadata group of a member."""

    __slots__ = ()

    refusal = records.REFUSED_RESULT
    plane: MetadataPlane

    def state_persisted(self, token: int, state: Any) -> None:
        """See `SimGroup.state_persisted`."""
        super().state_persisted(token, state)
        self.host.consider_return()

    def applied(self, prepare: Any) -> None:
        """Make what the entry changed true on this member."""
        self.host.follow(self.plane.take_changes())


class PartitionSimGroup(SimGroup):
    """One partition of a member."""

    __slots__ = ("checkpoint", "checkpoint_purge", "identity", "purge_asked", "purge_wanted")

    plane: PartitionPlane

    def __init__(
        self,
        host: Node,
        identity: PartitionIdentity,
        key: GroupKey,
        replica: Replica,
        plane: PartitionPlane,
        log: PrepareLog,
        checkpoint: Checkpoint,
    ) -> None:
        super().__init__(host, key, replica, plane, log)
        self.identity = identity
        self.checkpoint = checkpoint
        self.checkpoint_purge = 0
        """Op of the newest purge that a checkpoint was made for."""
        self.purge_wanted = 0
        """Generation of the last purge that metadata has committed; nothing else is admitted before it is applied."""
        self.purge_asked = 0

    @property
    def purging(self) -> bool:
        """Whether a purge is committed in metadata and not in this log."""
        return self.plane.purge_generation < self.purge_wanted

    def submit(self, request: Request) -> None:
        """See `Group.submit`."""
        if self.closed:
            request.origin.refused(records.REFUSED_STATUS, int(ErrorCode.RESOURCE_NOT_FOUND))
        elif self.purging:
            self.waiting.append(request)
            self.host.waits(self)
        else:
            super().submit(request)

    def resume(self) -> None:
        """See `Group.resume`."""
        if not self.purging:
            super().resume()

    def purge(self, request: Request) -> None:
        """Admit a purge entry past everything that waits."""
        self.carry_out(self.replica.step(request))

    def close(self) -> None:
        """The partition is deleted: what waits is refused, what is in flight has an unknown outcome."""
        self.closed = True
        self.carry_out(self.replica.step(PersistFailed(self.append_token, "the partition was deleted")))
        waiting, self.waiting = self.waiting, deque()
        for request in waiting:
            request.origin.refused(records.REFUSED_STATUS, int(ErrorCode.RESOURCE_NOT_FOUND))
        self.log.close(index=False)

    def applied(self, prepare: Any) -> None:
        """Requests that waited for a purge go on."""
        if self.waiting and not self.purging:
            self.host.waits(self)


__all__ = ["METADATA", "MetadataSimGroup", "PartitionSimGroup", "SimGroup"]
