"""What a replica calls of its plane, the replicated state machine it is handed.

A plane has committed state (what `apply` made) and may have head state (what the next entry depends on: next offset,
requests that are in flight). Invariants a plane keeps: it is pure; `apply` is a function of committed state and the
entry alone, the same live and in replay; head state is a function of the log up to its head and goes back with it
(`rewind`).
"""

from __future__ import annotations

from typing import Any

from shardsrv.vsr.events import Request

Executed = tuple[int, int, bytes]
"""A request that is in the log already: op, timestamp (microseconds), reply body."""


class Plane:
    """Base of the planes: the parts that a plane without head state and without a window of its own need not write."""

    __slots__ = ()

    def admit(self, request: Request) -> int:
        """0, or the status that refuses ``request`` before it becomes an entry. Changes nothing."""
        return 0

    def find(self, request: Request) -> Executed | None:
        """The entry that ``request`` already is, committed or in flight; None when it is new. Changes nothing that is
        replicated."""
        return None

    def prepare(self, request: Request, op: int, timestamp: int) -> tuple[Any, int]:
        """(body, checksum_body) of the entry ``op``; head state moves on. Nothing changed if it raises."""
        raise NotImplementedError

    def advance(self, prepare: Any) -> None:
        """Move head state on over an entry that was prepared elsewhere or earlier. Raises `LogIncoherent` if it does
        not fit."""

    def apply(self, prepare: Any) -> bytes:
        """Apply the next committed entry (it was prepared or advanced over before); returns the reply body."""
        raise NotImplementedError

    def rewind(self, op: int) -> None:
        """Take head state back to ``op``, at or above the last one applied: the entries above it are gone from the
        log."""

    def client_gone(self, client: bytes) -> None:
        """The client table evicted ``client`` to make room for another (metadata): its session is dead."""
