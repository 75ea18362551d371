"""The window of requests that are in a partition's log: what makes a retry a retry.

A request is known by its exact key: client, session, operation, request number and digest (`_core.dedup_key`). All
equal is a retry and gets the same answer; anything else is new, since some clients send different messages under one
number. The session is kept in the upper half of an entry's request_checksum, so that the window can be made again from
the log alone.

Offset operations of one session supersede each other: storing 5, then 3, then 5 under one request number is three
stores, and a retry of the newest one is still recognised.

Invariants: the window holds the requests of the last ``size`` committed ops, at most STRIDE older ones, and those in
flight; it is a function of the log; its order is op order.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from shardsrv._core import dedup_key
from shardsrv.wire.constants import Operation

DEFAULT_SIZE: Final = 1024
"""Ops of the partition, of all its clients, that a retry may lag behind. A client that was told to come again does so
on the same connection within 50 ms; one that lost its connection logs in anew and is another session. An entry takes
about 350 bytes, so a busy partition pays about that many KiB."""

STRIDE: Final = 64
"""Ops between two times at which old requests are forgotten."""

Known = tuple[int, int, int, bytes]
"""(op, base offset, timestamp, key)"""

_SESSION: Final = 24  # client and session, the first part of a key
_SEND: Final = int(Operation.SEND_MESSAGES)

__all__ = ["DEFAULT_SIZE", "DedupWindow", "Known", "dedup_key"]


class DedupWindow:
    """``size`` in ops."""

    __slots__ = ("_known", "_newest", "_order", "size")

    def __init__(self, size: int = DEFAULT_SIZE) -> None:
        self.size = size
        self._known: dict[bytes, Known] = {}
        self._order: deque[Known] | None = None  # made when it is first needed: idle partitions are many
        self._newest: dict[bytes, bytes] = {}  # client and session -> key of its latest offset operation

    def __len__(self) -> int:
        return len(self._known)

    def find(self, key: bytes) -> Known | None:
        """The request with exactly this key, committed or in flight."""
        return self._known.get(key)

    def insert(self, key: bytes, op: int, base_offset: int, timestamp: int) -> None:
        """The request became entry ``op``, above all that are here."""
        known = (op, base_offset, timestamp, key)
        if key[_SESSION] != _SEND:
            session = key[:_SESSION]
            superseded = self._newest.get(session)
            if superseded is not None:
                self._known.pop(superseded, None)
            self._newest[session] = key
        self._known[key] = known
        order = self._order
        if order is None:
            order = self._order = deque()
        order.append(known)

    def commit(self, op: int) -> None:
        """``op`` is committed: what is ``size`` ops older is forgotten, every STRIDE ops (which is a function of the
        log too)."""
        order = self._order
        if order is None or op % STRIDE:
            return
        oldest = op - self.size
        while order and order[0][0] <= oldest:
            known = order.popleft()
            key = known[3]
            if self._known.get(key) is known:
                del self._known[key]
                if key[_SESSION] != _SEND and self._newest.get(key[:_SESSION]) == key:
                    del self._newest[key[:_SESSION]]

    def rewind(self, op: int) -> None:
        """Entries above ``op`` left the log."""
        rows = self.rows(op)
        self._known.clear()
        self._newest.clear()
        self._order = None
        for key, at, base_offset, timestamp in rows:
            self.insert(key, at, base_offset, timestamp)

    def rows(self, op: int) -> list[Any]:
        """[key, op, base offset, timestamp] of the requests up to ``op``, in op order: the form of a checkpoint."""
        return [[key, at, base_offset, timestamp] for at, base_offset, timestamp, key in self._order or () if at <= op]
