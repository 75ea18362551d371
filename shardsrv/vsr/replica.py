"""One member of one consensus group, in normal operation: requests become entries, entries become durable, then
committed.

Invariants:

* `step` is the only thing that changes a replica after its start; it reads no clock and makes no chance choice;
* ops are contiguous, each entry names its predecessor's identity, timestamps rise strictly within the log;
* an op commits when a quorum holds it at the level its durability asks for, and ops commit in op order; nothing that a
  client may take for an acknowledgement is emitted before;
* live and in recovery an entry is committed by the same function (`_commit`);
* a group serves only after its superblock record is durable, and at most one record is being written at a time;
* after a write that failed the group is fenced: what was in flight has an unknown outcome (57), later requests are
  certainly not accepted (58).

A request that is already in the log is answered from there: on metadata through the client table, on partitions
through the plane's window. A retry of an op in flight waits for that op. Pressure is the driver's business: it looks
at `can_accept` and parks; a full pipeline refuses only as the last resort.

Acknowledgements of other members are counted here (`acknowledge`); the frames that carry entries between members are
not part of this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs

from shardsrv._core import Prepare
from shardsrv.errors import GroupFenced, LogIncoherent
from shardsrv.vsr.client_gate import ClientGate
from shardsrv.vsr.client_table import ClientTable
from shardsrv.vsr.effects import Append, Committed, Fatal, PersistState, Refused, Repeat
from shardsrv.vsr.events import SYNCED, Message, Persisted, PersistFailed, PrepareRead, Request, StatePersisted, Tick
from shardsrv.vsr.head import Head, held
from shardsrv.vsr.pipeline import Pipeline
from shardsrv.vsr.plane import Executed, Plane
from shardsrv.vsr.policy import METADATA, PERSISTED, GroupPolicy
from shardsrv.vsr.quorum import primary_of, replication_quorum
from shardsrv.vsr.state import VsrState
from shardsrv.wire.constants import MAX_OP
from shardsrv.wire.error_codes import ErrorCode

RECOVERING: Final = 0
NORMAL: Final = 1
FENCED: Final = 2

_NOT_COMMITTED: Final = int(ErrorCode.TRANSIENT_NOT_COMMITTED)
_INVALID: Final = int(ErrorCode.INVALID_COMMAND)
_NOT_ACCEPTED: Final = int(ErrorCode.TRANSIENT_NOT_ACCEPTED)


@attrs.frozen
class GroupIdentity:
    """Which group, and which member of it: ``cluster`` 16 bytes, ``replica`` below ``replica_count``."""

    cluster: bytes
    group: int
    created_revision: int
    replica: int = 0
    replica_count: int = 1


class Replica:
    """See the module. Made by `recover`, fed the log by `replay`, put into service by `start`, then driven by
    `step`."""

    __slots__ = (
        "_always_synced",
        "_appended",
        "_durable_state",
        "_gate",
        "_last_timestamp",
        "_leads",
        "_pipeline",
        "_quorum",
        "_state",
        "_state_token",
        "_synced",
        "_token",
        "commit_max",
        "commit_min",
        "fence_reason",
        "head_checksum",
        "head_op",
        "identity",
        "plane",
        "policy",
        "status",
        "view",
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
    ) -> None:
        self.identity = identity
        self.policy = policy
        self.plane = plane
        self._gate = None if table is None else ClientGate(table)
        self._always_synced = policy.always_synced
        self.status = RECOVERING
        self.fence_reason = ""
        self.view = state.view if state is not None else 0
        self._leads = primary_of(self.view, identity.replica_count) == identity.replica
        self.head_op = op
        self.head_checksum = checksum
        self.commit_min = op
        self.commit_max = op
        self._last_timestamp = timestamp
        self._quorum = replication_quorum(identity.replica_count)
        self._pipeline = Pipeline(policy.pipeline_depth)
        self._token = 0
        self._appended = 0
        self._synced = 0
        self._durable_state = state
        self._state = state
        self._state_token = 0

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
    ) -> Replica:
        """A replica as its disk left it. ``plane`` and ``table`` hold the state at entry ``op`` (identity
        ``checksum``, ``timestamp`` in microseconds): a checkpoint or snapshot, or nothing with op 0. The entries above
        follow through `replay`.

        Raises `StateForeign` when ``state`` is of another cluster or member.
        """
        if state is not None:
            state.check_identity(identity.cluster, identity.replica, identity.replica_count)
        if table is None and policy.plane == METADATA:
            table = ClientTable(policy.clients_max)
        return cls(identity, policy, plane, state, op, checksum, timestamp, table)

    # --- recovery -----------------------------------------------------------------------------------------------------

    def replay(self, prepare: Prepare) -> list[Any]:
        """The next entry of the own log, while recovering. A group of one has committed all that its log holds;
        effects as in `step`.

        Raises `LogIncoherent` when the entry does not continue the log.
        """
        if self.status != RECOVERING:
            raise LogIncoherent(
                group=self.identity.group, op=prepare.op, field="status", expected="recovering", found=self.status
            )
        self._check_continues(prepare)
        self.plane.advance(prepare)
        self._take_head(prepare)
        self.commit_max = prepare.op
        return [Committed(prepare, None, self._commit(prepare))]

    def start(self, incarnation: int = 0) -> list[Any]:
        """The log is replayed, and the driver has synced what it found there: a retry may be answered from it. Without
        a record in the superblock the first one is written before anything is served.

        ``incarnation`` (u128, drawn by the shell) goes into that record.
        """
        out: list[Any] = []
        if self._durable_state is None:
            identity = self.identity
            self._state = VsrState(
                cluster=identity.cluster,
                replica_id=identity.replica,
                replica_count=identity.replica_count,
                view=0,
                log_view=0,
                commit_max=self.commit_max,
                checkpoint_op=0,
                checkpoint_checksum=0,
                offset_frontier=0,
                incarnation=incarnation,
                reconciled_through=0,
            )
            self._write_state(out)
        else:
            self.status = NORMAL
        return out

    # --- what the driver asks -----------------------------------------------------------------------------------------

    @property
    def can_accept(self) -> bool:
        """Whether a request would be taken now. False: park it (or refuse it when the group is fenced)."""
        return self.status == NORMAL and len(self._pipeline.entries) < self._pipeline.depth

    @property
    def in_flight(self) -> int:
        """Ops that are not committed yet."""
        return len(self._pipeline.entries)

    @property
    def head(self) -> Head:
        """The head of the log as one value."""
        return held(self.head_op, self.head_checksum)

    @property
    def last_timestamp(self) -> int:
        """Stamp of the newest entry; the next one is above it."""
        return self._last_timestamp

    @property
    def is_primary(self) -> bool:
        """Whether this member leads the present view."""
        return self._leads

    @property
    def table(self) -> ClientTable | None:
        """The client table (metadata), for snapshots; only commits change it."""
        return None if self._gate is None else self._gate.table

    @property
    def durable_state(self) -> VsrState | None:
        """The superblock record that is known to be on disk."""
        return self._durable_state

    def record(self, **changes: Any) -> list[Any]:
        """Write fields of the superblock record that are not this room's own: checkpoint_op and checkpoint_checksum
        after a snapshot, reconciled_through, offset_frontier. The effect comes at once, or when the record on its way
        is durable."""
        out: list[Any] = []
        assert self._state is not None, "the first record is written by start"
        self._state = attrs.evolve(self._state, commit_max=self.commit_max, **changes)
        if self._state_token == 0:
            self._write_state(out)
        return out

    # --- events -------------------------------------------------------------------------------------------------------

    def step(self, event: Any) -> list[Any]:
        """Take one event; returns the effects in the order in which they are to be carried out."""
        out: list[Any] = []
        kind = type(event)
        if kind is Request:
            self._request(event, out)
        elif kind is Persisted:
            token = event.token
            if event.level == SYNCED and token > self._synced:
                self._synced = token
            if token > self._appended:
                self._appended = token
            if self.status == NORMAL:
                self._advance_commit(out)
        else:
            handler = _HANDLERS.get(kind)
            if handler is None:
                raise TypeError(f"{kind.__name__} is not an event")
            handler(self, event, out)
        return out

    def acknowledge(self, replica: int, op: int, checksum: int, synced: bool) -> list[Any]:
        """Another member holds entry ``checksum`` at ``op``. Anything that does not fit an op in flight is ignored."""
        out: list[Any] = []
        if self.status != NORMAL or not 0 <= replica < self.identity.replica_count or replica == self.identity.replica:
            return out
        if self._pipeline.acknowledge(op, checksum, replica, synced):
            self._advance_commit(out)
        return out

    # --- requests -----------------------------------------------------------------------------------------------------

    def _request(self, request: Request, out: list[Any]) -> None:
        if self.status != NORMAL or not self._leads:
            out.append(Refused(request.origin, _NOT_ACCEPTED, reason=self._why_not()))
            return
        if request.request > MAX_OP or request.session > MAX_OP:
            # Decoders bound them already; past this point head state would move before the entry refuses them.
            out.append(Refused(request.origin, _INVALID, reason="a number is out of bounds"))
            return
        plane = self.plane
        gate = self._gate
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
        pipeline = self._pipeline
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
        last = self._last_timestamp
        timestamp = now if now > last else last + 1
        body, checksum_body = self.plane.prepare(request, op, timestamp)
        identity = self.identity
        prepare = Prepare.build(
            cluster=identity.cluster,
            view=self.view,
            replica=identity.replica,
            client=request.client,
            parent=self.head_checksum,
            request_checksum=request.digest,
            op=op,
            commit=self.commit_max,
            timestamp=timestamp,
            request=request.request,
            operation=request.operation,
            group=identity.group,
            user_id=user_id,
            created_revision=identity.created_revision,
            durability=durability,
            body=body,
            checksum_body=checksum_body,
            request_checksum_high=request.session,
        )
        self.head_op = op
        self.head_checksum = prepare.checksum
        self._last_timestamp = timestamp
        token = self._token + 1
        self._token = token
        synced = durability == PERSISTED
        self._pipeline.push(token, prepare, request.origin, synced)
        out.append(Append(token, prepare, synced))

    def _repeat(self, origin: Any, operation: int, found: Executed, out: list[Any]) -> None:
        """A retry: answer it, or let it wait for the op that it repeats."""
        op, timestamp, reply = found
        entry = self._pipeline.at(op)
        if entry is None:
            out.append(Repeat(origin, op, timestamp, operation, reply))
        elif entry.waiters is None:
            entry.waiters = [origin]
        else:
            entry.waiters.append(origin)

    def _why_not(self) -> str:
        if self.status == FENCED:
            return f"the group is fenced: {self.fence_reason}"
        return "not in service yet" if self.status == RECOVERING else "not the primary"

    # --- commit -------------------------------------------------------------------------------------------------------

    def _advance_commit(self, out: list[Any]) -> None:
        """Commit from the front while a quorum holds the entry at the level it asks for.

        The own log must hold it in any case: a client that was answered may read here at once.
        """
        pipeline = self._pipeline
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
            reply = self._commit(prepare)
            if self._gate is not None:
                self._gate.left(prepare.client)
            pipeline.pop(entry)
            out.append(Committed(prepare, origin, reply))
            if waiters is not None:
                for waiter in waiters:
                    out.append(Repeat(waiter, prepare.op, prepare.timestamp, prepare.operation, reply))

    def _commit(self, prepare: Prepare) -> bytes:
        """Apply the next entry to the plane and to the client table. The one way in which state changes, live and in
        recovery."""
        gate = self._gate
        reply = self.plane.apply(prepare) if gate is None else gate.commit(prepare, self.plane)
        self.commit_min += 1
        return reply

    def _check_continues(self, prepare: Prepare) -> None:
        """Raise `LogIncoherent` unless ``prepare`` is the entry after the head, of this group, in this life of it."""
        identity = self.identity
        for field, expected, found in (
            ("op", self.head_op + 1, prepare.op),
            ("parent", self.head_checksum, prepare.parent),
            ("group", identity.group, prepare.group),
            ("created_revision", identity.created_revision, prepare.created_revision),
            ("cluster", identity.cluster, prepare.cluster),
        ):
            if expected != found:
                raise LogIncoherent(group=identity.group, op=prepare.op, field=field, expected=expected, found=found)
        if prepare.timestamp <= self._last_timestamp or prepare.op > MAX_OP:
            raise LogIncoherent(
                group=identity.group,
                op=prepare.op,
                field="timestamp",
                expected=f"above {self._last_timestamp}",
                found=prepare.timestamp,
            )

    def _take_head(self, prepare: Prepare) -> None:
        self.head_op = prepare.op
        self.head_checksum = prepare.checksum
        self._last_timestamp = prepare.timestamp

    # --- superblock, failures, time -----------------------------------------------------------------------------------

    def _write_state(self, out: list[Any]) -> None:
        self._token += 1
        self._state_token = self._token
        out.append(PersistState(self._token, self._state))

    def _state_persisted(self, event: StatePersisted, out: list[Any]) -> None:
        """What is durable is what was written, not what is wanted by now (S0-22)."""
        if event.token != self._state_token or event.token == 0:
            return
        self._state_token = 0
        self._durable_state = event.state
        if self.status == RECOVERING:
            self.status = NORMAL
        if event.state is not self._state:
            self._write_state(out)

    def _persist_failed(self, event: PersistFailed, out: list[Any]) -> None:
        if event.token == self._state_token != 0:
            # Nothing that this record vouches for has left; the next tick writes it again.
            self._state_token = 0
            return
        if self.status == FENCED:
            return
        self.status = FENCED
        self.fence_reason = event.reason
        for entry in self._pipeline.drain():
            for origin in (entry.origin, *(entry.waiters or ())):
                out.append(Refused(origin, _NOT_COMMITTED, reason=event.reason))
        if self._gate is not None:
            self._gate.emptied()
        if self.policy.plane == METADATA:
            out.append(Fatal(GroupFenced(group=self.identity.group, reason=event.reason)))

    def _tick(self, event: Tick, out: list[Any]) -> None:
        if self.status != FENCED and self._state_token == 0 and self._state is not self._durable_state:
            self._write_state(out)

    def _ignore(self, event: Any, out: list[Any]) -> None:
        """A group of one has no peers and reads no entry back: nothing here answers a frame or a read that was not
        asked for."""


_HANDLERS: Final[dict[type, Callable[[Replica, Any, list[Any]], None]]] = {
    StatePersisted: Replica._state_persisted,
    PersistFailed: Replica._persist_failed,
    Tick: Replica._tick,
    Message: Replica._ignore,
    PrepareRead: Replica._ignore,
}
