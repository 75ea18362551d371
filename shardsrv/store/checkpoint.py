"""The checkpoint of a partition: `checkpoint.{a,b}` in its directory, a slot record of kind 1 with an opaque payload.

Invariants: durable before a head segment is unlinked; the payload belongs to the plane, this room never looks inside.
"""

from __future__ import annotations

from typing import Final

from shardsrv.errors import DiskFault, UnsupportedVersion
from shardsrv.store.disk import Disk
from shardsrv.store.faults import CheckpointUnreadable
from shardsrv.store.layout import CHECKPOINT_SLOTS
from shardsrv.store.record import VERSION, Kind, Unreadable
from shardsrv.store.slots import SlotFiles

MAX_PAYLOAD: Final = 64 * 1024 * 1024
"""Bytes: a bound on what is read at start, far above a full deduplication window (65,536 entries of some 60 bytes)."""


class Checkpoint(SlotFiles):
    """`read() -> Empty | Present | Unreadable`, `write(payload)`; see `SlotFiles`."""

    def __init__(self, disk: Disk, directory: str) -> None:
        super().__init__(disk, directory, CHECKPOINT_SLOTS, Kind.CHECKPOINT, MAX_PAYLOAD)


def checkpoint_fault(directory: str, found: Unreadable) -> DiskFault:
    """What to raise for a checkpoint in ``directory`` that was `Unreadable`: a newer release's, or damaged."""
    if found.version is not None:
        return UnsupportedVersion("partition checkpoint", directory, found.version, VERSION, VERSION)
    return CheckpointUnreadable(directory, found.reason)
