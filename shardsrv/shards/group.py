"""Drivers of consensus groups: they carry out the effects of a replica on its log and answer requests.

A driver decides nothing: `vsr.Replica` and its plane do. Invariants:

* entries reach the log in the order of their `Append` effects and become visible to readers when the turn's write is
  done;
* after a write or a sync that failed the group is fenced: what was in flight is answered "outcome unknown", the rest
  is refused, and the boot
  record says so, until the node starts again;
* a driver never awaits: slow work is asked of its host.
"""

from collections import deque
from contextlib import suppress
from typing import Any, Protocol

from shardsrv.errors import DiskFault
from shardsrv.shards import records
from shardsrv.store.faults import LogFenced
from shardsrv.store.log import PrepareLog
from shardsrv.store.log_sync import SyncPlan
from shardsrv.vsr.effects import Append, Committed, Fatal, PersistState, Refused, Repeat
from shardsrv.vsr.events import APPENDED, SYNCED, Persisted, PersistFailed, Request, StatePersisted
from shardsrv.vsr.replica import Replica


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
        "fault",
        "host",
        "in_dirty_list",
        "in_sync_list",
        "log",
        "replica",
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

    def submit(self, request: Request) -> None:
        """Give a request to the replica and carry out what it says. Without room it waits: pressure parks, it does
        not refuse."""
        if self.fault is None and (self.waiting or not self.replica.can_accept or not self.admission.open):
            self.waiting.append(request)
            self.host.waits(self)
        else:
            self.carry_out(self.replica.step(request))

    def resume(self) -> None:
        """Give waiting requests to the replica while there is room."""
        waiting = self.waiting
        while waiting and (self.fault is not None or (self.replica.can_accept and self.admission.open)):
            self.carry_out(self.replica.step(waiting.popleft()))

    def carry_out(self, effects: list[Any]) -> None:
        """Do what the replica asked for, in order."""
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
            elif kind is Fatal:
                self.fence(effect.error)
            else:
                raise TypeError(f"a group of one member cannot carry out {kind.__name__}")

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
        """A sync that covered all entries up to ``token``, the last with identity ``checksum``, succeeded."""
        self.log.mark_synced(plan)
        self.host.frontier_moved(self, checksum)
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
