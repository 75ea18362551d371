"""State transfer in its place in a replica: what the replica calls (`TransferPort`), and the replica as the host of its
transfer.

Invariants: facts of the replica are read when they are needed and never kept; a pair that does not become durable
within one retry interval counts as not durable, and the install goes on without it.

A primary offers what it has applied once that is all that it knows to be committed, even before its barrier: what a new
view began with may be committed only with the acknowledgement of the very member that asks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardsrv.vsr import ingest
from shardsrv.vsr import member as members
from shardsrv.vsr.client_table_wire import view_of
from shardsrv.vsr.events import PersistFailed
from shardsrv.vsr.policy import METADATA
from shardsrv.vsr.status import NORMAL
from shardsrv.vsr.transfer import Transfer
from shardsrv.vsr.transfer_install import Checked, InstallPlan, SnapshotWriter
from shardsrv.vsr.transfer_limits import TransferLimits
from shardsrv.vsr.transfer_port import TransferPort
from shardsrv.vsr.transfer_stage import INSTALLING


class ReplicaHost:
    """`TransferHost` of ``replica``. Without ``checkpoints`` the group never makes any."""

    __slots__ = ("checkpoints", "replica", "snapshots", "transfer")

    def __init__(self, checkpoints: bool) -> None:
        self.checkpoints = checkpoints
        self.snapshots: SnapshotWriter = SnapshotWriter()
        self.replica: Any = None
        self.transfer: Any = None

    @property
    def identity(self) -> Any:
        return self.replica.identity

    @property
    def policy(self) -> Any:
        return self.replica.policy

    @property
    def view(self) -> int:
        durable = self.replica.durable_state
        return self.replica.view if durable is None else min(self.replica.view, durable.view)

    @property
    def commit_min(self) -> int:
        return self.replica.commit_min

    @property
    def commit_max(self) -> int:
        return self.replica.commit_max

    @property
    def caught_up_primary(self) -> bool:
        replica = self.replica
        leads = replica.leads and replica.status == NORMAL
        return leads and replica.commit_min >= replica.commit_max and not self.transfer.transferring

    @property
    def offer_generation(self) -> int | None:
        if not self.checkpoints:
            return None
        replica = self.replica
        if replica.policy.plane == METADATA:
            return replica.wanted_state.checkpoint_op
        # What the log has let go of since, a receiver of an older offer could not repair.
        return replica.member.log.retained_from

    @property
    def purge_generation(self) -> int:
        replica = self.replica
        return 0 if replica.policy.plane == METADATA else replica.plane.purge_generation

    @property
    def clients_max(self) -> int:
        table = self.replica.table
        return 0 if table is None else table.capacity

    def capture_for_transfer(self) -> Any:
        replica = self.replica
        if replica.policy.plane == METADATA:
            return view_of(replica.gate.applied_table, replica.commit_min)
        return replica.plane.checkpoint(replica.member.log.point_checksum)

    def record_transferred(self, op: int, checksum: int, out: list[Any]) -> None:
        self.replica.want_state(out, checkpoint_op=op, checkpoint_checksum=checksum)

    def may_install(self, op: int, checksum: int, out: list[Any]) -> bool:
        replica = self.replica
        member = replica.member
        if member.cut_token:
            return False
        if replica.commit_min < op <= replica.head_op and not self.holds(op, checksum):
            ingest.cut(replica, op, out)
            return False
        return True

    def holds(self, op: int, checksum: int) -> bool:
        return self.replica.member.log.checksum(op) == checksum

    def take_transferred(
        self, content: Checked, plan: InstallPlan, commit_op: int, first_op: int, out: list[Any]
    ) -> None:
        replica = self.replica
        gate = replica.gate
        if plan.restores:
            replica.plane.restore(content.state)
            if gate is not None:
                gate.restore(content.base_table)
        if plan.takes_table and gate is not None:
            gate.install(content.table, content.table_frontier, plan.applied_frontier)
        if plan.restores:
            members.installed(replica, content.op, content.checksum, content.timestamp, commit_op, out)
            replica.member.log.retained_from = first_op
        else:
            replica.commit_max = max(replica.commit_max, commit_op)
            if self.holds(content.op, content.checksum):
                log = replica.member.log
                log.verified_op = max(log.verified_op, content.op)

    def transfer_ended(self, peer: int, out: list[Any]) -> None:
        members.pump(self.replica, out)

    def transfer_broke(self, fault: Exception, out: list[Any]) -> None:
        out += self.replica.step(PersistFailed(0, str(fault)))


class GroupTransfer(TransferPort):
    """The transfer of one group of several members."""

    __slots__ = ("_host", "_limits", "_pair_ticks", "transfer")

    def __init__(self, limits: TransferLimits, draw: Callable[[], int], *, checkpoints: bool = True) -> None:
        self._limits = limits
        self._host = ReplicaHost(checkpoints)
        self.transfer = Transfer(self._host, limits, draw)
        self._host.transfer = self.transfer
        self._pair_ticks = 0

    @property
    def active(self) -> bool:
        """See `TransferPort.active`."""
        return self.transfer.transferring

    @property
    def installing(self) -> bool:
        """Whether the log and the files are being replaced: what the log window says is not on disk any more."""
        return self.transfer.receiver.stage == INSTALLING

    @property
    def idle(self) -> bool:
        """See `TransferPort.idle`."""
        return not self.transfer.transferring and self.transfer.server.idle

    @property
    def snapshots(self) -> SnapshotWriter:
        """Who writes snapshot and pairing; a checkpoint takes it before it encodes, and leaves it after the pair."""
        return self._host.snapshots

    def begin(self, replica: Any, peer: int, out: list[Any], first_retained: int = 0) -> None:
        """See `TransferPort.begin`."""
        self._host.replica = replica
        self.transfer.range_evicted(peer, first_retained, out)

    def message(self, replica: Any, event: Any, out: list[Any]) -> None:
        """See `TransferPort.message`."""
        self._host.replica = replica
        self.transfer.message(event.header, event.body, out)

    def answered(self, replica: Any, event: Any, out: list[Any]) -> None:
        """See `TransferPort.answered`."""
        self._host.replica = replica
        self.transfer.event(event, out)

    def tick(self, replica: Any, count: int, out: list[Any]) -> None:
        """See `TransferPort.tick`."""
        self._host.replica = replica
        self._follow_pair(replica, out)
        self.transfer.tick(out, count)

    def _follow_pair(self, replica: Any, out: list[Any]) -> None:
        """Tell an install what became of its pair."""
        wanted = self.transfer.receiver.awaited_pair
        if not wanted:
            self._pair_ticks = 0
            return
        self._pair_ticks += 1
        state = replica.durable_state
        if state is not None and state.checkpoint_op >= wanted:
            self.transfer.pair_recorded(state.checkpoint_op, out)
        elif self._pair_ticks >= self._limits.retry_ticks:
            self.transfer.pair_failed(out)

    def view_changed(self, replica: Any, out: list[Any]) -> None:
        """See `TransferPort.view_changed`: what is being fetched is dropped, what is being installed is finished."""
        self._host.replica = replica
        self.transfer.abandon(out)
