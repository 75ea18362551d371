"""A simulated member: real replicas, planes and storage drivers on a simulated disk, driven as a shard drives them.

It lives from `start` to `kill`, `power_loss` or a typed halt; everything it asked of the schedule carries its life's
number and is void in the next one. Invariants: entries of a turn are written together, then synced; one round of syncs,
one write of the superblock and one of the group table are out at a time; what a call to the disk raises is what the
server's shards would see.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final

from shardsrv.errors import DiskFault, ShardsrvError
from shardsrv.plane.metadata.changes import Change, PartitionsCreated, PartitionsDeleted, TopicPurged
from shardsrv.plane.metadata.plane import OwnedPartition
from shardsrv.plane.metadata.state import PartitionIdentity
from shardsrv.plane.partition import offsets
from shardsrv.shards.group import lower_frontier
from shardsrv.sim import boot
from shardsrv.sim.clock import MILLISECOND, MemberClock
from shardsrv.sim.groups import MetadataSimGroup, PartitionSimGroup, SimGroup
from shardsrv.sim.options import Options
from shardsrv.store.boot import BootFacts, BootRecord
from shardsrv.store.descriptors import DescriptorPool
from shardsrv.store.group_key import METADATA, GroupKey
from shardsrv.store.groups import GroupTable
from shardsrv.store.incoming import INCOMING
from shardsrv.store.index import IndexCache
from shardsrv.store.layout import SNAPSHOT, DataDirectory
from shardsrv.store.snapshot import read_snapshot, write_snapshot
from shardsrv.store.superblock import Superblock
from shardsrv.vsr.effects import PersistState
from shardsrv.vsr.events import PersistFailed, Request, Tick
from shardsrv.vsr.nonce import Nonces
from shardsrv.vsr.policy import PERSISTED
from shardsrv.vsr.replica import NORMAL
from shardsrv.vsr.transfer_effects import Note, Restored
from shardsrv.wire.constants import ZERO_ID, Operation

if TYPE_CHECKING:
    from shardsrv.sim.world import World


QUIET_TICKS: Final = 5
"""Ticks that a quiet group may be told at once; the shortest heartbeat is ten."""

RECONCILED_EVERY: Final = 16
"""Metadata ops between two records of how far the partitions of this member are made."""


class Crash(BaseException):
    """The member ends inside a call to its disk; ``power`` says whether it loses what was not synced."""

    def __init__(self, power: bool) -> None:
        super().__init__()
        self.power = power


class Node:
    """One member of the cluster."""

    superblock: Superblock
    table: GroupTable
    partition_boot: BootRecord

    def __init__(self, world: World, index: int, disk: Any) -> None:
        self.world = world
        self.index = index
        self.name = f"n{index}"
        self.options: Options = world.options
        self.cluster = world.cluster
        self.oracles = world.oracles
        self.disk = disk
        self.directory = DataDirectory("/data")
        self.clock = MemberClock(world.schedule)
        self.latency: Random = world.chance.stream(f"latency {index}")
        self._incarnations = 0
        self.life = 0
        self.up = False
        self.halted: BaseException | None = None
        self.boot_id = self._draw_boot_id()
        self.generation = 0
        self.nameless = False
        self.wiped = False
        """Whether the disk was replaced and the state of the group has not come back yet."""
        self._clear()

    def _clear(self) -> None:
        """Forget what lives in memory."""
        self.groups: dict[int, PartitionSimGroup] = {}
        self.metadata: MetadataSimGroup | None = None
        self.doubtful: dict[PartitionIdentity, BaseException] = {}
        self.boot_facts: dict[GroupKey, BootFacts] = {}
        self.boot_records: dict[GroupKey, BootRecord] = {}
        self.pool = DescriptorPool(self.disk)
        self.indexes = IndexCache()
        self.checkpoint_op = 0
        self.reconciled_through = 0
        self._dirty: dict[SimGroup, None] = {}
        self._unsynced: dict[SimGroup, None] = {}
        self._urgent: dict[SimGroup, None] = {}
        self._waiting: dict[SimGroup, None] = {}
        self._turn_due = False
        self._round_due = 0
        self._round_running = False
        self._unsynced_bytes = 0
        self._states: dict[PartitionSimGroup, PersistState] = {}
        self._freed: list[GroupKey] = []
        self._table_busy = False
        self._snapshot_written: tuple[int, int] | None = None

    def _draw_boot_id(self) -> bytes:
        return self.latency.getrandbits(128).to_bytes(16, "little")

    def incarnation(self) -> int:
        """A new number for a superblock that is written for the first time."""
        self._incarnations += 1
        return (self.index + 1) << 64 | self._incarnations

    def nonces(self) -> Nonces:
        """The numbers of a group's life; no two lives share any."""
        return Nonces(self.incarnation())

    @property
    def busy(self) -> bool:
        """Whether anything is to be written, synced or recorded."""
        return bool(self._dirty or self._unsynced or self._states or self._freed) or self._round_running

    # --- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start from what the disk holds. A typed refusal leaves the member halted."""
        self.life += 1
        self.halted = None
        self._clear()
        self.up = True
        self.world.trace.line(self.name, "start", self.life)
        self._guard(self._start)
        if self.up:
            # Members do not tick in step.
            self.later(self.latency.randrange(self.options.tick), self._tick)

    def _start(self) -> None:
        boot.read_boot(self)
        metadata = boot.open_metadata(self)
        self.metadata = metadata
        owned = list(metadata.plane.owned())
        opened = boot.open_tables(self, owned)
        self.oracles.started(self)
        # Partitions first: what metadata commits as it starts may delete some of them.
        self._adopt(opened)
        metadata.carry_out(metadata.replica.start(self.incarnation()))
        self._delete_strays()

    def stop(self) -> bool:
        """Sync every log, record the frontiers and mark the stop as clean; the process then ends. False when it ended
        by a crash or a fault in between."""
        life = self.life
        self._guard(self._mark_clean)
        return self.life == life and self.up

    def _mark_clean(self) -> None:
        assert self.metadata is not None
        for group in [self.metadata, *self.groups.values()]:
            if group.fault is not None:
                return
            group.flush()
            plan = group.log.sync_plan()
            plan.run()
            group.log.mark_synced(plan)
            self.frontier_moved(group, group.log.synced_checksum)
        for record in (self.boot_records[METADATA], self.partition_boot):
            record.mark_clean()

    def kill(self) -> None:
        """The process ends; what it had written stays in the page cache."""
        self._stop("kill")
        self.disk.kill()

    def power_loss(self, random: Random) -> None:
        """Power goes: the disk keeps what was synced and, of the rest, any legal part."""
        self._stop("power")
        self.disk.crash(random)
        self.boot_id = self._draw_boot_id()

    def _stop(self, why: str) -> None:
        self.world.trace.line(self.name, why, self.life)
        if self.up:
            self.oracles.stopped(self)
        self.up = False
        self.life += 1
        self.world.network.reset(self.index)
        self._clear()

    def halt(self, error: BaseException) -> None:
        """The member stops by itself, with a reason."""
        self._stop(f"halt {type(error).__name__}")
        self.halted = error
        self.disk.kill()
        self.world.halted(self, error)

    def later(self, delay: int, action: Callable[..., None], *arguments: Any) -> None:
        """Do something in this life, unless it has ended by then."""
        self.world.schedule.after(delay, self._run, self.life, action, arguments)

    def _run(self, life: int, action: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if life == self.life:
            self._guard(action, *arguments)

    def _guard(self, action: Callable[..., None], *arguments: Any) -> None:
        """Run something; a crash that was planted into the disk, or a fault that ends the process, ends here."""
        try:
            action(*arguments)
        except Crash as crash:
            self.world.crashed(self, crash)
        except (ShardsrvError, OSError) as error:
            self.halt(error)

    # --- time ------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self.later(self.options.tick, self._tick)
        now = self.clock.wall()
        assert self.metadata is not None
        metadata = self.metadata
        self._tick_group(metadata, now)
        for group in list(self.groups.values()):
            self._tick_group(group, now)
            if group.purging:
                self._ask_purge(group)
        if metadata.plane.op >= self.reconciled_through + RECONCILED_EVERY and metadata.replica.status == NORMAL:
            self.reconciled_through = metadata.plane.op
            metadata.carry_out(metadata.replica.record(reconciled_through=metadata.plane.op))
        self._resume_waiting()
        self._checkpoints()
        self._settle()

    def _tick_group(self, group: SimGroup, now: int) -> None:
        """One tick; a group for which nothing is due hears of a few at once."""
        due = group.ticks_due + 1
        if due < QUIET_TICKS and group.replica.quiet:
            group.ticks_due = due
            return
        group.ticks_due = 0
        group.deliver(Tick(now, due))

    def _resume_waiting(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for group in waiting:
                group.resume()
                if group.waiting:
                    self._waiting[group] = None

    # --- frames ----------------------------------------------------------------------------------------------------

    def receive(self, source: int, frame: bytes) -> None:
        """A frame of a peer arrived."""
        if self.up:
            self._guard(self.world.frames.receive, self, source, frame)
            self._settle()

    def group_at(self, group: int) -> SimGroup | None:
        """The group with an id, if this member serves it."""
        if self.metadata is not None and group == self.metadata.replica.identity.group:
            return self.metadata
        return self.groups.get(group)

    def group_of(self, key: GroupKey) -> SimGroup | None:
        """The group of a key, if this member serves that life of it."""
        group = self.metadata if key == METADATA else self.groups.get(key.group)
        return group if group is not None and group.key == key else None

    # --- requests --------------------------------------------------------------------------------------------------

    def submit(self, group: SimGroup, request: Request) -> None:
        """Give a request to a group."""
        self._guard(group.submit, request)
        self._settle()

    # --- what a group needs of its shard (shards.group.Host) --------------------------------------------------------

    def appended(self, group: Any) -> None:
        """See `Host`."""
        self._dirty[group] = None

    def wants_sync(self, group: Any) -> None:
        """See `Host`."""
        self._urgent[group] = None

    def admits(self, group: Any) -> bool:
        """See `Host`."""
        return self._unsynced_bytes < self.options.unsynced_max

    def waits(self, group: Any) -> None:
        """See `Host`."""
        self._waiting[group] = None

    def frontier_moved(self, group: SimGroup, checksum: int) -> None:
        """See `Host`."""
        if group.closed:
            return
        record = self.boot_records.get(METADATA) if group.key == METADATA else self.partition_boot
        if record is not None:
            try:
                record.update(group.key, group.log.synced_op, checksum, group.log.head_op)
            except DiskFault as error:
                self.world.trace.line(self.name, "boot record", type(error).__name__)

    def fenced(self, group: SimGroup, error: Exception) -> None:
        """See `Host`."""
        self.world.trace.line(self.name, "fenced", group.key, type(error).__name__)
        self.world.count("groups fenced")
        record = self.boot_records.get(METADATA) if group.key == METADATA else self.partition_boot
        if record is not None:
            record.fence(group.key)
        if group.key == METADATA:
            raise error
        # One partition is out of service until the member starts again, which its supervisor does.
        self.world.restart_soon(self)

    def doubt(self, identity: PartitionIdentity, error: BaseException) -> None:
        """A partition that cannot be served."""
        if not isinstance(error, ShardsrvError):
            raise error
        self.doubtful[identity] = error
        self.world.trace.line(self.name, "doubt", identity, type(error).__name__)
        self.world.doubted(self, identity, error)

    def persist_state(self, group: Any, effect: PersistState) -> None:
        """See `Host`."""
        if group is self.metadata or group.key == METADATA:
            self.later(self._disk_delay(), self._write_superblock, group, effect)
        else:
            self._states[group] = effect
            self._table_soon()

    # --- turns: write, then sync -------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """After anything happened: a turn's entries will be written, and syncs started."""
        if self.up and self._dirty and not self._turn_due:
            self._turn_due = True
            self.later(self.latency.randrange(1, self.options.disk_latency), self._write_turn)

    def _write_turn(self) -> None:
        self._turn_due = False
        dirty, self._dirty = self._dirty, {}
        for group in dirty:
            self._write(group)
        self._settle()

    def _write(self, group: SimGroup) -> None:
        before = group.log.bytes
        group.flush()
        self._unsynced_bytes += max(0, group.log.bytes - before)
        self._unsynced[group] = None
        self._sync_soon(bool(self._urgent))

    def _sync_soon(self, urgent: bool) -> None:
        if self._round_running:
            return
        at = self.world.schedule.now + (1 if urgent else self.options.sync_interval)
        if not self._round_due or at < self._round_due:
            self._round_due = at
            self.later(at - self.world.schedule.now, self._begin_round, at)

    def _begin_round(self, due: int) -> None:
        """Plan a round between turns: what is appended is written first."""
        if self._round_running or due != self._round_due:
            return
        self._round_due = 0
        dirty, self._dirty = self._dirty, {}
        for group in dirty:
            before = group.log.bytes
            group.flush()
            self._unsynced_bytes += max(0, group.log.bytes - before)
            self._unsynced[group] = None
        groups = list(dict.fromkeys([*self._urgent, *self._unsynced]))
        self._urgent.clear()
        self._unsynced.clear()
        for group in groups:
            group.in_sync_list = False
        planned = [
            (group, group.log.sync_plan(), group.append_token, group.log.head_checksum)
            for group in groups
            if group.fault is None and not group.closed
        ]
        if not planned:
            return
        self._round_running = True
        covered, self._unsynced_bytes = self._unsynced_bytes, 0
        # The sync may have reached the disk long before it is told, or only then.
        early = self.latency.random() < 0.5
        failures = self._run_plans(planned) if early else None
        self.later(self._sync_delay(), self._end_round, planned, early, failures, covered)

    @staticmethod
    def _run_plans(planned: list[Any]) -> DiskFault | None:
        for _, plan, _, _ in planned:
            try:
                plan.run()
            except DiskFault as error:
                return error
        return None

    def _end_round(self, planned: list[Any], early: bool, failure: DiskFault | None, covered: int) -> None:
        if not early:
            failure = self._run_plans(planned)
        self._round_running = False
        if failure is not None:
            self._unsynced_bytes += covered
        for group, plan, token, checksum in planned:
            if failure is None:
                group.synced(plan, token, checksum)
            else:
                group.sync_failed(plan, token, failure)
        if self._urgent:
            self._sync_soon(True)
        elif self._unsynced or self._dirty:
            self._sync_soon(False)
        self._resume_waiting()
        self._settle()

    def _disk_delay(self) -> int:
        return self.latency.randrange(1, self.options.disk_latency + self.options.sync_latency)

    def _sync_delay(self) -> int:
        return self.latency.randrange(1, self.options.sync_latency)

    # --- what only members of a cluster ask --------------------------------------------------------------------------

    def send_frame(self, group: Any, effect: Any) -> None:
        """See `Host`."""
        self.world.frames.send(self, group, effect)

    def lower_frontier(self, group: Any, op: int) -> None:
        """See `Host`."""
        self.world.count("suffixes cut")
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
            return
        job = group.transfer.start(effect)
        if job is not None:
            self.later(self._disk_delay(), self._transfer_job, group, job)

    def _transfer_job(self, group: SimGroup, job: Callable[[], Any]) -> None:
        if not group.closed:
            group.deliver(job())
            self._settle()

    def _restored(self, group: SimGroup, effect: Any) -> None:
        """A transfer put another state in place of the plane's: compare it, and for metadata follow it as a whole."""
        self.world.count("transfers installed")
        self.world.trace.line(self.name, "restored", group.key, effect.op)
        group.applied_checksum = effect.checksum
        self.oracles.installed(self, group, effect.op)
        if group is self.metadata:
            self.checkpoint_op = effect.op
            if self.wiped:
                # Every partition that exists by now was on the disk that is gone.
                self.wiped = False
                self.reconciled_through = max(self.reconciled_through, effect.op)
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
        self._record_of(group).trust(group.key)

    def _record_of(self, group: SimGroup) -> BootRecord:
        return self.boot_records[METADATA] if group.key == METADATA else self.partition_boot

    # --- superblocks -------------------------------------------------------------------------------------------------

    def _write_superblock(self, group: SimGroup, effect: PersistState) -> None:
        try:
            self.superblock.write(effect.state.encode())
        except DiskFault as error:
            self.world.trace.line(self.name, "superblock", type(error).__name__)
            self.superblock.read()
            group.carry_out(group.replica.step(PersistFailed(effect.token, str(error))))
        else:
            group.state_persisted(effect.token, effect.state)
            self._state_recorded(effect.state)
        self._settle()

    def _table_soon(self) -> None:
        if not self._table_busy and (self._states or self._freed):
            self._table_busy = True
            self.later(self._disk_delay(), self._write_table)

    def _write_table(self) -> None:
        states, self._states = self._states, {}
        freed, self._freed = self._freed, []
        changes: dict[GroupKey, bytes | None] = {
            group.key: effect.state.encode() for group, effect in states.items() if not group.closed
        }
        changes.update(dict.fromkeys(freed))
        try:
            self.table.write(changes)
        except DiskFault as error:
            self.world.trace.line(self.name, "group table", type(error).__name__)
            self._freed.extend(freed)
            for group, effect in states.items():
                group.carry_out(group.replica.step(PersistFailed(effect.token, str(error))))
            # A table whose write failed is opened again before the next one.
            self.world.restart_soon(self)
        else:
            for group, effect in states.items():
                if not group.closed:
                    group.state_persisted(effect.token, effect.state)
        self._table_busy = False
        self._table_soon()
        self._settle()

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

    def _delete(self, keys: list[GroupKey]) -> None:
        for key in keys:
            group = self.groups.get(key.group)
            if group is not None and group.key == key:
                del self.groups[key.group]
                group.close()
                self.oracles.deleted(self, group)
            self._dirty.pop(group, None)  # type: ignore[arg-type]
            self._unsynced.pop(group, None)  # type: ignore[arg-type]
            self._urgent.pop(group, None)  # type: ignore[arg-type]
            path = self.directory.partition(*key)
            for below in (f"{path}/{INCOMING}", path):
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
        """Records of partitions that metadata does not know although it has applied the op that made them."""
        assert self.metadata is not None
        plane = self.metadata.plane
        owned = {boot.key_of(item.identity) for item in plane.owned()}
        strays = [key for key in self.table.records() if key not in owned and key.created_revision <= plane.op]
        self._delete(strays)

    def _ask_purge(self, group: PartitionSimGroup) -> None:
        """The primary puts a committed purge into the partition's own log."""
        now = self.world.schedule.now
        if not group.replica.can_accept or not group.replica.is_primary or now < group.purge_asked:
            return
        group.purge_asked = now + 500 * MILLISECOND
        wanted = group.purge_wanted
        body = offsets.encode_purge(wanted)
        request = Request(
            ZERO_ID, 0, 0, int(Operation.PURGE_PARTITION), 0, wanted, PERSISTED, body, None, self.clock.wall()
        )
        group.purge(request)

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def _checkpoints(self) -> None:
        limit = self.options.checkpoint_bytes
        group = self.metadata
        assert group is not None
        if group.appended_bytes - group.checkpointed_at >= limit and not group.checkpointing:
            self._begin_snapshot(group)
        for partition in list(self.groups.values()):
            due = partition.appended_bytes - partition.checkpointed_at >= limit
            purged = partition.plane.purge_op > partition.checkpoint_purge
            if (due or purged) and not partition.checkpointing and partition.fault is None:
                if partition.plane.applied_op == 0 or not partition.take_snapshots():
                    continue
                partition.checkpointing = True
                partition.checkpoint_purge = partition.plane.purge_op
                partition.checkpointed_at = partition.appended_bytes
                op, payload = partition.plane.applied_op, partition.plane.checkpoint(partition.applied_checksum)
                self.later(self._disk_delay(), self._write_checkpoint, partition, op, payload, partition.plane.purge_op)

    def _write_checkpoint(self, group: PartitionSimGroup, op: int, payload: bytes, purge_op: int) -> None:
        """A checkpoint describes only what is synced."""
        if group.closed or group.fault is not None:
            group.checkpointing = False
            group.leave_snapshots()
            return
        if group.log.synced_op < op:
            self.wants_sync(group)
            self._sync_soon(True)
            self.later(self._sync_delay(), self._write_checkpoint, group, op, payload, purge_op)
            return
        group.checkpointing = False
        group.leave_snapshots()
        try:
            group.checkpoint.write(payload)
            if purge_op and group.log.first_op <= purge_op and self.options.drop_logs:
                group.log.drop_plan(purge_op + 1).run()
                group.replica.log_dropped(group.log.first_op)
        except DiskFault as error:
            self.world.trace.line(self.name, "checkpoint", type(error).__name__)
            group.checkpoint.read()
        else:
            self.world.count("partition checkpoints")

    def _begin_snapshot(self, group: MetadataSimGroup) -> None:
        replica = group.replica
        if replica.commit_min <= self.checkpoint_op or replica.in_flight or not group.take_snapshots():
            return
        group.checkpointing = True
        group.checkpointed_at = group.appended_bytes
        table = replica.table
        assert table is not None
        op = replica.commit_min
        payload = group.plane.encode_snapshot(group.applied_checksum, 0, table.snapshot())
        self.oracles.snapshot(self, op, payload)
        self.later(self._disk_delay(), self._write_snapshot, group, op, payload)

    def _write_snapshot(self, group: MetadataSimGroup, op: int, payload: bytes) -> None:
        """Phase one: the file. What it holds is read back, since a failed step may still have left the new one."""
        try:
            write_snapshot(self.disk, self.directory.metadata, SNAPSHOT, payload)
            written = read_snapshot(self.disk, self.directory.snapshot)
        except DiskFault as error:
            self.world.trace.line(self.name, "snapshot", type(error).__name__)
            group.checkpointing = False
            group.leave_snapshots()
            return
        assert written is not None
        self.checkpoint_op = op
        group.carry_out(group.replica.record(checkpoint_op=op, checkpoint_checksum=written.checksum))
        self._settle()

    def _state_recorded(self, state: Any) -> None:
        """Phase three: the pairing is durable, the log below the snapshot may go."""
        group = self.metadata
        if group is None or not group.checkpointing or state.checkpoint_op < self.checkpoint_op:
            return
        group.checkpointing = False
        group.leave_snapshots()
        try:
            if self.options.drop_logs:
                group.log.drop_plan(self.checkpoint_op).run()
            group.replica.log_dropped(group.log.first_op)
        except DiskFault as error:
            self.world.trace.line(self.name, "log drop", type(error).__name__)
        self.world.count("metadata checkpoints")
        self.world.trace.line(self.name, "checkpoint", self.checkpoint_op)
