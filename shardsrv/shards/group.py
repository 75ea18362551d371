"""Drivers of consensus groups: they carry out the effects of a replica on its log and answer requests.

A driver decides nothing: `vsr.Replica` and its plane do. Invariants:

* entries reach the log in the order of their `Append` effects and become visible to readers when the turn's write is
  done;
* after a write or a sync that failed the group is fenced: what was in flight is answered "outcome unknown", the rest
  is refused, and the boot
  record says so, until the node starts again;
* a driver never awaits: slow work is asked of its host;
* a cut of the log is a barrier: what was appended is written first, the recorded frontier goes below the cut, and the
  replica hears of it
  when the cut and all that is left are synced.
"""

from collections import deque
from contextlib import suppress
from typing import Any, Protocol

from shardsrv.errors import DiskFault
from shardsrv.shards import records
from shardsrv.store.boot import BootRecord
from shardsrv.store.faults import LogFenced
from shardsrv.store.group_key import GroupKey
from shardsrv.store.log import PrepareLog
from shardsrv.store.log_sync import SyncPlan
from shardsrv.vsr.effects import (
    Append,
    Committed,
    Fatal,
    PersistState,
    ReadPrepare,
    Refused,
    Repeat,
    Send,
    SyncLog,
    TruncateFrom,
)
from shardsrv.vsr.events import (
    APPENDED,
    SYNCED,
    Persisted,
    PersistFailed,
    PrepareRead,
    Request,
    StatePersisted,
    Tick,
    Truncated,
)
from shardsrv.vsr.normal import give_up
from shardsrv.vsr.replica import Replica
from shardsrv.vsr.status import NORMAL
from shardsrv.vsr.transfer_effects import TRANSFER_EFFECTS
from shardsrv.vsr.transfer_install import CHECKPOINT


def lower_frontier(record: BootRecord, key: GroupKey, log: PrepareLog, op: int) -> None:
    """Record that nothing from ``op`` on counts as synced, durable when it returns, before ``log`` is cut there.

    Raises `DiskFault`: the log must then not be cut.
    """
    known = record.get(key)
    if known is not None and known.synced_op >= op:
        before = log.read_prepare(op - 1)
        record.lower(key, op - 1, 0 if before is None else before.checksum)


class Host(Protocol):
    """What a group needs of its shard."""

    admission: "Admission"
    written: list["Group"]
    """Groups that have entries to write at the end of this turn."""

    def wants_sync(self, group: "Group") -> None:
        """Somebody waits for a sync of the group's log."""

    def waits(self, group: "Group") -> None:
        """Requests of the group wait for room or for admission."""

    def persist_state(self, group: "Group", effect: PersistState) -> None:
        """Write the group's superblock record; answered by `Group.state_persisted`."""

    def frontier_moved(self, group: "Group", checksum: int) -> None:
        """The log is synced up to `log.synced_op`, whose entry has identity ``checksum``."""

    def fenced(self, group: "Group", error: Exception) -> None:
        """The group cannot be trusted with writes any more."""

    def send_frame(self, group: "Group", effect: Send) -> None:
        """Queue a frame for another member; it may leave at once, and may be lost."""

    def lower_frontier(self, group: "Group", op: int) -> None:
        """The log is about to be cut from ``op`` on: no recorded frontier may lie at or above it when this returns.
        Raises `DiskFault`."""

    def trusted(self, group: "Group") -> None:
        """The group, marked as a suspect, holds again what it may have acknowledged: the mark may go."""

    def entry_damaged(self, group: "Group", op: int, error: Exception) -> None:
        """An entry that the log should hold cannot be read or does not verify; it is not served."""

    def transfer_effect(self, group: "Group", effect: Any) -> None:
        """Carry out an effect of a state transfer; answered by an event of `vsr.transfer_events`."""


class Admission:
    """Whether new entries may be appended on a shard: closed while more is unsynced than the bound allows."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open = True


class Group:
    """One consensus group on the shard that owns it. Subclasses say what a commit means to the node."""

    __slots__ = (
        "admission",
        "append_token",
        "appended_bytes",
        "applied_checksum",
        "fault",
        "host",
        "in_dirty_list",
        "in_sync_list",
        "log",
        "replica",
        "rest",
        "suspected",
        "ticks_due",
        "transfer",
        "waiting",
        "written",
    )

    refusal = records.REFUSED_STATUS
    """The channel of refusals: header status on partitions, the result section on metadata (wire-protocol.md 4.2)."""

    def __init__(self, host: Host, replica: Replica, log: PrepareLog) -> None:
        self.host = host
        self.admission = host.admission
        self.written = host.written
        self.replica = replica
        self.log = log
        self.append_token = 0
        self.appended_bytes = 0
        self.waiting: deque[Request] = deque()
        self.fault: Exception | None = None
        self.in_dirty_list = False
        self.in_sync_list = False
        self.suspected = replica.suspect
        """Whether the boot record marks the group: it may have forgotten what it acknowledged."""
        self.applied_checksum = log.head_checksum
        """Identity of the last entry that is applied."""
        self.transfer: Any = None
        """The driver of the group's state transfers (`transfer_driver.TransferDriver`); None for a single member."""
        self.ticks_due = 0
        """Ticks that passed and that the replica has not heard of."""
        self.rest = 0
        """Ticks that it need not hear of one by one; none once it has heard of anything else."""

    def submit(self, request: Request) -> None:
        """Give a request to the replica and carry out what it says. Without room it waits: pressure parks, it does
        not refuse."""
        if self.fault is None and (self.waiting or not self.replica.accepts() or not self.admission.open):
            self.waiting.append(request)
            self.host.waits(self)
        else:
            self.carry_out(self.replica.step(request))

    def resume(self) -> None:
        """Give waiting requests to the replica while there is room."""
        waiting = self.waiting
        while waiting and (self.fault is not None or (self.replica.accepts() and self.admission.open)):
            self.carry_out(self.replica.step(waiting.popleft()))

    def carry_out(self, effects: list[Any]) -> None:
        """Do what the replica asked for, in order."""
        self.rest = 0
        for effect in effects:
            kind = type(effect)
            if kind is Append:
                self._append(effect)
            elif kind is Committed:
                self.committed(effect)
            elif kind is Repeat:
                effect.origin.committed(effect.op, effect.timestamp, effect.operation, effect.reply)
            elif kind is Refused:
                self._refused(effect)
            elif kind is PersistState:
                self.host.persist_state(self, effect)
            elif kind is Send:
                self.host.send_frame(self, effect)
            elif kind is Fatal:
                self.fence(effect.error)
            else:
                self._carry_out_rare(effect)

    def _carry_out_rare(self, effect: Any) -> None:
        kind = type(effect)
        if kind is SyncLog:
            self.sync_log(effect)
        elif kind is TruncateFrom:
            self.truncate(effect)
        elif kind is ReadPrepare:
            self.read_prepare(effect)
        elif kind in TRANSFER_EFFECTS:
            self.host.transfer_effect(self, effect)
        else:
            raise TypeError(f"{kind.__name__} is not an effect")

    def deliver(self, event: Any) -> None:
        """Tell the replica something that is neither a request nor the end of a write: a frame, a tick, an answer."""
        if type(event) is Tick:
            self.replica.log_dropped(self.log.first_op)
        self.carry_out(self.replica.step(event))
        if self.suspected and not self.replica.suspect:
            self.suspected = False
            self.host.trusted(self)
        if self.waiting:
            self.resume()

    def tick(self, now: int) -> None:
        """10 ms passed at ``now``; a replica for which nothing is due hears of several at once."""
        due = self.ticks_due + 1
        if due < self.rest:
            self.ticks_due = due
            return
        self.ticks_due = 0
        self.deliver(Tick(now, due))
        self.rest = self.replica.rest

    def resign(self) -> None:
        """This node stops: if it leads the group it says so, and the others need not wait for its silence."""
        out: list[Any] = []
        if self.replica.member is not None and self.replica.status == NORMAL:
            give_up(self.replica, out)
            self.carry_out(out)

    def take_snapshots(self) -> bool:
        """Become the one who writes checkpoint and pairing; False while a transfer is being installed."""
        member: Any = self.replica.member
        return member is None or member.transfer.snapshots.take(CHECKPOINT)

    def leave_snapshots(self) -> None:
        """Be done with it."""
        member: Any = self.replica.member
        if member is not None:
            member.transfer.snapshots.leave(CHECKPOINT)

    def sync_log(self, effect: SyncLog) -> None:
        """Sync what was appended; the token stands for all of it."""
        self.append_token = effect.token
        if not self.in_sync_list:
            self.in_sync_list = True
            self.host.wants_sync(self)

    def truncate(self, effect: TruncateFrom) -> None:
        """Cut the log. Blocks on its syncs: a cut is rare, short, and nothing of the group may go on before it is
        durable."""
        self.flush()
        if self.fault is not None:
            return
        try:
            if effect.op <= self.log.head_op:
                self.host.lower_frontier(self, effect.op)
                self.log.truncate_from(effect.op)
                self.host.frontier_moved(self, self.log.synced_checksum)
        except DiskFault as error:
            self.fence(error)
            self.carry_out(self.replica.step(PersistFailed(effect.token, str(error))))
            return
        self.carry_out(self.replica.step(Truncated(effect.token)))

    def read_prepare(self, effect: ReadPrepare) -> None:
        """Read an entry for another member; None for one that is not there, is another one, or does not verify."""
        prepare = None
        try:
            prepare = self.log.read_prepare(effect.op)
        except DiskFault as error:
            self.host.entry_damaged(self, effect.op, error)
        if prepare is not None and effect.checksum and prepare.checksum != effect.checksum:
            prepare = None
        self.carry_out(self.replica.step(PrepareRead(effect.token, prepare)))

    def committed(self, effect: Committed) -> None:
        """An entry is committed and applied."""
        raise NotImplementedError

    def flush(self) -> None:
        """Write the turn's entries with one system call, then tell the replica."""
        self.in_dirty_list = False
        if self.fault is not None:
            return
        token = self.append_token
        try:
            self.log.flush()
        except DiskFault as error:
            self.fence(error)
            self.carry_out(self.replica.step(PersistFailed(token, str(error))))
            return
        self.carry_out(self.replica.step(Persisted(token, APPENDED)))
        if self.waiting:
            self.resume()
        self.flushed()

    def flushed(self) -> None:
        """The turn's entries are written and what they commit is answered."""

    def synced(self, plan: SyncPlan, token: int, checksum: int) -> None:
        """A sync that covered all entries up to ``token``, the last with identity ``checksum``, succeeded. The frontier
        is what the log says: a cut may have come between."""
        self.log.mark_synced(plan)
        self.host.frontier_moved(self, self.log.synced_checksum)
        self.carry_out(self.replica.step(Persisted(token, SYNCED)))
        if self.waiting:
            self.resume()

    def out_of_service(self, plan: SyncPlan) -> None:
        """A sync ended whose group was fenced or closed meanwhile: the plan goes back, nothing is called durable."""
        with suppress(LogFenced):  # what handing back a plan to such a log says
            self.log.mark_synced(plan)

    def sync_failed(self, plan: SyncPlan, token: int, error: Exception) -> None:
        """A sync failed: nothing written since the last good one may be called durable, now or later."""
        with suppress(LogFenced):  # what handing back a failed plan says
            self.log.mark_synced(plan)
        self.fence(error)
        self.carry_out(self.replica.step(PersistFailed(token, str(error))))

    def state_persisted(self, token: int, state: Any) -> None:
        """The superblock record is durable with exactly ``state``."""
        self.carry_out(self.replica.step(StatePersisted(token, state)))

    def fence(self, error: Exception) -> None:
        """Take the group out of service for writes."""
        if self.fault is None:
            self.fault = error
            self.host.fenced(self, error)

    def _append(self, effect: Append) -> None:
        prepare = effect.prepare
        self.log.append(prepare)
        self.appended_bytes += prepare.size
        self.append_token = effect.token
        if not self.in_dirty_list:
            self.in_dirty_list = True
            self.written.append(self)
        if effect.sync and not self.in_sync_list:
            self.in_sync_list = True
            self.host.wants_sync(self)

    def _refused(self, effect: Refused) -> None:
        if effect.origin is None:
            return
        if effect.silent:
            effect.origin.refused(records.SILENT, 0)
        elif effect.eviction:
            effect.origin.refused(records.EVICTED, effect.eviction)
        else:
            effect.origin.refused(self.refusal, effect.status)
