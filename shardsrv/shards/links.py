"""Links: typed records over the lanes between the shards of one node.

A record is a fixed head (packed by the classes of `shards.records`) and an optional body. A body of up to `INLINE_MAX`
bytes rides in the lane; a larger one is put into the sender's arena and a descriptor travels: the receiver copies it
and returns the buffer.

Envelope in the lane: u8 form (0 inline, 1 arena) | u8 zero | u16 head length | u32 body length | u64 arena offset |
head | body when inline.

Invariants:

* records of one sender to one receiver arrive in the order in which they were sent, also those that waited for room;
* a full lane is never waited for: what does not fit is kept in `_waiting` and sent at the next turn, in order;
* `notify` is called once a turn and receiver, after the publish of all that the turn produced.
"""

import struct
from collections import deque
from collections.abc import Callable

from shardsrv.bus.shared import Shared

INLINE_MAX = 16 * 1024
"""Bytes of body carried in the lane itself: above it one copy through the arena is cheaper than filling the ring."""

RETURN = 0
"""Record kind of a returned arena buffer; belongs to the links themselves. Kinds of `shards.records` start at 1."""

_ENVELOPE = struct.Struct("<BBHIQ")
_OFFSET = struct.Struct("<Q")


class _Unlent:
    """A record whose body waits for room in the arena."""

    __slots__ = ("body", "head")

    def __init__(self, head: bytes, body: bytes | memoryview) -> None:
        self.head = head
        self.body = body


OnRecord = Callable[[int, int, memoryview, memoryview], None]
"""(sender, kind, head, body). The views are valid during the call only."""


class Links:
    """All lanes of one shard: those it sends on and those it receives on."""

    def __init__(self, shared: Shared, shard: int) -> None:
        self.shard = shard
        self.peers = [peer for peer in range(shared.shard_count) if peer != shard]
        self._out = {peer: shared.lane(shard, peer) for peer in self.peers}
        self._in = [(peer, shared.lane(peer, shard)) for peer in self.peers]
        self._lanes = [lane for _, lane in self._in]
        self._wakes = {peer: shared.wake(peer) for peer in self.peers}
        self._arena = shared.arena(shard, owner=True)
        self._arenas = {peer: shared.arena(peer) for peer in self.peers}
        self._waiting: dict[int, deque[tuple[int, bytes | _Unlent]]] = {peer: deque() for peer in self.peers}
        self._delayed = False
        self._lent: dict[int, object] = {}
        self._touched: set[int] = set()
        self.wake = shared.wake(shard)
        self.records_sent = 0
        self.records_delayed = 0

    def send(self, receiver: int, kind: int, head: bytes, body: bytes | memoryview = b"") -> None:
        """Queue a record for ``receiver``; it leaves with `publish` at the end of the turn.

        Raises `MemoryError` when a large body finds no room in the arena: the caller refuses its request.
        """
        record = self._record(head, body)
        if record is None:
            raise MemoryError(f"no {len(body)} bytes left in the arena of shard {self.shard}")
        self._push(receiver, kind, record)

    def broadcast(self, kind: int, head: bytes, body: bytes | memoryview = b"") -> None:
        """`send` to every other shard of what none may miss: a body that finds no room in the arena waits for it, in
        its place among the records. ``body`` must stay as it is."""
        for peer in self.peers:
            self._push(peer, kind, self._record(head, body) or _Unlent(head, body))

    def _record(self, head: bytes, body: bytes | memoryview) -> bytes | None:
        """The record in its envelope; None when its body finds no room in the arena."""
        length = len(body)
        if length <= INLINE_MAX:
            return _ENVELOPE.pack(0, 0, len(head), length, 0) + head + bytes(body)
        buffer = self._arena.allocate(length)
        if buffer is None:
            return None
        memoryview(buffer)[:length] = body
        self._lent[buffer.offset] = buffer
        return _ENVELOPE.pack(1, 0, len(head), length, buffer.offset) + head

    def view(self, shard: int, offset: int, length: int) -> memoryview:
        """Memory of another shard's arena by descriptor (a request body that its home shard keeps until the reply)."""
        return self._arenas[shard].view(offset, length)

    def drain(self, on_record: OnRecord, limit: int = 256) -> int:
        """Deliver up to ``limit`` records of each sender. Returns how many were delivered."""
        delivered = 0
        for sender, lane in self._in:
            if not lane.pending():
                continue

            def deliver(kind: int, payload: bytes, sender: int = sender) -> None:
                self._deliver(sender, kind, payload, on_record)

            delivered += lane.drain(deliver, limit)
        return delivered

    def may_sleep(self) -> bool:
        """Set the sleeping word and look once more: True when no lane holds records, and a sleep ends with the next
        one."""
        return self.wake.may_sleep(self._lanes)

    def publish(self) -> None:
        """Make this turn's records visible and wake the receivers that sleep."""
        if self._delayed:
            self._push_delayed()
        if not self._touched:
            return
        for receiver in sorted(self._touched):
            self._out[receiver].publish()
            self._wakes[receiver].notify()
        self._touched.clear()

    def has_waiting(self) -> bool:
        """Whether records wait for room in a lane: the pump must come back without being woken."""
        return self._delayed

    def _push_delayed(self) -> None:
        for receiver, waiting in self._waiting.items():
            while waiting and self._push_first(receiver, waiting):
                waiting.popleft()
                self._touched.add(receiver)
        self._delayed = any(self._waiting.values())

    def _push_first(self, receiver: int, waiting: deque[tuple[int, bytes | _Unlent]]) -> bool:
        """Whether the first that waits found room in the arena and in the lane."""
        kind, record = waiting[0]
        if isinstance(record, _Unlent):
            lent = self._record(record.head, record.body)
            if lent is None:
                return False
            waiting[0] = kind, record = kind, lent
        return self._out[receiver].push(kind, (record,))

    def _push(self, receiver: int, kind: int, record: bytes | _Unlent) -> None:
        self.records_sent += 1
        waiting = self._waiting[receiver]
        if waiting or isinstance(record, _Unlent) or not self._out[receiver].push(kind, (record,)):
            self.records_delayed += 1
            waiting.append((kind, record))
            self._delayed = True
        self._touched.add(receiver)

    def _deliver(self, sender: int, kind: int, payload: bytes, on_record: OnRecord) -> None:
        view = memoryview(payload)
        form, _, head_length, body_length, offset = _ENVELOPE.unpack_from(view)
        head_end = _ENVELOPE.size + head_length
        head = view[_ENVELOPE.size : head_end]
        if kind == RETURN:
            del self._lent[_OFFSET.unpack(head)[0]]
            return
        if form == 0:
            on_record(sender, kind, head, view[head_end : head_end + body_length])
            return
        body = self._arenas[sender].view(offset, body_length)
        try:
            on_record(sender, kind, head, body)
        finally:
            self.send(sender, RETURN, _OFFSET.pack(offset))
