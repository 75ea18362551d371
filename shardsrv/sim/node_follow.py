"""How a simulated member follows what is committed and what its peers send: partitions are made, purged and deleted as
metadata says; a state that a transfer put in place is compared whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardsrv.plane.metadata.changes import Change, PartitionsCreated, PartitionsDeleted, TopicPurged
from shardsrv.plane.metadata.plane import OwnedPartition
from shardsrv.plane.partition import offsets
from shardsrv.shards.group import lower_frontier
from shardsrv.sim import boot
from shardsrv.sim.clock import MILLISECOND
from shardsrv.sim.groups import PartitionSimGroup, SimGroup
from shardsrv.sim.node_disk import NodeDisk
from shardsrv.store.group_key import GroupKey
from shardsrv.store.incoming import INCOMING
from shardsrv.store.layout import partition_keys
from shardsrv.store.set_aside import asides, set_aside
from shardsrv.vsr.events import Request
from shardsrv.vsr.policy import PERSISTED
from shardsrv.vsr.transfer_effects import CheckStaged, Note, Restored
from shardsrv.wire.constants import ZERO_ID, Operation


class NodeFollow(NodeDisk):
    """The following half of a member."""

    # --- what only members of a cluster ask --------------------------------------------------------------------------

    def send_frame(self, group: Any, effect: Any) -> None:
        """See `Host`."""
        self.world.frames.send(self, group, effect)

    def lower_frontier(self, group: Any, op: int) -> None:
        """See `Host`."""
        self.world.count("suffixes cut")
        self.world.faults.cutting(self)  # type: ignore[arg-type]
        lower_frontier(self._record_of(group), group.key, group.log, op)

    def entry_damaged(self, group: Any, op: int, error: Exception) -> None:
        """See `Host`."""
        self.world.trace.line(self.name, "damaged", group.key, op, type(error).__name__)

    def transfer_effect(self, group: Any, effect: Any) -> None:
        """See `Host`: what a job needs of the disk happens a little later."""
        if type(effect) is Restored:
            self._restored(group, effect)
            return
        if type(effect) is Note:
            self.world.reached(f"transfer {effect.name}")
            self.world.trace.line(self.name, "transfer", group.key, effect.name)
            self.oracles.transfers.noted(self, group, effect)
            return
        if type(effect) is CheckStaged:
            self.checkpoint_beside_install(group)
        job = group.transfer.start(effect)
        if job is not None:
            self.later(self._disk_delay(), self._transfer_job, group, effect, job)

    def _transfer_job(self, group: SimGroup, effect: Any, job: Callable[[], Any]) -> None:
        if not group.closed:
            group.deliver(self.world.lies.loaded(self, group, effect, job()))
            self._settle()

    def _restored(self, group: SimGroup, effect: Any) -> None:
        """A transfer put another state in place of the plane's: compare it, and for metadata follow it as a whole."""
        self.world.count("transfers installed")
        self.world.trace.line(self.name, "restored", group.key, effect.op)
        group.applied_checksum = effect.checksum
        self.oracles.installed(self, group, effect.op)
        if group is self.metadata:
            self.checkpoint_op = effect.op
            owned = list(self.metadata.plane.owned())
            known = {boot.key_of(item.identity) for item in owned}
            gone = [key for key in (held.key for held in self.groups.values()) if key not in known]
            self._delete(gone)
            self._delete_strays()
            for item in owned:
                held = self.groups.get(item.identity.group)
                if held is not None:
                    held.purge_wanted = max(held.purge_wanted, item.purge_generation)
            missing = [item for item in owned if item.identity.group not in self.groups]
            self._adopt(boot.open_partitions(self, [item for item in missing if item.identity not in self.doubtful]))

    def trusted(self, group: Any) -> None:
        """See `Host`."""
        self.oracles.logs.trusted(self, group)
        self._record_of(group).trust(group.key)
        if group is self.metadata:
            self._trusted_op = group.replica.commit_min
            self.consider_return()

    def consider_return(self) -> None:
        """A member with a new disk has come back when it has recorded that all partitions are there which were made
        before it was trusted; until then none that is not there is new."""
        assert self.metadata is not None
        state = self.metadata.replica.durable_state
        if self.wiped and self._trusted_op is not None and state.reconciled_through >= self._trusted_op:
            self.wiped = False

    # --- partitions follow metadata ----------------------------------------------------------------------------------

    def follow(self, changes: list[Change]) -> None:
        """An entry of metadata is applied: make it true for the partitions of this member."""
        for change in changes:
            if isinstance(change, PartitionsCreated):
                owned = [
                    OwnedPartition(made.identity, made.slot, made.created_view, 0, change.settings)
                    for made in change.partitions
                    if made.identity not in self.doubtful and self.groups.get(made.identity.group) is None
                ]
                self._adopt(boot.open_partitions(self, owned))
            elif isinstance(change, PartitionsDeleted):
                self._delete([boot.key_of(identity) for identity in change.identities])
            elif isinstance(change, TopicPurged):
                for identity in change.identities:
                    group = self.groups.get(identity.group)
                    if group is not None and group.identity == identity:
                        group.purge_wanted = change.generation

    def _adopt(self, opened: list[PartitionSimGroup]) -> None:
        for group in opened:
            self.oracles.group_started(self, group)
            self.groups[group.identity.group] = group
            group.carry_out(group.replica.start(self.incarnation()))

    def heal(self, key: GroupKey) -> None:
        """Damage was met where a partition is read: its files are set aside, and its data comes again from peers."""
        group = self.groups.get(key.group)
        if group is None or group.key != key:
            return
        if self._table_busy or group in self._states:
            # Its record is being written: what becomes of it must be known first.
            self.later(MILLISECOND, self.heal, key)
            return
        assert self.metadata is not None
        owned = next(item for item in self.metadata.plane.owned() if item.identity == group.identity)
        self._let_go(group)
        self._adopt([boot.reopen_damaged(self, owned)])

    def _let_go(self, group: PartitionSimGroup) -> None:
        """A group is no more: what waits for it ends."""
        del self.groups[group.identity.group]
        group.close()
        if group in self.written:
            self.written.remove(group)  # type: ignore[arg-type]
        self._unsynced.pop(group, None)  # type: ignore[arg-type]
        self._urgent.pop(group, None)  # type: ignore[arg-type]
        self._waiting.pop(group, None)  # type: ignore[arg-type]
        if self.up:
            # A round over what is left, or over nothing, opens admission again.
            self._sync_soon(False)

    def _delete(self, keys: list[GroupKey]) -> None:
        for key in keys:
            group = self.groups.get(key.group)
            if group is not None and group.key == key:
                self._let_go(group)
                self.oracles.deleted(self, group)
            path = self.directory.partition(*key)
            if self.disk.exists(path):
                set_aside(self.disk, path)
            for below in (each for place in asides(self.disk, path) for each in (f"{place}/{INCOMING}", place)):
                if self.disk.exists(below):
                    for name in self.disk.listdir(below):
                        self.disk.unlink(f"{below}/{name}")
                    # Nothing of a directory that is gone stays undecided: the disk would carry it along for ever.
                    self.disk.fsync_dir(below)
                    self.disk.remove_tree(below)
            if self.disk.exists(path.rpartition("/")[0]):
                self.disk.fsync_dir(path.rpartition("/")[0])
            self.partition_boot.remove(key)
            if key in self.table.records() or (group is not None and group in self._states):
                self._freed.append(key)
        self._table_soon()

    def _delete_strays(self) -> None:
        """Records and directories of partitions that metadata does not know although it has applied the op that made
        them."""
        assert self.metadata is not None
        plane = self.metadata.plane
        owned = {boot.key_of(item.identity) for item in plane.owned()}
        root = self.directory.partitions
        held = partition_keys(root, self.disk.listdir) if self.disk.exists(root) else []
        known = dict.fromkeys([*self.table.records(), *held])
        self._delete([key for key in known if key not in owned and key.created_revision <= plane.op])

    def _ask_purge(self, group: PartitionSimGroup) -> None:
        """The primary puts a committed purge into the partition's own log."""
        now = self.world.schedule.now
        if not group.replica.accepts() or not group.replica.is_primary or now < group.purge_asked:
            return
        group.purge_asked = now + 500 * MILLISECOND
        wanted = group.purge_wanted
        body = offsets.encode_purge(wanted)
        request = Request(
            ZERO_ID, 0, 0, int(Operation.PURGE_PARTITION), 0, wanted, PERSISTED, body, None, self.clock.wall()
        )
        group.purge(request)
