"""What a state transfer needs of the replica that it belongs to. The replica is the host of its own transfer."""

from __future__ import annotations

from typing import Any, Protocol

from shardsrv.vsr.transfer_install import Checked, InstallPlan, SnapshotWriter


class TransferHost(Protocol):
    """Facts are read in the step in which they are used, never remembered."""

    @property
    def identity(self) -> Any:
        """cluster, group, created_revision, replica, replica_count."""

    @property
    def policy(self) -> Any:
        """plane."""

    @property
    def view(self) -> int:
        """The view that frames of the transfer name: the present one, once the superblock holds it; until then the one
        that it holds. What is served is committed in any view."""

    @property
    def commit_min(self) -> int:
        """The op applied last."""

    @property
    def commit_max(self) -> int:
        """The highest op that is known to be committed."""

    @property
    def snapshots(self) -> SnapshotWriter:
        """Who writes snapshot and pairing."""

    @property
    def caught_up_primary(self) -> bool:
        """Primary in Normal, not transferring, everything that is known to be committed applied."""

    @property
    def offer_generation(self) -> int | None:
        """A number that every checkpoint and install raises; None when the group never makes checkpoints."""

    @property
    def purge_generation(self) -> int:
        """The newest purge that is known to be committed; 0 on metadata."""

    @property
    def clients_max(self) -> int:
        """Capacity of the live client table; 0 without one."""

    def capture_for_transfer(self) -> Any:
        """The live part of an offer, immutable: a `TableView` (metadata), a checkpoint payload (partitions)."""

    def record_transferred(self, op: int, checksum: int, out: list[Any]) -> None:
        """Write the pair (``op``, ``checksum``) to the superblock as soon as its writer is free. `pair_recorded` or
        `pair_failed` of the receiver follows."""

    def may_install(self, op: int, checksum: int, out: list[Any]) -> bool:
        """Whether the log is in order for an install of the state of entry ``op``: no cut is under way, and it holds no
        other entry there. One that it holds is not the group's, nor is what follows it: the host cuts it away first,
        and says yes when that is done."""

    def holds(self, op: int, checksum: int) -> bool:
        """Whether the own log holds entry ``op`` with this identity, and so everything before it."""

    def take_transferred(
        self, content: Checked, plan: InstallPlan, commit_op: int, first_op: int, out: list[Any]
    ) -> None:
        """Change memory in one step: what is known to be committed (``commit_op``), the client table, and when the plan
        restores the plane, the commit point and the head, over a log that begins at ``first_op``."""

    def transfer_ended(self, peer: int, out: list[Any]) -> None:
        """No transfer is under way any more: walk what can be walked, then repair, from ``peer`` first (-1: any)."""

    def transfer_broke(self, fault: Exception, out: list[Any]) -> None:
        """The log could not be brought behind the installed state: what it holds is not known. The group is fenced."""
