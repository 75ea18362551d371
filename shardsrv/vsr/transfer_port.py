"""The place of state transfer in a replica: what the replica calls, and the answer of a group that has none.

Invariant: whether a transfer is under way is one value, `active`; while it is true the replica acknowledges nothing,
takes no live prepare and walks no commit, whatever the trigger.
"""

from __future__ import annotations

from typing import Any


class TransferPort:
    """Base of the transfer of a group, and itself the one that never transfers (a group of one member)."""

    __slots__ = ()

    @property
    def active(self) -> bool:
        """Whether this member is receiving a transfer."""
        return False

    @property
    def installing(self) -> bool:
        """Whether the log is being replaced right now: nothing may be said about it."""
        return False

    @property
    def idle(self) -> bool:
        """Whether this member neither receives a transfer nor holds anything for who might."""
        return True

    def begin(self, replica: Any, peer: int, out: list[Any], first_retained: int = 0) -> None:
        """Repair cannot close the gap: receive a transfer from ``peer``, whose log begins at ``first_retained`` (0: not
        known). Ignored while one is under way."""

    def message(self, replica: Any, event: Any, out: list[Any]) -> None:
        """A `Message` whose header is one of the four transfer frames; its sender and group were checked."""

    def answered(self, replica: Any, event: Any, out: list[Any]) -> None:
        """The answer of the driver to an effect of the transfer."""

    def tick(self, replica: Any, count: int, out: list[Any]) -> None:
        """``count`` times 10 ms passed; more than one only while it is `idle`."""

    def view_changed(self, replica: Any, out: list[Any]) -> None:
        """The replica left the view in which the transfer began."""
