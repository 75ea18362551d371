"""Metadata of a member that its disk no longer holds whole: kept as evidence, begun again, and fetched from the others.

What is healed is data (log and snapshot), never a promise: without a readable superblock a member refuses to start.
Invariants: nothing that was read as damaged is removed; a crash at any point leaves a member that does the rest at its
next start, because a record may lag behind the snapshot and never leads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from shardsrv._core import xxh3
from shardsrv.errors import Damaged
from shardsrv.store.disk import Disk
from shardsrv.store.faults import LogDamaged, LogForeign
from shardsrv.store.layout import SNAPSHOT, DataDirectory
from shardsrv.store.set_aside import copy_aside, set_aside
from shardsrv.store.snapshot import MAX_SNAPSHOT, write_snapshot
from shardsrv.store.superblock import Superblock
from shardsrv.vsr.state import VsrState

HEALED_BY_PEERS: Final = (Damaged, LogForeign)
"""What the other members of a cluster can replace."""


def set_metadata_aside(
    disk: Disk,
    directory: DataDirectory,
    superblock: Superblock,
    state: VsrState,
    error: Damaged | LogForeign,
    first_payload: Callable[[], bytes],
) -> None:
    """Put what ``error`` was found in under another name. Behind a snapshot that is gone no log stands: the member
    begins with the state of op 0, which ``first_payload`` makes, and its record (so far ``state``) says so first.

    Raises `DiskFault`, and what ``first_payload`` does; then nothing was changed.
    """
    if isinstance(error, LogDamaged | LogForeign):
        set_aside(disk, directory.metadata_log)
        return
    payload = first_payload()
    superblock.write(attrs.evolve(state, checkpoint_op=0, checkpoint_checksum=xxh3(payload)).encode())
    if disk.exists(directory.metadata_log):
        set_aside(disk, directory.metadata_log)
    copy_aside(disk, directory.snapshot, MAX_SNAPSHOT)
    write_snapshot(disk, directory.metadata, SNAPSHOT, payload)
