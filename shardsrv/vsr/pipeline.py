"""The ops of a primary that are not committed yet, in op order, and who has acknowledged each.

Invariants: ops are contiguous and the first is the op after the commit point; an acknowledgement is counted once per
member and level; synced counts as appended too. The own acknowledgement is not kept per op: writes finish in order, so
two tokens say it for all.
"""

from __future__ import annotations

from typing import Any


class PipelineEntry:
    """One op in flight.

    ``token`` is that of its `Append`; ``synced`` whether acknowledgements count only when synced; ``appended_acks``
    and ``synced_acks`` are masks of the other members, ``clock_refusals`` of those that refused its time; ``waiters``
    the origins of retries that came meanwhile (None: none).
    """

    __slots__ = (
        "appended_acks",
        "clock_refusals",
        "origin",
        "prepare",
        "synced",
        "synced_acks",
        "token",
        "waiters",
    )

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Let go of everything, so that the object can carry another op."""
        self.token = 0
        self.prepare: Any = None
        self.origin: Any = None
        self.synced = False
        self.appended_acks = 0
        self.synced_acks = 0
        self.clock_refusals = 0
        self.waiters: list[Any] | None = None


class Pipeline:
    """Up to ``depth`` ops in flight. The entries are used again, so that an op on its way through makes no garbage."""

    __slots__ = ("_spare", "depth", "entries")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.entries: list[PipelineEntry] = []  # short: a list is smaller than a deque, and idle groups are many
        self._spare: list[PipelineEntry] = []

    def __len__(self) -> int:
        return len(self.entries)

    def push(self, token: int, prepare: Any, origin: Any, synced: bool) -> None:
        """Take the next op. The caller looked at ``depth`` before."""
        spare = self._spare
        entry = spare.pop() if spare else PipelineEntry()
        entry.token = token
        entry.prepare = prepare
        entry.origin = origin
        entry.synced = synced
        self.entries.append(entry)

    def pop(self, entry: PipelineEntry) -> None:
        """The first op, ``entry``, is committed."""
        del self.entries[0]
        entry.prepare = None
        entry.origin = None
        entry.waiters = None
        entry.appended_acks = 0
        entry.synced_acks = 0
        entry.clock_refusals = 0
        self._spare.append(entry)

    def at(self, op: int) -> PipelineEntry | None:
        """The entry of ``op``, if it is in flight."""
        entries = self.entries
        if not entries:
            return None
        first = entries[0]
        index = op - first.prepare.op
        return entries[index] if 0 <= index < len(entries) else None

    def acknowledge(self, op: int, checksum: int, replica: int, synced: bool) -> bool:
        """Member ``replica`` has the entry ``checksum`` at ``op``. False if no such entry is in flight, or nothing is
        new in it."""
        entry = self.at(op)
        if entry is None or entry.prepare.checksum != checksum:
            return False
        bit = 1 << replica
        before = entry.appended_acks, entry.synced_acks
        entry.appended_acks |= bit
        if synced:
            entry.synced_acks |= bit
        return before != (entry.appended_acks, entry.synced_acks)

    def drain(self) -> list[PipelineEntry]:
        """Take everything out, in op order."""
        drained = list(self.entries)
        self.entries.clear()
        return drained
