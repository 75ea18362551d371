"""The superblock of the metadata group: `metadata/superblock.{a,b}`, a slot record of kind 0 with a `VsrState` as
payload.

Invariants: small and opaque: it makes N bytes durable and selects the newest good copy, consensus alone knows what they
mean (S0-06). Partition groups keep theirs in the group table (`shardsrv.store.groups`) under the same rule.
"""

from __future__ import annotations

from typing import Final

from shardsrv.errors import DecodeError
from shardsrv.store.disk import Disk
from shardsrv.store.faults import SuperblockUndecodable, SuperblockUnreadable
from shardsrv.store.layout import SUPERBLOCK_SLOTS
from shardsrv.store.record import Empty, Kind, Outcome, Present, Unreadable
from shardsrv.store.slots import SlotFiles
from shardsrv.vsr.state import VsrState

MAX_PAYLOAD: Final = 4096


class Superblock(SlotFiles):
    """`read() -> Empty | Present | Unreadable`, `write(payload)`; see `SlotFiles`."""

    def __init__(self, disk: Disk, directory: str) -> None:
        super().__init__(disk, directory, SUPERBLOCK_SLOTS, Kind.SUPERBLOCK, MAX_PAYLOAD)


def state_of(outcome: Outcome, paths: tuple[str, str]) -> VsrState | None:
    """The state in what was read; None for Empty (a fresh boot, S0-10).

    Raises:
        SuperblockUnreadable: a slot is torn, foreign or of an unknown version.
        SuperblockUndecodable: the record is clean and its payload is no `VsrState` (S0-17).
    """
    if isinstance(outcome, Empty):
        return None
    if isinstance(outcome, Unreadable):
        raise SuperblockUnreadable(paths[outcome.slot], outcome.reason, None, outcome.version)
    assert isinstance(outcome, Present)
    try:
        return VsrState.decode(outcome.payload)
    except DecodeError as error:
        raise SuperblockUndecodable(paths[outcome.slot], error.what, error.expected, error.found) from error


def check_absence(path: str, snapshot_op: int, has_log: bool) -> None:
    """A member without superblock is one that never ran (S0-10): its first record is durable before its first entry.

    Raises:
        SuperblockUnreadable: a snapshot above op 0, or a log, says that it did run (S0-14).
    """
    if snapshot_op or has_log:
        what = f"a snapshot of op {snapshot_op}" if snapshot_op else "a log"
        raise SuperblockUnreadable(path, f"missing beside {what}", None, None)
