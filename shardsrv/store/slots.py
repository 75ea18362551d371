"""Driver of one record in two files that are written in turn (S0-07).

Invariants: a write goes to the slot that does not hold the newest record, the first one to a and then to b; it is temp,
sync, rename, sync directory, and success is told only after the last; one writer at a time; after Unreadable every
write is refused, so that the evidence stays. Used by the superblock of the metadata plane and by partition checkpoints.
"""

from __future__ import annotations

from shardsrv.errors import OurFault
from shardsrv.errors import Unreadable as UnreadableFault
from shardsrv.store.disk import Disk, read_all, replace_file
from shardsrv.store.record import (
    Corrupt,
    Empty,
    Kind,
    Outcome,
    Present,
    Slot,
    Unreadable,
    choose,
    decode_slot,
    encode_record,
)


class SlotFiles:
    """Two slot files ``names`` in ``directory`` of records of ``kind``, with payloads of at most ``limit`` bytes."""

    def __init__(self, disk: Disk, directory: str, names: tuple[str, str], kind: Kind, limit: int) -> None:
        self._disk = disk
        self._directory = directory
        self._names = names
        self._kind = kind
        self._limit = limit
        self._outcome: Outcome | None = None
        self._writing = False

    def path(self, slot: int) -> str:
        """Path of slot 0 or 1."""
        return f"{self._directory}/{self._names[slot]}"

    def read(self) -> Outcome:
        """Look at both slots. Never raises for what it finds; remembers the outcome for the next write."""
        self._outcome = choose(self._slot(0), self._slot(1))
        return self._outcome

    def _slot(self, number: int) -> Slot:
        try:
            data: bytes | None = read_all(self._disk, self.path(number), self._limit + 36)
        except FileNotFoundError:
            data = None
        except UnreadableFault as fault:
            return Corrupt(fault.reason)
        return decode_slot(data, self._kind)

    def write(self, payload: bytes) -> int:
        """Make ``payload`` durable; returns its sequence.

        Raises:
            OurFault: another write is running, `read` was never called, or the payload is too long.
            shardsrv.errors.Unreadable: a slot is unreadable; nothing is written over the evidence.
            DiskFault: a step failed. The earlier record is still there; which one is newest is unknown until `read`.
        """
        if self._writing:
            raise OurFault(f"two writers of {self._directory}/{self._names[0]}")
        if len(payload) > self._limit:
            raise OurFault(f"payload of {len(payload)} bytes, at most {self._limit} fit {self._names[0]}")
        if self._outcome is None:
            self.read()
        outcome = self._outcome
        if isinstance(outcome, Unreadable):
            raise UnreadableFault(self.path(outcome.slot), outcome.reason)
        if isinstance(outcome, Present):
            slot, sequence = 1 - outcome.slot, outcome.sequence + 1
            writes = [(slot, sequence)]
        else:
            # The first one goes to both: from then on a slot that is gone is known to be lost.
            slot, sequence = 1, 2
            writes = [(0, 1), (1, 2)]
        self._writing = True
        self._outcome = None
        try:
            for number, each in writes:
                record = encode_record(self._kind, each, payload)
                replace_file(self._disk, self._directory, self._names[number], [record])
        finally:
            self._writing = False
        self._outcome = Present(payload, sequence, slot)
        return sequence


__all__ = ["Empty", "Outcome", "Present", "SlotFiles", "Unreadable"]
