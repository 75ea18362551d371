"""The `Disk` that every driver of this room writes to, and the operating system behind it.

Invariants: a driver reaches storage only through a `Disk`, so that a simulated one can lose, tear and reorder what was
not synced; methods raise `OSError` as the system does, and `disk_fault` is the one place that turns it into a
`DiskFault`. Handles are small ints, paths are text, positions and lengths are bytes.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from shardsrv.errors import DiskFault, DiskFull, SyncFailed, Unreadable
from shardsrv.store._disk import sync_files
from shardsrv.store.faults import WriteFailed

MAX_VECTORS = 1024
"""Buffers of one vectored call (IOV_MAX of Linux); drivers split longer lists."""

SYNC = "sync"
READ = "read"


class Disk(Protocol):
    """Calls of a file system that the drivers need. Every method may raise `OSError` unless it says otherwise."""

    def open_read(self, path: str) -> int:
        """Open an existing file for reading."""

    def open_write(self, path: str, *, create: bool = False, exclusive: bool = False) -> int:
        """Open for reading and writing at explicit positions; with ``exclusive`` the file must not exist."""

    def close(self, handle: int) -> None:
        """Release a handle."""

    def pwritev(self, handle: int, buffers: Sequence[Any], position: int) -> int:
        """Write up to `MAX_VECTORS` buffers at ``position``; returns the bytes written, which may be fewer."""

    def preadv(self, handle: int, buffers: Sequence[Any], position: int) -> int:
        """Read into writable buffers from ``position``; returns the bytes read, 0 at the end of the file."""

    def fdatasync(self, handle: int) -> None:
        """Data and length of the file reach stable storage."""

    def fdatasync_all(self, handles: list[int]) -> tuple[int, int] | None:
        """`fdatasync` of each in turn. Raises nothing: returns None, or (position in ``handles``, errno) of the first
        that failed; those behind it were not tried."""

    def fsync_dir(self, path: str) -> None:
        """Names in the directory reach stable storage."""

    def syncfs(self, handle: int) -> None:
        """Everything of the file system that holds ``handle`` reaches stable storage."""

    def truncate(self, handle: int, length: int) -> None:
        """Set the length of the file."""

    def fallocate(self, handle: int, position: int, length: int) -> None:
        """Reserve space without changing the length of the file (FALLOC_FL_KEEP_SIZE)."""

    def rename(self, source: str, target: str) -> None:
        """Replace ``target`` by ``source`` in one step."""

    def unlink(self, path: str) -> None:
        """Remove a file."""

    def mkdir(self, path: str) -> None:
        """Make a directory and its parents; an existing one is no error."""

    def listdir(self, path: str) -> list[str]:
        """Names in the directory, sorted."""

    def exists(self, path: str) -> bool:
        """True when ``path`` names anything."""

    def size(self, path: str) -> int:
        """Length of the file."""

    def free_bytes(self, path: str) -> int:
        """Bytes that this user can still write on the file system of ``path``."""


class OsDisk:
    """`Disk` of the operating system (Linux)."""

    _KEEP_SIZE = 1

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        # Plain functions as attributes: one call less on the path of every message.
        self.pwritev = os.pwritev
        self.preadv = os.preadv
        self.fdatasync = os.fdatasync
        self.fdatasync_all = sync_files
        self.truncate = os.ftruncate
        self.close = os.close

    def open_read(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def open_write(self, path: str, *, create: bool = False, exclusive: bool = False) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC
        if create or exclusive:
            flags |= os.O_CREAT
        if exclusive:
            flags |= os.O_EXCL
        return os.open(path, flags, 0o640)

    def fsync_dir(self, path: str) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def syncfs(self, handle: int) -> None:
        self._call(self._libc.syncfs(handle), "syncfs")

    def fallocate(self, handle: int, position: int, length: int) -> None:
        offset, count = ctypes.c_int64(position), ctypes.c_int64(length)
        self._call(self._libc.fallocate64(handle, self._KEEP_SIZE, offset, count), "fallocate")

    @staticmethod
    def _call(result: int, name: str) -> None:
        if result != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}")

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        os.makedirs(path, mode=0o750, exist_ok=True)

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def free_bytes(self, path: str) -> int:
        facts = os.statvfs(path)
        return facts.f_bavail * facts.f_frsize


_FULL = (errno.ENOSPC, errno.EDQUOT)


def disk_fault(error: OSError, path: str, action: str, *, needed: int = 0, available: int = 0) -> DiskFault:
    """The typed fault for a failed call: the one translation of operating system errors.

    Args:
        action: what was tried: `SYNC`, `READ`, or a verb for the text ("append", "rename", ...).
        needed, available: bytes, for `DiskFull`.
    """
    number = error.errno or 0
    if action == SYNC:
        return SyncFailed(path, number)
    if number in _FULL:
        return DiskFull(path, needed, available)
    if action == READ:
        return Unreadable(path, os.strerror(number) if number else str(error), number)
    return WriteFailed(path, action, number)


def write_all(disk: Disk, handle: int, buffers: Sequence[Any], position: int, length: int) -> None:
    """Write all ``length`` bytes of ``buffers`` at ``position``: goes on after short writes and splits above
    `MAX_VECTORS`.

    Raises:
        OSError: as the disk does; then an unknown prefix was written.
    """
    if len(buffers) <= MAX_VECTORS:
        written = disk.pwritev(handle, buffers, position)
        if written == length:
            return
    else:
        written = 0
    left = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
    first, skip = 0, written
    while True:
        while first < len(left) and skip >= len(left[first]):
            skip -= len(left[first])
            first += 1
        if first == len(left):
            return
        if skip:
            left[first] = left[first][skip:]
        count = disk.pwritev(handle, left[first : first + MAX_VECTORS], position + written)
        if count <= 0:
            raise OSError(errno.EIO, "a write of more than 0 bytes wrote none")
        written += count
        skip = count


def read_all(disk: Disk, path: str, limit: int) -> bytes:
    """The whole file.

    Raises:
        Unreadable: it cannot be read, or is longer than ``limit`` bytes (a bound on what is allocated).
        FileNotFoundError: it does not exist; whoever calls decides what absence means.
    """
    try:
        handle = disk.open_read(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise disk_fault(error, path, READ) from error
    try:
        length = disk.size(path)
        if length > limit:
            raise Unreadable(path, f"{length} bytes long, at most {limit} are expected")
        data = bytearray(length)
        count = read_exact(disk, handle, memoryview(data), 0)
        return bytes(data[:count])
    except OSError as error:
        raise disk_fault(error, path, READ) from error
    finally:
        disk.close(handle)


def read_exact(disk: Disk, handle: int, buffer: memoryview, position: int) -> int:
    """Fill ``buffer`` from ``position``; returns the bytes read, fewer only at the end. Raises `OSError`."""
    done = 0
    while done < len(buffer):
        count = disk.preadv(handle, [buffer[done:]], position + done)
        if count == 0:
            break
        done += count
    return done


def sync_names(disk: Disk, root: str, paths: Iterable[str]) -> None:
    """Make the names of directories durable, from ``root`` down to each of ``paths``, which lie below it: every
    directory between is synced once.

    A sync of a directory covers the names in it and not its own: without this a power loss may take a directory away
    together with all that was synced in it.

    Raises:
        SyncFailed: a directory could not be synced.
    """
    parents: dict[str, None] = {}
    for path in paths:
        parent = path
        while parent != root and "/" in parent:
            parent = parent.rpartition("/")[0]
            parents[parent] = None
    for parent in parents:
        try:
            disk.fsync_dir(parent or "/")
        except OSError as error:
            raise disk_fault(error, parent, SYNC) from error


def replace_file(disk: Disk, directory: str, name: str, parts: Sequence[Any]) -> None:
    """Write ``directory/name`` so that a crash leaves the old file or the new one: temp, sync, rename, sync directory.

    Raises:
        DiskFault: the step that failed. After a failed directory sync the new file may already be live (S2-38).
    """
    path, temporary = f"{directory}/{name}", f"{directory}/{name}.tmp"
    length = sum(len(part) for part in parts)
    action = "write"
    try:
        handle = disk.open_write(temporary, create=True)
        try:
            disk.truncate(handle, 0)
            write_all(disk, handle, parts, 0, length)
            action = SYNC
            disk.fdatasync(handle)
        finally:
            disk.close(handle)
        action = "rename"
        disk.rename(temporary, path)
        action = SYNC
        disk.fsync_dir(directory)
    except OSError as error:
        raise disk_fault(error, path, action, needed=length) from error
