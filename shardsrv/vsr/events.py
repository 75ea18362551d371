"""What a replica is told. Each event is one call of `Replica.step`; nothing else changes a replica.

Time comes in as ``now`` (microseconds since the epoch, wall clock of the shell); randomness never.
"""

from typing import Any

from shardsrv.vsr.record import Record

APPENDED = 1
"""`Persisted.level`: written to the log file (page cache): survives the end of the process."""
SYNCED = 2
"""`Persisted.level`: on stable storage: survives power loss."""


class Request(Record):
    """A client's (or the node's own) write that wants to become the next entry.

    ``client`` 16 bytes; ``session`` the client's epoch; ``request`` its number; ``digest`` u64: what makes a retry the
    same request (partitions: the batch checksum as sent, or the hash of the offset body; metadata: request_checksum, 0
    = not stamped). ``body`` is what the plane prepares from; ``durability`` 0 or 1 as the topic wants it. ``origin``
    is opaque: it comes back in the `Reply` or `Refused` effect of this request.
    """

    __slots__ = (
        "body",
        "client",
        "digest",
        "durability",
        "now",
        "operation",
        "origin",
        "request",
        "session",
        "user_id",
    )

    def __init__(
        self,
        client: bytes,
        session: int,
        request: int,
        operation: int,
        user_id: int,
        digest: int,
        durability: int,
        body: Any,
        origin: Any,
        now: int,
    ) -> None:
        self.client = client
        self.session = session
        self.request = request
        self.operation = operation
        self.user_id = user_id
        self.digest = digest
        self.durability = durability
        self.body = body
        self.origin = origin
        self.now = now


class Persisted(Record):
    """The driver finished a write. ``token`` is that of the effect (`Append` or `SyncLog`); it covers every `Append`
    with a token up to it. Tokens of a group rise with every effect that has one."""

    __slots__ = ("level", "token")

    def __init__(self, token: int, level: int) -> None:
        self.token = token
        self.level = level


class PersistFailed(Record):
    """The write with ``token`` failed and its outcome on disk is not to be trusted. The group is fenced until the
    driver says otherwise."""

    __slots__ = ("reason", "token")

    def __init__(self, token: int, reason: str) -> None:
        self.token = token
        self.reason = reason


class StatePersisted(Record):
    """The superblock write of `PersistState` with ``token`` is durable with exactly ``state``."""

    __slots__ = ("state", "token")

    def __init__(self, token: int, state: Any) -> None:
        self.token = token
        self.state = state


class Tick(Record):
    """``ticks`` times 10 ms passed; more than one at once only for a group that said it may `rest`."""

    __slots__ = ("now", "ticks")

    def __init__(self, now: int, ticks: int = 1) -> None:
        self.now = now
        self.ticks = ticks


class Message(Record):
    """A frame of ``peer``, the member that the link is bound to, verified and decoded by `frames.decode_frame`.

    ``header`` is a typed header of `wire.headers` with its ``body`` as bytes; or a `Prepare` (a live prepare), or a
    `frames.RepairPrepare` (one that was asked for), whose bodies lie in the prepare.
    """

    __slots__ = ("body", "header", "now", "peer")

    def __init__(self, peer: int, header: Any, body: Any, now: int) -> None:
        self.peer = peer
        self.header = header
        self.body = body
        self.now = now


class Truncated(Record):
    """Answer to `TruncateFrom`: the entries are gone, and what is left of the log is synced."""

    __slots__ = ("token",)

    def __init__(self, token: int) -> None:
        self.token = token


class PrepareRead(Record):
    """Answer to `ReadPrepare`: the entry, or None when the log does not hold it (dropped, damaged, another entry)."""

    __slots__ = ("prepare", "token")

    def __init__(self, token: int, prepare: Any) -> None:
        self.token = token
        self.prepare = prepare
