"""What a replica asks its driver to do, in order.

The driver carries effects out in the order in which they were emitted; an effect that names a ``token`` is answered by an event
with that token. A reply leaves only after the events it waits for: the replica does not emit it earlier.
"""

from typing import Any

import attrs


@attrs.define(slots=True, eq=False)
class Append:
    """Write ``prepare`` at the end of the log. Answered by `Persisted(token, APPENDED)`, later `Persisted(token, SYNCED)`.

    ``sync`` asks that the sync be started now (someone waits for it); otherwise the background sync may take its time.
    """

    token: int
    prepare: Any
    sync: bool


@attrs.define(slots=True, eq=False)
class PersistState:
    """Write ``state`` (`VsrState`) to the superblock. At most one is outstanding per group (S0-15, S0-22)."""

    token: int
    state: Any


@attrs.define(slots=True, eq=False)
class Committed:
    """``prepare`` is committed and applied to the plane; ``reply`` is its reply body (bytes).

    ``origin`` is that of the request, or None (replay, a request of another member). Emitted in op order, exactly once per op and boot.
    """

    prepare: Any
    origin: Any
    reply: bytes


@attrs.define(slots=True, eq=False)
class Repeat:
    """A retry of a request that was already executed: answer ``reply`` again. ``op`` and ``timestamp`` are those of the first execution."""

    origin: Any
    op: int
    timestamp: int
    operation: int
    reply: bytes


@attrs.define(slots=True, eq=False)
class Refused:
    """The request did not become an entry. ``status`` is the Iggy code; ``transient`` codes are 57 and 58.

    ``eviction`` is an eviction reason instead of a status when not 0; ``silent`` says that nothing may be answered. ``reason`` is for logs
    and tests, never for the wire.
    """

    origin: Any
    status: int
    eviction: int = 0
    silent: bool = False
    reason: str = ""


@attrs.define(slots=True, eq=False)
class Send:
    """A frame for peer ``replica``."""

    replica: int
    header: Any
    body: Any


@attrs.define(slots=True, eq=False)
class TruncateFrom:
    """Remove entries from ``op`` on. A barrier: answered by `Persisted(token, SYNCED)` before any later append or superblock write."""

    token: int
    op: int


@attrs.define(slots=True, eq=False)
class ReadPrepare:
    """Read the entry of ``op`` with identity ``checksum`` from the log. Answered by `PrepareRead`."""

    token: int
    op: int
    checksum: int


@attrs.define(slots=True, eq=False)
class Fatal:
    """The group cannot go on: ``error`` is one of `shardsrv.errors`."""

    error: Exception
