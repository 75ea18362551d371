"""A log whose files are replaced under it, and a log that a snapshot has left behind.

Installing a transferred state ends one log and begins another in the same directory: behind a snapshot nothing is left
of the old one, behind a partition's checkpoint stand the segments that were fetched.

Invariants: the object stays, so that plans of syncs that are out find it; whatever goes wrong in between fences the
log, because what the directory holds is then not known; a log that ends below the snapshot beside it is begun anew
at start only if it was never synced any further: all that it holds is in the snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardsrv.errors import Damaged, DiskFault
from shardsrv.store.disk import SYNC, Disk, disk_fault
from shardsrv.store.faults import LogDamaged, LogFenced
from shardsrv.store.log import PrepareLog
from shardsrv.store.log_files import index_path, list_segments, segment_path
from shardsrv.store.log_opening import LogFacts, LogRecovery
from shardsrv.store.log_walk import LogWalker, ResumePoint
from shardsrv.store.recovery import Shape
from shardsrv.store.segment import GroupIdentity


def remove_segments(disk: Disk, directory: str) -> None:
    """Remove every segment and its index, oldest first, each with its own directory sync: what a crash leaves is one
    unbroken run. Raises `DiskFault`."""
    for first_op in list_segments(disk, directory):
        path, action = segment_path(directory, first_op), "unlink"
        try:
            for path in (index_path(directory, first_op), segment_path(directory, first_op)):
                if disk.exists(path):
                    disk.unlink(path)
            path, action = directory, SYNC
            disk.fsync_dir(directory)
        except OSError as error:
            raise disk_fault(error, path, action) from error


def reload_log(log: PrepareLog, resume: ResumePoint, change: Callable[[], None]) -> None:
    """Let go of every file and of what is buffered, let ``change`` rearrange the directory, and take over what is
    there: a log that ends at ``resume.op``, or holds nothing and goes on behind it. What it then holds counts as
    synced.

    Raises:
        LogFenced: the log was fenced, or is now, because a step failed.
    """
    if log.fenced is not None:
        raise LogFenced(log.directory, log.fenced)
    try:
        for segment in log._segments:
            log._retire(segment)
        log._discard()
        change()
        walker = LogWalker(log._disk, log.directory, log.identity, resume, resume.op, resume.checksum, True, None)
        walk = walker.run()
        if walk.damage is not None or walk.head_op != resume.op:
            detail = walk.damage.detail if walk.damage is not None else ""
            raise Damaged(log.directory, 0, walk.head_op, resume.op, detail or walk.head_op)
    except (OSError, DiskFault) as error:
        log.fence(f"the log was to be replaced at op {resume.op}: {error}")
        raise LogFenced(log.directory, log.fenced or "") from error
    log._dirty.clear()
    log._directory_dirty = False
    log._epoch += 1
    log._adopt(walk, resume.op)


def open_behind_snapshot(
    disk: Disk,
    directory: str,
    identity: GroupIdentity,
    *,
    resume: ResumePoint | None,
    facts: LogFacts | None = None,
    **options: Any,
) -> tuple[PrepareLog, LogRecovery, bool]:
    """`PrepareLog.open` beside a snapshot at ``resume``. The flag says that the log ended below it, as a crash between
    the install of a snapshot and the removal of the log leaves it, and was begun anew.

    Raises as `PrepareLog.open`.
    """
    try:
        log, recovery = PrepareLog.open(disk, directory, identity, resume=resume, facts=facts, **options)
        return log, recovery, False
    except LogDamaged as damage:
        if resume is None or not is_superseded(damage, resume, facts or LogFacts()):
            raise
    remove_segments(disk, directory)
    log, recovery = PrepareLog.open(disk, directory, identity, resume=resume, facts=facts, **options)
    return log, recovery, True


def is_superseded(damage: LogDamaged, resume: ResumePoint, facts: LogFacts) -> bool:
    """Whether a log that is not whole at ``damage.op`` held nothing that the state at ``resume`` does not hold.

    | its end lies at or below the snapshot | synced beyond its end | whole entries behind the place | verdict |
    |---|---|---|---|
    | no | | | no: entries above the snapshot are at stake |
    | yes | yes | | no: synced entries are missing |
    | yes | no | yes, or it contradicts the snapshot | no: damaged inside |
    | yes | no | no | yes |
    """
    if damage.op is None or damage.op > resume.op or facts.synced_op >= damage.op:
        return False
    return damage.shape in (Shape.NONE.value, Shape.SHORT.value, Shape.ZEROS.value, Shape.BAD_LAST.value)
