"""What stands between clients and the metadata log: the client table, and which clients have a request in flight.

Invariants: the table changes in `commit` only, the same live and in recovery; the counts of requests in flight are of
this member and this boot alone and decide nothing that is replicated.
"""

from __future__ import annotations

from typing import Any, Final

from shardsrv.vsr import preflight
from shardsrv.vsr.client_table import ClientTable
from shardsrv.vsr.effects import Refused, Repeat
from shardsrv.vsr.events import Request
from shardsrv.vsr.plane import Plane
from shardsrv.wire.constants import ZERO_ID, Operation

_REGISTER: Final = int(Operation.REGISTER)
_LOGOUT: Final = int(Operation.LOGOUT)
_ACCEPTED: Final = bytes(4)  # a result section without an entry


class ClientGate:
    """Admission and commit of metadata requests; requests of the node itself (client of zeros) pass without the
    table."""

    __slots__ = ("_base", "_busy", "contradictions", "frontier", "table")

    def __init__(self, table: ClientTable) -> None:
        self.table = table
        self.frontier = 0
        """Op of a transferred table; entries at or below it have no effect on it, since it has seen them. 0 without
        one, and never lower from one install to the next."""
        self._base: ClientTable | None = None
        self.contradictions = 0
        """Transferred tables that differed from what the log gave at their frontier."""
        self._busy: dict[bytes, int] = {}

    @property
    def applied_table(self) -> ClientTable:
        """The table as of the last applied entry: what a snapshot holds."""
        return self.table if self._base is None else self._base

    def restore(self, table: ClientTable) -> None:
        """A snapshot was restored: ``table`` is its own."""
        self.table = table
        self._base = None
        self._busy.clear()

    def install(self, table: ClientTable, frontier: int, applied_op: int) -> None:
        """Take a transferred table that was read when ``frontier`` was applied, at or above ``applied_op`` here (an
        older one is none to take: `transfer_install.plan_install`). One that was taken before may have seen more.

        The table as of ``applied_op`` goes on beside it up to the frontier: who is evicted by an entry concerns the
        plane too, on every member at the same place of the log. From the frontier on that one alone counts: it says
        the same, and its slots are those of every other member (a table that travels is packed)."""
        assert frontier >= applied_op, "a table that is older than what is applied is not taken"
        if frontier < self.frontier:
            return
        base = self.applied_table
        self.frontier = frontier
        if frontier > applied_op:
            self.table, self._base = table, base
        else:
            self.contradictions += base.state() != table.state()

    def acting_user(self, request: Request, out: list[Any]) -> int:
        """The user that ``request`` acts as, if it may become an entry; -1 when its answer is in ``out``."""
        client = request.client
        if client == ZERO_ID:
            return request.user_id
        operation = request.operation
        if operation == _REGISTER:
            decision = preflight.preflight_register(self.table, client, request.user_id, client in self._busy)
        elif operation == _LOGOUT:
            decision = preflight.preflight_logout(self.table, client, request.session)
        else:
            decision = preflight.preflight_request(
                self.table, client, request.session, request.request, request.digest, client in self._busy
            )
        if decision.action != preflight.EXECUTE:
            out.append(self._answer(request, decision))
            return -1
        if operation == _REGISTER:
            return request.user_id
        entry = self.table.get(client)
        assert entry is not None, "only a client of the table may ask"
        return entry.user_id

    def _answer(self, request: Request, decision: preflight.Decision) -> Repeat | Refused:
        if decision.action == preflight.REPEAT:
            entry = self.table.get(request.client)
            reply = entry.reply_to(request.request) if entry is not None else None
            assert reply is not None, "only a reply that is kept is repeated"
            return Repeat(request.origin, reply.op, reply.timestamp, reply.operation, reply.body)
        if decision.action == preflight.EVICT:
            return Refused(request.origin, 0, eviction=int(decision.code), reason=decision.label)
        if decision.action == preflight.SILENCE:
            return Refused(request.origin, 0, silent=True, reason=decision.label)
        return Refused(request.origin, int(decision.code), reason=decision.label)

    def entered(self, client: bytes) -> None:
        """A request of ``client`` went into the pipeline."""
        self._busy[client] = self._busy.get(client, 0) + 1

    def left(self, client: bytes) -> None:
        """A request of ``client`` left the pipeline."""
        count = self._busy[client] - 1
        if count:
            self._busy[client] = count
        else:
            del self._busy[client]

    def emptied(self) -> None:
        """The pipeline was drained."""
        self._busy.clear()

    def commit(self, prepare: Any, plane: Plane) -> bytes:
        """Apply a committed entry to the plane and to the table; returns the reply body."""
        if self._base is None:
            return self._commit(prepare, plane, self.table)
        reply = self._commit(prepare, plane, self._base)
        if prepare.op >= self.frontier:
            self.contradictions += self._base.state() != self.table.state()
            self.table = self._base
            self._base = None
        return reply

    def _commit(self, prepare: Any, plane: Plane, table: ClientTable) -> bytes:
        client = prepare.client
        operation = prepare.operation
        session = prepare.request_checksum_high
        reply = plane.apply(prepare)
        if client == ZERO_ID:
            return reply
        if operation == _LOGOUT:
            # A newer login may have taken the client id over while this logout was on its way: its session lives on.
            if table.owns(client, session):
                table.remove(client)
        elif operation != _REGISTER:
            table.commit_request(
                client,
                session,
                prepare.request,
                prepare.request_checksum,
                operation,
                prepare.op,
                prepare.timestamp,
                reply,
            )
        elif reply[:4] == _ACCEPTED[: len(reply)]:
            victim = table.commit_register(client, prepare.user_id, prepare.op, prepare.timestamp, reply)
            if victim is not None:
                plane.client_gone(victim)
        return reply
