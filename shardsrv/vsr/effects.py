"""What a replica asks its driver to do, in order.

The driver carries effects out in the order in which they were emitted; an effect that names a ``token`` is answered by
an event with that token. A reply leaves only after the events it waits for: the replica does not emit it earlier.
"""

from typing import Any

from shardsrv.vsr.record import Record


class Append(Record):
    """Write ``prepare`` at the end of the log. Answered by `Persisted(token, APPENDED)`, later `Persisted(token,
    SYNCED)`.

    ``sync`` asks that the sync be started now (someone waits for it); otherwise the background sync may take its time.
    """

    __slots__ = ("prepare", "sync", "token")

    def __init__(self, token: int, prepare: Any, sync: bool) -> None:
        self.token = token
        self.prepare = prepare
        self.sync = sync


class SyncLog(Record):
    """Sync everything that was appended so far, also when nothing was. Answered by `Persisted(token, SYNCED)`."""

    __slots__ = ("token",)

    def __init__(self, token: int) -> None:
        self.token = token


class PersistState(Record):
    """Write ``state`` (`VsrState`) to the superblock. At most one is outstanding per group (S0-15, S0-22)."""

    __slots__ = ("state", "token")

    def __init__(self, token: int, state: Any) -> None:
        self.token = token
        self.state = state


class Committed(Record):
    """``prepare`` is committed and applied to the plane; ``reply`` is its reply body (bytes).

    ``origin`` is that of the request, or None (replay, a request of another member). Emitted in op order, exactly once
    per op and boot.
    """

    __slots__ = ("origin", "prepare", "reply")

    def __init__(self, prepare: Any, origin: Any, reply: bytes) -> None:
        self.prepare = prepare
        self.origin = origin
        self.reply = reply


class Repeat(Record):
    """A retry of a request that was already executed: answer ``reply`` again. ``op`` and ``timestamp`` are those of
    the first execution."""

    __slots__ = ("op", "operation", "origin", "reply", "timestamp")

    def __init__(self, origin: Any, op: int, timestamp: int, operation: int, reply: bytes) -> None:
        self.origin = origin
        self.op = op
        self.timestamp = timestamp
        self.operation = operation
        self.reply = reply


class Refused(Record):
    """The request did not become an entry. ``status`` is the Iggy code; ``transient`` codes are 57 and 58.

    ``eviction`` is an eviction reason instead of a status when not 0; ``silent`` says that nothing may be answered.
    ``reason`` is for logs and tests, never for the wire.
    """

    __slots__ = ("eviction", "origin", "reason", "silent", "status")

    def __init__(self, origin: Any, status: int, eviction: int = 0, silent: bool = False, reason: str = "") -> None:
        self.origin = origin
        self.status = status
        self.eviction = eviction
        self.silent = silent
        self.reason = reason


class Send(Record):
    """A frame for member ``replica``; it may leave at once (what has to wait is held by the replica).

    ``header`` is a control header of `wire.headers`, or the 256 bytes of a prepare; `frames.encode_frame` joins it with
    ``body``. A frame may be lost, doubled or late: nothing depends on its arrival.
    """

    __slots__ = ("body", "header", "replica")

    def __init__(self, replica: int, header: Any, body: Any) -> None:
        self.replica = replica
        self.header = header
        self.body = body


class TruncateFrom(Record):
    """Remove the entries from ``op`` on. A barrier: what was appended before is written first, and nothing is appended
    until `Truncated(token)` says that the cut and all that is left before it are synced."""

    __slots__ = ("op", "token")

    def __init__(self, token: int, op: int) -> None:
        self.token = token
        self.op = op


class ReadPrepare(Record):
    """Read the entry of ``op`` from the log; with a ``checksum`` other than 0 only the one with that identity. Answered
    by `PrepareRead`."""

    __slots__ = ("checksum", "op", "token")

    def __init__(self, token: int, op: int, checksum: int) -> None:
        self.token = token
        self.op = op
        self.checksum = checksum


class Fatal(Record):
    """The group cannot go on: ``error`` is one of `shardsrv.errors`."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error
