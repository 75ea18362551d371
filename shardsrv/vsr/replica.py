"""One member of one consensus group: requests become entries, entries become durable, then committed.

Invariants:

* `step` is the only thing that changes a replica after its start; it reads no clock and makes no chance choice;
* ops are contiguous, each entry names its predecessor's identity, timestamps rise strictly within the log;
* an op commits when a quorum holds it at the level its durability asks for, and ops commit in op order; nothing that a
  client may take for an acknowledgement is emitted before;
* live and in recovery an entry is committed by the same function (`commit_entry`);
* a group serves only after its superblock record is durable, and at most one record is being written at a time;
* after a write that failed the group is fenced: what was in flight has an unknown outcome (57), later requests are
  certainly not accepted (58).

A request that is already in the log is answered from there: through the client table, or the plane's window. A retry
of an op in flight waits for it. Pressure is the driver's business (`accepts`): it parks.
This module is the whole of a group of one. What a group of several members needs besides lies in `member`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs

from shardsrv._core import Prepare, PrepareMould
from shardsrv.errors import GroupFenced, LogIncoherent
from shardsrv.vsr import member as members
from shardsrv.vsr import preflight
from shardsrv.vsr.client_gate import ClientGate
from shardsrv.vsr.client_table import ClientTable
from shardsrv.vsr.effects import Append, Committed, Fatal, PersistState, Refused, Repeat
from shardsrv.vsr.events import SYNCED, Message, Persisted, PersistFailed, Request, StatePersisted, Tick
from shardsrv.vsr.head import Head, announced, held
from shardsrv.vsr.identity import GroupIdentity, check_continues
from shardsrv.vsr.member import Member
from shardsrv.vsr.nonce import Nonces
from shardsrv.vsr.pipeline import Pipeline
from shardsrv.vsr.plane import Executed, Plane
from shardsrv.vsr.policy import METADATA, PERSISTED, GroupPolicy
from shardsrv.vsr.quorum import primary_of, replication_quorum
from shardsrv.vsr.state import VsrState
from shardsrv.vsr.status import FENCED, NORMAL, RECOVERING
from shardsrv.vsr.transfer_port import TransferPort
from shardsrv.vsr.trust import DiskFacts
from shardsrv.wire.constants import MAX_OP
from shardsrv.wire.error_codes import ErrorCode

_NOT_COMMITTED: Final = int(ErrorCode.TRANSIENT_NOT_COMMITTED)
_INVALID: Final = int(ErrorCode.INVALID_COMMAND)
_NOT_ACCEPTED: Final = int(ErrorCode.TRANSIENT_NOT_ACCEPTED)
_NUMBER_MAX: Final = MAX_OP
ALONE_RESTS: Final = 5
"""Ticks that a group of one member may be told at once."""


class Replica:
    """See the module. Made by `recover`, fed the log by `replay`, put into service by `start`, then driven by
    `step`."""

    __slots__ = (
        "_always_synced",
        "_appended",
        "_mould",
        "_quorum",
        "_synced",
        "barrier",
        "commit_max",
        "commit_min",
        "durable_state",
        "fence_reason",
        "gate",
        "head_checksum",
        "head_op",
        "identity",
        "last_timestamp",
        "leads",
        "log_view",
        "member",
        "pipeline",
        "plane",
        "policy",
        "state_token",
        "status",
        "token",
        "view",
        "wanted_state",
    )

    def __init__(
        self,
        identity: GroupIdentity,
        policy: GroupPolicy,
        plane: Plane,
        state: VsrState | None,
        op: int,
        checksum: int,
        timestamp: int,
        table: ClientTable | None,
        member: Member | None,
    ) -> None:
        self.identity = identity
        self.policy = policy
        self.plane = plane
        self.gate = None if table is None else ClientGate(table)
        self._always_synced = policy.always_synced
        self._mould = PrepareMould(identity.cluster, identity.replica, identity.group, identity.created_revision)
        self.status = RECOVERING
        self.fence_reason = ""
        first = 0 if member is None else member.born_view
        self.view = state.view if state is not None else first
        self.log_view = state.log_view if state is not None else first
        self.leads = member is None and primary_of(self.view, identity.replica_count) == identity.replica
        self.head_op = op
        self.head_checksum = checksum
        self.commit_min = op
        self.commit_max = op
        self.barrier = 0
        self.last_timestamp = timestamp
        self._quorum = replication_quorum(identity.replica_count)
        self.pipeline = Pipeline(policy.pipeline_depth)
        self.token = 0
        self._appended = 0
        self._synced = 0
        self.durable_state = state
        self.wanted_state = state
        self.state_token = 0
        self.member = member

    @classmethod
    def recover(
        cls,
        identity: GroupIdentity,
        policy: GroupPolicy,
        plane: Plane,
        state: VsrState | None,
        *,
        op: int = 0,
        checksum: int = 0,
        timestamp: int = 0,
        table: ClientTable | None = None,
        disk: DiskFacts | None = None,
        nonces: Nonces | None = None,
        transfer: TransferPort | None = None,
    ) -> Replica:
        """A replica as its disk left it. ``plane`` and ``table`` hold the state at entry ``op`` (identity
        ``checksum``, ``timestamp`` in microseconds): a checkpoint or snapshot, or nothing with op 0. The entries above
        follow through `replay`. For groups of several members: ``disk`` is what the store found (trust), ``nonces``
        the numbers of this boot, ``transfer`` the group's state transfer.

        Raises `StateForeign` when ``state`` is another cluster's or member's.
        """
        if state is not None:
            state.check_identity(identity.cluster, identity.replica, identity.replica_count)
        if table is None and policy.plane == METADATA:
            table = ClientTable(policy.clients_max)
        member = None
        if identity.replica_count > 1:
            member = Member(identity, policy, disk, nonces, transfer, op, checksum, timestamp)
        return cls(identity, policy, plane, state, op, checksum, timestamp, table, member)

    # --- recovery -----------------------------------------------------------------------------------------------------

    def replay(self, prepare: Prepare) -> list[Any]:
        """The next entry of the own log, while recovering; effects as in `step`. A group of one has committed all that
        its log holds; a member of several only what later entries say was committed.

        Raises `LogIncoherent` when the entry does not continue the log.
        """
        if self.status != RECOVERING:
            raise LogIncoherent(
                group=self.identity.group, op=prepare.op, field="status", expected="recovering", found=self.status
            )
        check_continues(prepare, self.identity, self.head_op, self.head_checksum, self.last_timestamp)
        self.plane.advance(prepare)
        self.take_head(prepare)
        if self.member is not None:
            return members.replayed(self, prepare)
        self.commit_max = prepare.op
        return [Committed(prepare, None, self.commit_entry(prepare))]

    def start(self, incarnation: int = 0) -> list[Any]:
        """The log is replayed, and the driver has synced what it found there: a retry may be answered from it. Without
        a record in the superblock the first one is written before anything is served.

        ``incarnation`` (u128, drawn by the shell; a later one is greater) goes into that record.
        """
        out: list[Any] = []
        if self.durable_state is None:
            own = (self.identity.cluster, self.identity.replica, self.identity.replica_count)
            self.wanted_state = VsrState(*own, self.view, self.log_view, self.commit_min, incarnation=incarnation)
        if self.member is not None:
            members.started(self, out)
        elif self.durable_state is None:
            self.write_state(out)
        else:
            self.status = NORMAL
        return out

    # --- what the driver asks -----------------------------------------------------------------------------------------

    def accepts(self) -> bool:
        """Whether to give a request to `step` now. False: park it. A member that does not lead refuses at once."""
        if self.status == NORMAL and self.leads:
            return self.commit_min >= self.barrier and len(self.pipeline.entries) < self.pipeline.depth
        return self.member is not None

    @property
    def in_flight(self) -> int:
        """Ops of a primary that are not committed yet."""
        return len(self.pipeline.entries)

    @property
    def head(self) -> Head:
        """The head of the log as one value: announced while a view that was started names a later one."""
        if self.member is not None and self.member.target_op > self.head_op and self.status == NORMAL:
            return announced(self.member.target_op)
        return held(self.head_op, self.head_checksum)

    @property
    def is_primary(self) -> bool:
        """Whether this member leads."""
        return self.leads

    @property
    def caught_up(self) -> bool:
        """Whether this member leads and has applied everything that may have been acknowledged."""
        return self.leads and self.status == NORMAL and self.commit_min >= max(self.commit_max, self.barrier)

    @property
    def suspect(self) -> bool:
        """Whether this member may have forgotten what it acknowledged (`trust`); the store marks it meanwhile."""
        return self.member is not None and (self.member.suspect or self.member.lost)

    @property
    def rest(self) -> int:
        """How many ticks a driver may tell at once (`Tick.ticks`) as long as it tells nothing else."""
        return ALONE_RESTS if self.member is None else members.rest(self)

    @property
    def table(self) -> ClientTable | None:
        """The client table (metadata), for snapshots; only commits change it."""
        return None if self.gate is None else self.gate.applied_table

    @property
    def dropped(self) -> dict[str, int]:
        """How many frames were dropped, by reason."""
        return {} if self.member is None else self.member.dropped

    def record(self, **changes: Any) -> list[Any]:
        """Write fields of the superblock record that are not this room's own (checkpoint pair, reconciled_through,
        offset_frontier). The effect comes at once, or when the record on its way is durable."""
        out: list[Any] = []
        self.want_state(out, **changes)
        return out

    def log_dropped(self, first_op: int) -> None:
        """The driver dropped head segments: ``first_op`` is the oldest entry that the log still holds."""
        if self.member is not None:
            self.member.log.retained_from = first_op

    # --- events -------------------------------------------------------------------------------------------------------

    def step(self, event: Any) -> list[Any]:
        """Take one event; returns the effects in the order in which they are to be carried out."""
        out: list[Any] = []
        kind = type(event)
        if kind is Request:
            self._request(event, out)
        elif kind is Persisted:
            persisted = event
            if persisted.level == SYNCED and persisted.token > self._synced:
                self._synced = persisted.token
            if persisted.token > self._appended:
                self._appended = persisted.token
            if self.member is not None:
                members.persisted(self, event, out)
            elif self.status == NORMAL:
                self.advance_commit(out)
        elif kind is Message:
            if self.member is not None:
                members.receive(self, event, out)
        else:
            handler = _HANDLERS.get(kind)
            if handler is not None:
                handler(self, event, out)
            elif self.member is not None:
                members.answered(self, event, out)
            else:
                raise TypeError(f"{kind.__name__} is not an event")
        return out

    # --- requests -----------------------------------------------------------------------------------------------------

    def _request(self, request: Request, out: list[Any]) -> None:
        if self.status != NORMAL or not self.leads or self.commit_min < self.barrier:
            out.append(Refused(request.origin, _NOT_ACCEPTED, reason=self._why_not()))
            return
        if request.request > _NUMBER_MAX or request.session > _NUMBER_MAX:
            # Decoders bound them already; past this point head state would move before the entry refuses them.
            out.append(Refused(request.origin, _INVALID, reason="a number is out of bounds"))
            return
        plane = self.plane
        gate = self.gate
        if gate is None:
            user_id = request.user_id
            found = plane.find(request)
            if found is not None:
                self._repeat(request.origin, request.operation, found, out)
                return
        else:
            user_id = gate.acting_user(request, out)
            if user_id < 0:
                return
        pipeline = self.pipeline
        if len(pipeline.entries) >= pipeline.depth:
            out.append(Refused(request.origin, _NOT_ACCEPTED, reason="the pipeline is full"))
            return
        status = plane.admit(request)
        if status:
            out.append(Refused(request.origin, status))
            return
        self._append(request, user_id, out)
        if gate is not None:
            gate.entered(request.client)

    def _append(self, request: Request, user_id: int, out: list[Any]) -> None:
        """Make the next entry and ask for its write."""
        op = self.head_op + 1
        durability = PERSISTED if self._always_synced else request.durability
        now = request.now
        last = self.last_timestamp
        timestamp = now if now > last else last + 1
        body, checksum_body = self.plane.prepare(request, op, timestamp)
        prepare = self._mould.make(
            self.view,
            request.client,
            request.session,
            self.head_checksum,
            request.digest,
            op,
            self.commit_max,
            timestamp,
            request.request,
            request.operation,
            user_id,
            durability,
            body,
            checksum_body,
        )
        self.head_op = op
        self.head_checksum = prepare.checksum
        self.last_timestamp = timestamp
        token = self.token + 1
        self.token = token
        synced = durability == PERSISTED
        self.pipeline.push(token, prepare, request.origin, synced)
        out.append(Append(token, prepare, synced))
        if self.member is not None:
            members.prepared(self, token, prepare, out)

    def _repeat(self, origin: Any, operation: int, found: Executed, out: list[Any]) -> None:
        """A retry: answer it, or let it wait for the op that it repeats."""
        op, timestamp, reply = found
        entry = self.pipeline.at(op)
        if entry is None:
            out.append(Repeat(origin, op, timestamp, operation, reply))
        elif entry.waiters is None:
            entry.waiters = [origin]
        else:
            entry.waiters.append(origin)

    def _why_not(self) -> str:
        caught_up = self.commit_min >= self.barrier
        label = preflight.role(self.status == FENCED, self.status == NORMAL, self.leads, caught_up)
        return f"{label}: {self.fence_reason}" if self.status == FENCED else label

    # --- commit -------------------------------------------------------------------------------------------------------

    def advance_commit(self, out: list[Any]) -> None:
        """Commit from the front while a quorum holds the entry at the level it asks for.

        The own log must hold it in any case: a client that was answered may read here at once.
        """
        pipeline = self.pipeline
        entries = pipeline.entries
        appended = self._appended
        synced = self._synced
        others = self._quorum - 1
        while entries:
            entry = entries[0]
            if entry.token > appended:
                return
            if entry.synced:
                if entry.synced_acks.bit_count() + (entry.token <= synced) <= others:
                    return
            elif others and entry.appended_acks.bit_count() < others:
                return
            prepare = entry.prepare
            origin = entry.origin
            waiters = entry.waiters
            self.commit_max = prepare.op
            reply = self.commit_entry(prepare)
            if self.gate is not None:
                self.gate.left(prepare.client)
            pipeline.pop(entry)
            out.append(Committed(prepare, origin, reply))
            if waiters is not None:
                for waiter in waiters:
                    out.append(Repeat(waiter, prepare.op, prepare.timestamp, prepare.operation, reply))

    def commit_entry(self, prepare: Prepare) -> bytes:
        """Apply the next entry to the plane and to the client table. The one way in which state changes, live and in
        recovery."""
        gate = self.gate
        reply = self.plane.apply(prepare) if gate is None else gate.commit(prepare, self.plane)
        self.commit_min += 1
        if self.member is not None:
            self.member.log.committed(prepare)
        return reply

    def take_head(self, prepare: Prepare) -> None:
        """``prepare`` is the last entry of the log: op, identity and time move together (S1-07)."""
        self.head_op = prepare.op
        self.head_checksum = prepare.checksum
        self.last_timestamp = prepare.timestamp

    # --- superblock, failures, time -----------------------------------------------------------------------------------

    def want_state(self, out: list[Any], **changes: Any) -> None:
        """Ask for a superblock record with ``changes``; it is written at once, or when the one on its way is
        durable. ``commit_max`` of a record is what was applied: entries at or below it are those of the group."""
        assert self.wanted_state is not None, "the first record is written by start"
        self.wanted_state = attrs.evolve(self.wanted_state, commit_max=self.commit_min, **changes)
        if self.state_token == 0:
            self.write_state(out)

    def write_state(self, out: list[Any]) -> None:
        """Emit the write of the wanted record."""
        self.token += 1
        self.state_token = self.token
        out.append(PersistState(self.token, self.wanted_state))

    def _state_persisted(self, event: StatePersisted, out: list[Any]) -> None:
        """What is durable is what was written, not what is wanted by now (S0-22)."""
        if event.token != self.state_token or event.token == 0:
            return
        self.state_token = 0
        self.durable_state = event.state
        if event.state is not self.wanted_state:
            self.write_state(out)
        if self.member is not None:
            members.state_persisted(self, out)
        elif self.status == RECOVERING:
            self.status = NORMAL

    def _persist_failed(self, event: PersistFailed, out: list[Any]) -> None:
        if event.token == self.state_token != 0:
            # Nothing that this record vouches for has left; the next tick writes it again.
            self.state_token = 0
            return
        if self.status == FENCED:
            return
        self.status = FENCED
        self.fence_reason = event.reason
        self.leave_pipeline(event.reason, out)
        if self.member is not None:
            members.fenced(self, out)
        if self.policy.plane == METADATA:
            out.append(Fatal(GroupFenced(group=self.identity.group, reason=event.reason)))

    def leave_pipeline(self, reason: str, out: list[Any]) -> None:
        """What is in flight is no longer followed here: its outcome is unknown (57)."""
        for entry in self.pipeline.drain():
            for origin in (entry.origin, *(entry.waiters or ())):
                if origin is not None:
                    out.append(Refused(origin, _NOT_COMMITTED, reason=reason))
        if self.gate is not None:
            self.gate.emptied()

    def _tick(self, event: Tick, out: list[Any]) -> None:
        if self.status == FENCED:
            return
        if self.state_token == 0 and self.wanted_state is not self.durable_state:
            self.write_state(out)
        if self.member is not None:
            members.tick(self, event.ticks, out)


_HANDLERS: Final[dict[type, Callable[[Replica, Any, list[Any]], None]]] = {
    StatePersisted: Replica._state_persisted,
    PersistFailed: Replica._persist_failed,
    Tick: Replica._tick,
}
