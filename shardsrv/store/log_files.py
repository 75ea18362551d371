"""File work that opening and truncating a log share: listing, headers, indexes, cutting a suffix.

Invariants: a suffix is removed from the back, the directory is synced, and only then is the boundary segment cut and
synced; a boundary's index goes before its segment is cut, because an index must be true of its segment for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from shardsrv._core import Prepare
from shardsrv.errors import Damaged, DiskFault
from shardsrv.store.disk import READ, SYNC, Disk, disk_fault, read_all, read_exact, write_all
from shardsrv.store.index import ENTRY, STRIDE, SparseIndex
from shardsrv.store.layout import index_name, segment_first_op, segment_name
from shardsrv.store.segment import SEGMENT_HEADER, SEND_MESSAGES

CHUNK: Final = 1 << 20
"""Bytes of one read of a walk: large against a system call, small against memory."""
_BATCH_HEAD: Final = 64
"""Bytes of a batch header that hold base offset and count."""


def list_segments(disk: Disk, directory: str) -> list[int]:
    """First ops of the segment files, rising; none when the directory does not exist. Raises `DiskFault`."""
    try:
        names = disk.listdir(directory)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise disk_fault(error, directory, READ) from error
    return sorted(op for op in map(segment_first_op, names) if op is not None)


def segment_path(directory: str, first_op: int) -> str:
    """Path of a segment file."""
    return f"{directory}/{segment_name(first_op)}"


def index_path(directory: str, first_op: int) -> str:
    """Path of the index beside it."""
    return f"{directory}/{index_name(first_op)}"


def load_index(disk: Disk, directory: str, first_op: int, size: int) -> SparseIndex | None:
    """The index file of a segment of ``size`` bytes; None when there is none or it does not hold (a walk makes it
    again)."""
    path = index_path(directory, first_op)
    limit = 32 + ENTRY * (size // STRIDE + 2)
    try:
        index = SparseIndex.decode(read_all(disk, path, limit), first_op, path)
    except (FileNotFoundError, DiskFault):
        return None
    return index if not len(index) or index.positions[-1] + SEGMENT_HEADER <= size else None


def save_index(disk: Disk, directory: str, first_op: int, index: SparseIndex) -> None:
    """Write an index file. Not synced: it is sealed by its hash and can be made again. Raises `OSError`."""
    data = index.encode(first_op)
    handle = disk.open_write(index_path(directory, first_op), create=True)
    try:
        disk.truncate(handle, 0)
        write_all(disk, handle, [data], 0, len(data))
    finally:
        disk.close(handle)


def walk_headers(
    disk: Disk, handle: int, path: str, start: int, size: int, bodies: int = _BATCH_HEAD
) -> Iterator[tuple[int, Prepare, memoryview]]:
    """(position, header, first bytes of the body) of each entry in ``[start, size)``; headers are verified, bodies are
    not.

    Raises:
        Damaged: a header does not hold.
        Unreadable: the file cannot be read.
    """
    position = start
    while position < size:
        chunk = memoryview(bytearray(min(CHUNK, size - position)))
        try:
            count = read_exact(disk, handle, chunk, position)
        except OSError as error:
            raise disk_fault(error, path, READ) from error
        at = 0
        while at + SEGMENT_HEADER <= count:
            try:
                header = Prepare.load_header(chunk, at)
            except Damaged as damage:
                raise Damaged(path, position + at, None, damage.expected, damage.found) from damage
            body = chunk[at + 256 : at + 256 + min(bodies, header.size - 256)]
            if len(body) < min(bodies, header.size - 256):
                break
            yield position + at, header, body
            at += header.size
        if at == 0:
            raise Damaged(path, position, None, "a whole entry", f"{size - position} bytes")
        position += at


def build_index(
    disk: Disk, handle: int, path: str, size: int, read_batch: Callable[[memoryview], tuple[int, int]]
) -> SparseIndex:
    """Make the index of a whole segment by walking its headers. Raises `Damaged`, `Unreadable`."""
    index = SparseIndex()
    for position, header, body in walk_headers(disk, handle, path, SEGMENT_HEADER, size):
        if header.operation == SEND_MESSAGES and position >= index.due:
            index.add(read_batch(body)[0], header.timestamp, header.op, position)
    return index


def cut_suffix(disk: Disk, directory: str, remove: Sequence[int], boundary: tuple[int, int] | None) -> None:
    """Remove whole segments ``remove`` (first ops, any order) and cut ``boundary`` (first op, new length).

    Raises:
        DiskFault: a step failed; what is left is a prefix of the log that may reach beyond the cut.
    """
    path = directory
    action = "unlink"
    try:
        for first_op in sorted(remove, reverse=True):
            for path in (index_path(directory, first_op), segment_path(directory, first_op)):
                if disk.exists(path):
                    disk.unlink(path)
        if boundary is not None:
            path = index_path(directory, boundary[0])
            if disk.exists(path):
                disk.unlink(path)
        path, action = directory, SYNC
        disk.fsync_dir(directory)
        if boundary is not None:
            path, action = segment_path(directory, boundary[0]), "truncate"
            handle = disk.open_write(path)
            try:
                disk.truncate(handle, boundary[1])
                action = SYNC
                disk.fdatasync(handle)
            finally:
                disk.close(handle)
    except OSError as error:
        raise disk_fault(error, path, action) from error
