"""What a member of several keeps in memory of its log: the entries above the commit point, and how far each write went.

Invariants: `entries` holds exactly the ops from ``committed_op`` + 1 up to the head, without a hole; a committed entry
leaves its header and lets its body go; ``synced_op`` <= ``appended_op`` <= head; ``verified_op`` is the op up to which
the log is known to be that of the present view (committed entries always are).
"""

from __future__ import annotations

from typing import Any

from shardsrv._core import Prepare


class LogWindow:
    """The window above entry ``op`` (identity ``checksum``, ``timestamp``), which is committed."""

    __slots__ = (
        "_unappended",
        "_unsynced",
        "appended_op",
        "committed_op",
        "entries",
        "point",
        "point_checksum",
        "point_timestamp",
        "retained_from",
        "synced_op",
        "verified_op",
    )

    def __init__(self, op: int, checksum: int, timestamp: int) -> None:
        self.entries: dict[int, Any] = {}
        self.reset(op, checksum, timestamp)

    def reset(self, op: int, checksum: int, timestamp: int) -> None:
        """The log ends at ``op``, which is not in it: a checkpoint, a snapshot, or nothing."""
        self.entries.clear()
        self.committed_op = self.appended_op = self.synced_op = self.verified_op = op
        self.point_checksum = checksum
        self.point_timestamp = timestamp
        self.point: Any = None
        """Header of the committed entry ``committed_op``, None while only its identity is known."""
        self.retained_from = op + 1
        """The oldest entry that the log on disk still holds."""
        # (token, op), both rising. Short, and mostly empty: a list is smaller than a deque, and idle groups are many.
        self._unappended: list[tuple[int, int]] = []
        self._unsynced: list[tuple[int, int]] = []

    # --- writes -------------------------------------------------------------------------------------------------------

    def add(self, prepare: Any, token: int) -> None:
        """The entry after the head; ``token`` is that of its `Append`."""
        op = prepare.op
        self.entries[op] = prepare
        self._unappended.append((token, op))
        self._unsynced.append((token, op))

    def found(self, prepare: Any) -> None:
        """An entry that the log on disk holds already, synced."""
        self.entries[prepare.op] = prepare
        self.appended_op = self.synced_op = prepare.op

    def persisted(self, token: int, synced: bool) -> None:
        """Everything up to ``token`` is written, or synced."""
        self.appended_op = _taken(self._unappended, token, self.appended_op)
        if synced:
            self.synced_op = _taken(self._unsynced, token, self.synced_op)

    def cut(self, op: int) -> None:
        """The entries from ``op`` on leave the log; nothing counts as written until `settled`."""
        for gone in range(op, op + len(self.entries)):
            if self.entries.pop(gone, None) is None:
                break
        for waiting in (self._unappended, self._unsynced):
            while waiting and waiting[-1][1] >= op:
                waiting.pop()
        self.appended_op = min(self.appended_op, op - 1)
        self.synced_op = min(self.synced_op, op - 1)
        self.verified_op = min(self.verified_op, op - 1)

    def settled(self, head: int) -> None:
        """A cut is done: what is left up to ``head`` is synced."""
        self._unappended.clear()
        self._unsynced.clear()
        self.appended_op = self.synced_op = head

    def committed(self, prepare: Any) -> None:
        """The entry after the commit point is applied: keep its header."""
        op = prepare.op
        self.entries.pop(op, None)
        self.committed_op = op
        self.point = Prepare.load_header(prepare.header)
        self.point_checksum = prepare.checksum
        self.point_timestamp = prepare.timestamp
        if op > self.verified_op:
            self.verified_op = op

    # --- questions ----------------------------------------------------------------------------------------------------

    def checksum(self, op: int) -> int | None:
        """Identity of entry ``op`` where it is known: from the commit point up to the head."""
        if op == self.committed_op:
            return self.point_checksum
        entry = self.entries.get(op)
        return None if entry is None else entry.checksum

    def timestamp(self, op: int) -> int:
        """Time of entry ``op``, from the commit point up to the head."""
        return self.point_timestamp if op == self.committed_op else self.entries[op].timestamp

    def header(self, op: int) -> Any:
        """The entry, or the header of the commit point; None where neither is known."""
        return self.point if op == self.committed_op else self.entries.get(op)


def _taken(waiting: list[tuple[int, int]], token: int, before: int) -> int:
    """Take out what ``token`` covers; returns the op of the last, or ``before`` when it covers nothing."""
    count = 0
    while count < len(waiting) and waiting[count][0] <= token:
        before = waiting[count][1]
        count += 1
    if count:
        del waiting[:count]
    return before
