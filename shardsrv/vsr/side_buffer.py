"""Entries that arrived above a hole of the log (S1-22): kept until the hole is filled, never acknowledged nor
advertised.

Invariants: at most ``SIDE_ENTRIES`` entries and ``SIDE_BYTES`` bytes; the lowest stay when there is no more room, since
they are needed first; an op is held once.
"""

from __future__ import annotations

from typing import Any

from shardsrv.vsr.policy import SIDE_BYTES, SIDE_ENTRIES


class SideBuffer:
    """Entries by op."""

    __slots__ = ("_bytes", "_entries")

    def __init__(self) -> None:
        self._entries: dict[int, Any] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, prepare: Any, head: int) -> bool:
        """Keep an entry above ``head``; False when it lies too far above, or there is no room for it."""
        op = prepare.op
        if op > head + SIDE_ENTRIES:
            return False
        self.pop(op)
        while self._entries and (len(self._entries) >= SIDE_ENTRIES or self._bytes + prepare.size > SIDE_BYTES):
            highest = max(self._entries)
            if highest < op:
                return False
            self.pop(highest)
        self._entries[op] = prepare
        self._bytes += prepare.size
        return True

    def pop(self, op: int) -> Any:
        """Take the entry of ``op`` out; None when there is none."""
        entry = self._entries.pop(op, None)
        if entry is not None:
            self._bytes -= entry.size
        return entry

    def lowest(self) -> int:
        """The lowest op held, 0 when there is none."""
        return min(self._entries) if self._entries else 0

    def forget_below(self, op: int) -> None:
        """Drop what the log holds by now: everything below ``op``."""
        for held in [held for held in self._entries if held < op]:
            self.pop(held)

    def clear(self) -> None:
        """Drop everything: the view in which it came is over."""
        self._entries.clear()
        self._bytes = 0
