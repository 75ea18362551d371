"""The trace of a run: one line a change, and a hash over all of them.

Columns: time in microseconds, who ("n0" a member, "c3" a client, "w" the world), what, then facts. Invariant: equal
seeds give equal lines, whatever process, hash seed or build runs them; the hash proves it without keeping the lines.
"""

from __future__ import annotations

from collections import deque
from hashlib import blake2b

from shardsrv.sim.clock import Schedule


class Trace:
    """``echo`` prints every line; the last ``kept`` are kept for the report of a violation."""

    def __init__(self, schedule: Schedule, echo: bool = False, kept: int = 60) -> None:
        self._schedule = schedule
        self._hash = blake2b(digest_size=8)
        self._echo = echo
        self.last: deque[str] = deque(maxlen=kept)
        self.lines = 0

    def line(self, who: str, what: str, *facts: object) -> None:
        """Add a line."""
        text = f"{self._schedule.now} {who} {what} {' '.join(map(str, facts))}"
        self._hash.update(text.encode())
        self.last.append(text)
        self.lines += 1
        if self._echo:
            print(text)

    @property
    def digest(self) -> str:
        """The hash so far, hexadecimal."""
        return self._hash.hexdigest()
