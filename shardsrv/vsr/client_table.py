"""At most once on the metadata plane: who is registered, what each client last asked, and the replies it may ask for
again.

Invariants:

* the table is a function of the committed log: only commits change it, and the client that is evicted from a full
  table is the one whose newest reply has the lowest op (ties: the lowest slot), never one chosen by memory order or by
  what is in flight;
* an entry always has at least one reply (that of its Register) and at most REPLIES_KEPT, newest last;
* ``epoch`` is the op of the client's latest Register: a session that lost its client id to a newer login is recognised
  by it;
* slots keep their numbers over a snapshot, so the next victim is the same before and after a restart.

Snapshot form: a list in slot order of [slot, client, epoch, user_id, watermark, watermark_checksum, replies], each
reply being [request, digest, op, timestamp, operation, body]. Only ints, bytes and lists, so equal tables give equal
bytes.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from itertools import pairwise
from typing import Any, Final

import attrs

from shardsrv.errors import (
    ClientTableDuplicate,
    ClientTableInvalidReply,
    ClientTableMalformed,
    ClientTableRing,
    ClientTableTooLarge,
)
from shardsrv.vsr.policy import CLIENTS_MAX
from shardsrv.wire.constants import KNOWN_OPERATIONS, MAX_OP, Operation

REPLIES_KEPT: Final = 5
_LOGOUT: Final = int(Operation.LOGOUT)
_REGISTER: Final = int(Operation.REGISTER)


@attrs.frozen
class CachedReply:
    """A reply as it may be sent again. ``body`` without header: the header is rebuilt from the other fields."""

    request: int
    digest: int
    op: int
    timestamp: int
    operation: int
    body: bytes


@attrs.define(slots=True, eq=False)
class ClientEntry:
    """One registered client. ``watermark`` is its highest committed request number, ``watermark_checksum`` that
    request's digest."""

    slot: int
    client: bytes
    epoch: int
    user_id: int
    watermark: int
    watermark_checksum: int
    replies: list[CachedReply]

    @property
    def latest_op(self) -> int:
        """Op of the newest reply."""
        return self.replies[-1].op

    def reply_to(self, request: int) -> CachedReply | None:
        """The reply kept for request number ``request``, if it is still there."""
        for reply in reversed(self.replies):
            if reply.request == request and reply.operation != _REGISTER:
                return reply
        return None


class ClientTable:
    """The clients of the metadata group, bounded by ``capacity`` entries."""

    __slots__ = ("_free", "_order", "_slots", "capacity")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._order: OrderedDict[bytes, ClientEntry] = OrderedDict()  # by op of the newest reply, oldest first
        self._free: list[int] = []  # slots below _slots that are free, a heap
        self._slots = 0

    def __len__(self) -> int:
        return len(self._order)

    def get(self, client: bytes) -> ClientEntry | None:
        """The entry of ``client``, if it is registered."""
        return self._order.get(client)

    def commit_register(self, client: bytes, user_id: int, op: int, timestamp: int, body: bytes) -> bytes | None:
        """A Register committed as ``op``: its op is the client's epoch from now on.

        A client that was registered before keeps its watermark and the replies of its requests; the reply of the older
        Register goes. Returns the client that was evicted to make room, if any.
        """
        reply = CachedReply(0, 0, op, timestamp, _REGISTER, body)
        entry = self._order.get(client)
        if entry is not None:
            entry.epoch = op
            entry.user_id = user_id
            entry.replies = [kept for kept in entry.replies if kept.operation != _REGISTER]
            self._remember(entry, reply)
            return None
        victim = None
        if len(self._order) >= self.capacity:
            victim = next(iter(self._order))
            self.remove(victim)
        if self._free:
            slot = heapq.heappop(self._free)
        else:
            slot = self._slots
            self._slots += 1
        self._order[client] = ClientEntry(slot, client, op, user_id, 0, 0, [reply])
        return victim

    def commit_request(
        self,
        client: bytes,
        session: int,
        request: int,
        digest: int,
        operation: int,
        op: int,
        timestamp: int,
        body: bytes,
    ) -> bool:
        """A request of ``client`` committed as ``op``: keep its reply. False when it no longer concerns the table: the
        client was evicted or registered anew in between, or a later request of it is known already. That is never a
        failure."""
        entry = self._order.get(client)
        if entry is None or entry.epoch != session or op <= entry.latest_op or request < entry.watermark:
            return False
        entry.watermark = request
        entry.watermark_checksum = digest
        self._remember(entry, CachedReply(request, digest, op, timestamp, operation, body))
        return True

    def owns(self, client: bytes, session: int) -> bool:
        """Whether ``session`` is the present one of ``client``."""
        entry = self._order.get(client)
        return entry is not None and entry.epoch == session

    def remove(self, client: bytes) -> bool:
        """Forget ``client`` (logout or eviction). False when it is unknown."""
        entry = self._order.pop(client, None)
        if entry is None:
            return False
        heapq.heappush(self._free, entry.slot)
        return True

    def _remember(self, entry: ClientEntry, reply: CachedReply) -> None:
        entry.replies.append(reply)
        while len(entry.replies) > REPLIES_KEPT:
            del entry.replies[0]
        self._order.move_to_end(entry.client)

    def rows(self) -> list[Any]:
        """The clients in slot order: [slot, client, epoch, user_id, watermark, watermark_checksum, replies]. The lists
        of replies are the table's own; a reply never changes."""
        return [
            [
                entry.slot,
                entry.client,
                entry.epoch,
                entry.user_id,
                entry.watermark,
                entry.watermark_checksum,
                entry.replies,
            ]
            for entry in sorted(self._order.values(), key=lambda entry: entry.slot)
        ]

    def snapshot(self) -> list[Any]:
        """The table as plain lists in slot order; see the module for the form."""
        rows = self.rows()
        for row in rows:
            row[6] = [list(attrs.astuple(reply)) for reply in row[6]]
        return rows

    def state(self) -> list[Any]:
        """The table for comparing members: entries by client, without slots, which an install may renumber."""
        return sorted([row[1], *row[2:6], tuple(row[6])] for row in self.rows())

    @classmethod
    def restore(cls, rows: Any, capacity: int) -> ClientTable:
        """The table of `snapshot`. Its capacity is the larger of ``capacity`` and what the highest slot needs.

        Raises:
            ClientTableTooLarge: more rows, or a higher slot, than any table may have.
            ClientTableRing: an entry with no reply or with more than are kept.
            ClientTableDuplicate: one client, or one slot, twice.
            ClientTableInvalidReply: a cached reply that cannot be one.
            ClientTableMalformed: anything else that is not a row.
        """
        if not isinstance(rows, list):
            raise ClientTableMalformed(slot=None, found=type(rows).__name__)
        if len(rows) > CLIENTS_MAX:
            raise ClientTableTooLarge(slot=None, found=len(rows), maximum=CLIENTS_MAX)
        entries: list[ClientEntry] = []
        clients: dict[bytes, int] = {}
        previous = -1
        for row in rows:
            entry = _decode_entry(row)
            if entry.slot <= previous:
                raise ClientTableDuplicate(slot=entry.slot, found=entry.client, first=previous)
            if entry.client in clients:
                raise ClientTableDuplicate(slot=entry.slot, found=entry.client, first=clients[entry.client])
            clients[entry.client] = entry.slot
            previous = entry.slot
            entries.append(entry)
        table = cls(max(capacity, previous + 1))
        table._slots = previous + 1
        taken = {entry.slot for entry in entries}
        table._free = [slot for slot in range(previous + 1) if slot not in taken]
        entries.sort(key=lambda entry: (entry.latest_op, entry.slot))
        for entry in entries:
            table._order[entry.client] = entry
        return table


def _number(value: Any, slot: int | None, limit: int = MAX_OP) -> int:
    if type(value) is not int or not 0 <= value <= limit:
        raise ClientTableMalformed(slot=slot, found=repr(value))
    return value


def _decode_entry(row: Any) -> ClientEntry:
    """One row of a snapshot as an entry, every value checked."""
    if not isinstance(row, (list, tuple)) or len(row) != 7:
        raise ClientTableMalformed(slot=None, found=repr(row)[:64])
    slot = _number(row[0], None)
    if slot >= CLIENTS_MAX:
        raise ClientTableTooLarge(slot=slot, found=slot, maximum=CLIENTS_MAX)
    client, replies = row[1], row[6]
    if type(client) is not bytes or len(client) != 16 or not any(client):
        raise ClientTableMalformed(slot=slot, found=repr(client)[:64])
    if not isinstance(replies, (list, tuple)):
        raise ClientTableMalformed(slot=slot, found=type(replies).__name__)
    if not 1 <= len(replies) <= REPLIES_KEPT:
        raise ClientTableRing(slot=slot, found=len(replies), maximum=REPLIES_KEPT)
    ring = [_decode_reply(reply, slot) for reply in replies]
    if any(later.op <= earlier.op for earlier, later in pairwise(ring)):
        raise ClientTableInvalidReply(slot=slot, found="replies out of order")
    return ClientEntry(
        slot,
        client,
        _number(row[2], slot),
        _number(row[3], slot, 2**32 - 1),
        _number(row[4], slot),
        _number(row[5], slot, 2**64 - 1),
        ring,
    )


def _decode_reply(reply: Any, slot: int) -> CachedReply:
    if not isinstance(reply, (list, tuple)) or len(reply) != 6 or type(reply[5]) is not bytes:
        raise ClientTableInvalidReply(slot=slot, found=repr(reply)[:64])
    operation = _number(reply[4], slot, 255)
    if operation not in KNOWN_OPERATIONS or operation in (0, _LOGOUT):
        raise ClientTableInvalidReply(slot=slot, found=f"operation {operation}")
    return CachedReply(
        _number(reply[0], slot),
        _number(reply[1], slot, 2**64 - 1),
        _number(reply[2], slot),
        _number(reply[3], slot),
        operation,
        reply[5],
    )
