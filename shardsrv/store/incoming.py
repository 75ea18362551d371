"""The place beside a group's files where a transferred state gathers, and the swap that puts a partition's in place.

Directory ``incoming/`` below that of the group: staged artifacts, and ``ready``, the record that makes a swap certain:

    MessagePack [version 1, names of segments, payload of the checkpoint], then the trailer of a snapshot file

Invariants: everything that ``ready`` names is synced before it is written; from then on the swap only goes forward, at
once or at the next start, and every step may be done again; ``ready`` is gone, durably, before the group takes another
entry, so that no later start goes back to it. Without ``ready`` what is in here means nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgpack  # type: ignore[import-untyped]

from shardsrv.errors import Damaged
from shardsrv.store.disk import SYNC, Disk, disk_fault, read_all, replace_file
from shardsrv.store.layout import INDEX_SUFFIX, SEGMENT_SUFFIX, segment_first_op
from shardsrv.store.snapshot import decode_snapshot, encode_trailer

INCOMING: Final = "incoming"
READY: Final = "ready"
VERSION: Final = 1
READY_MAX: Final = 128 * 1024 * 1024
"""Bytes: above the largest checkpoint, a bound on what is read at start."""


def incoming_path(directory: str) -> str:
    """Where the artifacts for the group in ``directory`` gather."""
    return f"{directory}/{INCOMING}"


def make_incoming(disk: Disk, directory: str) -> str:
    """Make the place, its name durable; returns its path. Raises `OSError`."""
    path = incoming_path(directory)
    if not disk.exists(path):
        disk.mkdir(path)
        disk.fsync_dir(directory)
    return path


def clear_incoming(disk: Disk, directory: str, keep: Sequence[str] = ()) -> None:
    """Remove what is staged, but for the names to ``keep``. Raises `OSError`."""
    path = incoming_path(directory)
    if disk.exists(path):
        for name in disk.listdir(path):
            if name not in keep and name != READY:
                disk.unlink(f"{path}/{name}")


def commit_swap(disk: Disk, directory: str, segments: Sequence[str], checkpoint: bytes) -> None:
    """Write ``ready``: the staged ``segments`` (names) and the ``checkpoint`` are the state of the group from now on.

    Raises `DiskFault`; unless it was a sync of the directory that failed, nothing has changed then.
    """
    payload = msgpack.packb([VERSION, list(segments), checkpoint], use_bin_type=True)
    path = incoming_path(directory)
    try:
        for name in segments:
            handle = disk.open_write(f"{path}/{name}")
            try:
                disk.fdatasync(handle)
            finally:
                disk.close(handle)
        disk.fsync_dir(path)
    except OSError as error:
        raise disk_fault(error, path, SYNC) from error
    replace_file(disk, path, READY, [payload, encode_trailer(payload)[0]])


def finish_swap(disk: Disk, directory: str, write_checkpoint: Callable[[bytes], object]) -> bool:
    """Bring a swap that is certain to its end; False when there is none. To be called at start before anything else of
    the group is read, and by whoever committed it.

    Args:
        write_checkpoint: makes a checkpoint payload the newest of the group.
    Raises:
        Damaged: ``ready`` does not hold.
        DiskFault: a step failed; the swap is still certain.
    """
    path = incoming_path(directory)
    try:
        data = read_all(disk, f"{path}/{READY}", READY_MAX)
    except FileNotFoundError:
        return False
    names, checkpoint = _decode(data, f"{path}/{READY}")
    where, action = directory, "unlink"
    try:
        for name in disk.listdir(directory):
            where = f"{directory}/{name}"
            if (name.endswith(SEGMENT_SUFFIX) and name not in names) or name.endswith(INDEX_SUFFIX):
                disk.unlink(where)
        action = "rename"
        for name in names:
            where = f"{path}/{name}"
            if disk.exists(where):
                disk.rename(where, f"{directory}/{name}")
        where, action = directory, SYNC
        disk.fsync_dir(directory)
        disk.fsync_dir(path)
        write_checkpoint(checkpoint)
        where, action = f"{path}/{READY}", "unlink"
        disk.unlink(where)
        action = SYNC
        disk.fsync_dir(path)
    except OSError as error:
        raise disk_fault(error, where, action) from error
    return True


def _decode(data: bytes, path: str) -> tuple[list[str], bytes]:
    """(names, checkpoint) of a ``ready``. Raises `Damaged`."""
    payload = decode_snapshot(data, path).payload
    try:
        fields = msgpack.unpackb(payload, raw=False, strict_map_key=True)
    except ValueError as error:
        raise Damaged(path, 0, None, "MessagePack", str(error)) from error
    sound = (
        type(fields) is list
        and len(fields) == 3
        and fields[0] == VERSION
        and type(fields[1]) is list
        and all(type(name) is str and segment_first_op(name) is not None for name in fields[1])
        and type(fields[2]) is bytes
    )
    if not sound:
        raise Damaged(path, 0, None, f"version {VERSION}, names of segments, a checkpoint", repr(fields)[:64])
    return fields[1], fields[2]


def retract_swap(disk: Disk, directory: str) -> None:
    """Take back a ``ready`` that was not written whole: the group goes on from the state it has.

    Raises `DiskFault`; then it is not known which state the next start would find, and the group must not go on.
    """
    path = incoming_path(directory)
    action = "unlink"
    try:
        for name in (READY, f"{READY}.tmp"):
            if disk.exists(f"{path}/{name}"):
                disk.unlink(f"{path}/{name}")
        action = SYNC
        disk.fsync_dir(path)
    except OSError as error:
        raise disk_fault(error, path, action) from error
