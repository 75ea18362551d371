"""What a run has committed: per group, the entries in op order as the first member that committed them had them.

Invariant: ops are contiguous from 1; only a loss that is allowed (`lose`) takes entries away again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs

from shardsrv._core import Prepare
from shardsrv.store.group_key import GroupKey
from shardsrv.wire.constants import Operation

_BATCH_HEADER: Final = 256
NOT_KNOWN: Final = -1
"""Next offset of a group of which an allowed loss left entries that nobody has shown yet."""


@attrs.define(slots=True, eq=False)
class Entry:
    """One committed entry. ``request`` is (client, session, number, digest, operation)."""

    op: int
    checksum: int
    reply: bytes
    durability: int
    request: tuple[Any, ...]
    operation: int
    next_offset: int
    generation: int
    timestamp: int
    unknown: bool = False
    """Committed by somebody, and forgotten here by an allowed loss."""
    unsure: bool = False
    """Whether other forgotten entries lie before it: what the next offset was then is not known."""

    def learn(self, prepare: Prepare, reply: bytes) -> None:
        """Take over what turns out to have survived."""
        self.checksum, self.reply, self.durability = prepare.checksum, bytes(reply), prepare.durability
        self.request, self.operation, self.unknown = request_of(prepare), prepare.operation, False


def request_of(prepare: Prepare) -> tuple[Any, ...]:
    """(client, session, number, digest, operation) of an entry."""
    return (
        prepare.client,
        prepare.request_checksum_high,
        prepare.request,
        prepare.request_checksum,
        prepare.operation,
    )


class GroupHistory:
    """The committed entries of one group."""

    __slots__ = (
        "acknowledged",
        "deleted",
        "entries",
        "generation",
        "ids",
        "losses",
        "next_offset",
        "requests",
        "timestamp",
    )

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.requests: dict[tuple[Any, ...], int] = {}
        self.acknowledged = 0
        self.next_offset = 0
        self.generation = 0
        self.timestamp = 0
        self.losses = 0
        self.deleted = False
        self.ids: dict[tuple[int, int], bytes] = {}
        """(purge generation, offset) -> id of the message there."""

    @property
    def head(self) -> int:
        """The highest committed op."""
        return len(self.entries)

    def at(self, op: int) -> Entry | None:
        """The entry of ``op``."""
        return self.entries[op - 1] if 0 < op <= len(self.entries) else None

    def add(self, prepare: Prepare, reply: bytes) -> Entry:
        """The next entry."""
        request = request_of(prepare)
        entry = Entry(
            prepare.op,
            prepare.checksum,
            bytes(reply),
            prepare.durability,
            request,
            prepare.operation,
            self.next_offset,
            self.generation,
            self.timestamp,
        )
        self.entries.append(entry)
        return entry

    def messages(self, base: int, count: int, body: Any) -> None:
        """Remember the ids of a batch's messages."""
        position = _BATCH_HEADER
        generation = self.generation
        for offset in range(base, base + count):
            self.ids[generation, offset] = bytes(body[position + 8 : position + 24])
            lengths = int.from_bytes(body[position + 32 : position + 36], "little")
            lengths += int.from_bytes(body[position + 36 : position + 40], "little")
            position += 48 + lengths

    def purge(self, generation: int) -> None:
        """All messages are gone, offsets begin anew."""
        if generation > self.generation:
            self.generation = generation
            self.next_offset = 0

    def skip(self, op: int, plane: Any) -> None:
        """Entries up to ``op`` lie in a checkpoint, ``plane`` is the state behind them; what they were is not known."""
        self._forgotten(op)
        self.timestamp = plane.timestamp
        self.next_offset = getattr(plane, "next_offset", 0)
        self.generation = getattr(plane, "purge_generation", 0)

    def _forgotten(self, op: int) -> None:
        """Entries up to ``op`` are there, and what they were is not known."""
        first = len(self.entries) + 1
        before = self.next_offset, self.generation, self.timestamp
        for number in range(first, op + 1):
            self.entries.append(Entry(number, 0, b"", 0, (), 0, *before, unknown=True, unsure=number > first))

    def resume(self, prepare: Prepare) -> None:
        """``prepare`` is the next entry of a member that kept more than had to survive."""
        if self.head < prepare.op - 1:
            self._forgotten(prepare.op - 1)
            self.next_offset = NOT_KNOWN
        if prepare.operation == Operation.SEND_MESSAGES:
            self.next_offset = int.from_bytes(prepare.body[8:16], "little")

    def lose(self, kept: Callable[[Entry], bool]) -> None:
        """Entries behind the last one that must be kept may be gone: what is known of them is void."""
        self.losses += 1
        floor = len(self.entries)
        while floor and not kept(self.entries[floor - 1]):
            floor -= 1
        self.shorten(floor)

    def shorten(self, op: int) -> None:
        """Forget everything above ``op``."""
        if op >= len(self.entries):
            return
        first = self.entries[op]
        self.next_offset, self.generation, self.timestamp = first.next_offset, first.generation, first.timestamp
        if first.unsure:
            self.next_offset = NOT_KNOWN
        del self.entries[op:]
        self.acknowledged = min(self.acknowledged, op)
        self.requests = {request: at for request, at in self.requests.items() if at <= op}
        self.ids = {
            place: each
            for place, each in self.ids.items()
            if place[0] < self.generation or (place[0] == self.generation and place[1] < self.next_offset)
        }


class History:
    """All groups."""

    def __init__(self) -> None:
        self.groups: dict[GroupKey, GroupHistory] = {}

    def group(self, key: GroupKey) -> GroupHistory:
        """The history of a group."""
        found = self.groups.get(key)
        if found is None:
            found = self.groups[key] = GroupHistory()
        return found
