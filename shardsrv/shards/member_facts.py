"""What a node says to its replicas when it opens them: records, trust, boot entries, waits, incarnations."""

from __future__ import annotations

import secrets
import time
from typing import Any

from shardsrv.config_schema import Cluster
from shardsrv.errors import DecodeError
from shardsrv.plane.metadata import snapshot
from shardsrv.plane.metadata.snapshot import Snapshot
from shardsrv.store.boot import BootEntry, BootFacts
from shardsrv.store.disk import Disk
from shardsrv.store.faults import SnapshotUndecodable, SuperblockUndecodable, SuperblockUnreadable
from shardsrv.store.group_key import METADATA, GroupKey
from shardsrv.store.groups import GroupRecord
from shardsrv.store.log_opening import LogRecovery
from shardsrv.store.record import Empty, Unreadable
from shardsrv.store.snapshot import SnapshotFile
from shardsrv.vsr.replica import Replica
from shardsrv.vsr.state import VsrState
from shardsrv.vsr.timeouts import Timeouts
from shardsrv.vsr.trust import DiskFacts

TICK_SECONDS = 0.01
UNKNOWN_HEAD = 1 << 62


def new_incarnation() -> int:
    """A u128 that is greater than that of any earlier start: microseconds since 1970, then 64 random bits."""
    return (time.time_ns() // 1000) << 64 | secrets.randbits(64)


def timeouts_of(cluster: Cluster) -> Timeouts:
    """The waits of the configuration in ticks of 10 ms, at least one."""

    def ticks(seconds: float) -> int:
        return max(1, int(seconds / TICK_SECONDS + 1e-6))

    return Timeouts(
        prepare=ticks(cluster.prepare_retransmit_interval),
        commit=ticks(cluster.commit_broadcast_interval),
        heartbeat=ticks(cluster.heartbeat_timeout),
        view_change=ticks(cluster.view_change_retransmit_interval),
        view_change_status=ticks(cluster.view_change_status_timeout),
        probe=ticks(cluster.request_start_view_retransmit_interval),
        probe_attempts=cluster.view_probe_attempts_max,
        repair=ticks(cluster.repair_retry_interval),
    )


def disk_facts(
    key: GroupKey,
    boot: BootFacts | None,
    boot_id: bytes,
    recovery: LogRecovery,
    *,
    first: bool,
    born_view: int = 0,
) -> DiskFacts:
    """What opening the log of a group means for trust.

    Of a partition that lost power nobody knows what it had acknowledged; what metadata acknowledges is synced, so only
    rot below the frontier can have taken any of it. A log of which something was cut is none that was stopped cleanly,
    whatever the mark says. ``first``: the group had no record on this node.
    """
    if boot is None:
        head = 0 if first else UNKNOWN_HEAD
        return DiskFacts(fresh=first, clean=first, same_boot=False, head_op=head, born_view=born_view)
    same_boot = boot.head.boot_id == boot_id
    synced = boot.entry.synced_op
    rot = recovery.cut_op is not None and recovery.cut_op <= synced
    partition = key != METADATA
    return DiskFacts(
        clean=boot.head.clean and recovery.cut_op is None,
        same_boot=same_boot and not rot,
        fenced=boot.entry.fenced,
        synced_op=synced,
        head_op=UNKNOWN_HEAD if partition and not same_boot else synced,
        cut=rot or (recovery.cut_op is not None and partition),
        born_view=born_view,
    )


def record_state(disk: Disk, record: GroupRecord | None, path: str, *, nameless: int) -> VsrState | None:
    """The state in the group table's ``record`` of the partition in directory ``path``; None when there is none.
    ``nameless``: pairs of the tables that nobody can name.

    Raises:
        SuperblockUnreadable: the record cannot be trusted, or a nameless one may be this partition's.
        SuperblockUndecodable: its payload is no state.
    """
    if record is None or isinstance(record.outcome, Empty):
        if nameless and disk.exists(path):
            reason = "a record of the group table cannot be read and may be this partition's"
            raise SuperblockUnreadable(path, reason, None, None)
        return None
    if isinstance(record.outcome, Unreadable):
        raise SuperblockUnreadable(path, record.outcome.reason, None, record.outcome.version)
    try:
        return VsrState.decode(record.state)
    except DecodeError as error:
        raise SuperblockUndecodable(path, error.what, error.expected, error.found) from error


def snapshot_state(found: SnapshotFile | None, path: str) -> Snapshot | None:
    """What the metadata snapshot at ``path`` holds; None when there is none. Raises `SnapshotUndecodable`."""
    if found is None:
        return None
    try:
        return snapshot.decode(found.payload)
    except DecodeError as error:
        raise SnapshotUndecodable(path, error.what, error.expected, error.found) from error


def boot_entry(key: GroupKey, replica: Replica, log: Any) -> BootEntry:
    """The entry of an opened group: a suspect stays marked until it is trusted again."""
    return BootEntry(key, log.synced_op, log.head_checksum, log.head_op, replica.suspect)
