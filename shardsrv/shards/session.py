"""One connection of a shard, and who is logged in on it. Compiled: every frame looks here first."""

from typing import Any


class Session:
    """A connection: *connected* while ``number`` is 0, else *bound* to (client id, session number, user)."""

    __slots__ = (
        "active",
        "address",
        "attached",
        "balance",
        "client",
        "connection",
        "number",
        "seen",
        "targets",
        "user_id",
    )

    def __init__(self, connection: int, address: str) -> None:
        self.connection = connection
        self.address = address
        self.client = b""
        self.number = 0
        """The session number of the login reply; 0: not bound."""
        self.user_id = 0
        self.targets: dict[bytes, Any] = {}
        """Resolved send targets by the raw bytes that named them."""
        self.balance: dict[tuple[int, int], int] = {}
        """Next partition index of balanced sends, by (stream, topic)."""
        self.attached = b""
        """The client id of the group member for which this connection polls and stores offsets; empty: for its own."""
        self.active = True
        """Whether a frame came since `heartbeats` looked last."""
        self.seen = 0.0
        """When `heartbeats` found it active last, on trio's clock."""

    @property
    def bound(self) -> bool:
        """Whether a login succeeded on this connection."""
        return self.number != 0

    @property
    def member(self) -> bytes:
        """The client id that consumer groups know this connection by."""
        return self.attached or self.client
