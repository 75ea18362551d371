"""What a replica is told. Each event is one call of `Replica.step`; nothing else changes a replica.

Time comes in as ``now`` (microseconds since the epoch, wall clock of the shell); randomness never.
"""

from typing import Any

import attrs

APPENDED = 1
"""`Persisted.level`: written to the log file (page cache): survives the end of the process."""
SYNCED = 2
"""`Persisted.level`: on stable storage: survives power loss."""


@attrs.define(slots=True, eq=False)
class Request:
    """A client's (or the node's own) write that wants to become the next entry.

    ``client`` 16 bytes; ``session`` the client's epoch; ``request`` its number; ``digest`` u64: what makes a retry the same request (partitions: the batch
    checksum as sent, or the hash of the offset body; metadata: request_checksum, 0 = not stamped). ``body`` is what the plane prepares from; ``durability`` 0 or 1
    as the topic wants it. ``origin`` is opaque: it comes back in the `Reply` or `Refused` effect of this request.
    """

    client: bytes
    session: int
    request: int
    operation: int
    user_id: int
    digest: int
    durability: int
    body: Any
    origin: Any
    now: int


@attrs.define(slots=True, eq=False)
class Persisted:
    """The driver finished a write. ``token`` is that of the effect; for the log it covers every `Append` with a token up to it."""

    token: int
    level: int


@attrs.define(slots=True, eq=False)
class PersistFailed:
    """The write with ``token`` failed and its outcome on disk is not to be trusted. The group is fenced until the driver says otherwise."""

    token: int
    reason: str


@attrs.define(slots=True, eq=False)
class StatePersisted:
    """The superblock write of `PersistState` with ``token`` is durable with exactly ``state``."""

    token: int
    state: Any


@attrs.define(slots=True, eq=False)
class Tick:
    """Time passed."""

    now: int


@attrs.define(slots=True, eq=False)
class Message:
    """A frame of a peer, verified and decoded. ``header`` is a typed header of `wire.headers`, ``body`` its bytes."""

    header: Any
    body: Any
    now: int


@attrs.define(slots=True, eq=False)
class PrepareRead:
    """Answer to `ReadPrepare`: the entry, or None when the log does not hold it."""

    token: int
    prepare: Any
