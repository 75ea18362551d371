"""The files into which the artifacts of one transfer are written as they arrive.

Invariants: a file holds the bytes of one artifact; what is said to be held is a prefix that was written in this life,
or a whole file whose checksum holds; nothing here is durable, and nothing here is believed before it was checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import xxhash

from shardsrv.errors import OurFault, Unreadable
from shardsrv.store.disk import READ, Disk, disk_fault, read_exact, write_all
from shardsrv.store.incoming import clear_incoming, incoming_path, make_incoming
from shardsrv.store.layout import segment_name
from shardsrv.wire.manifest import Artifact, ArtifactKind

CHUNK: Final = 1024 * 1024
"""Bytes of one read when an artifact is looked through."""


def staged_name(artifact: Artifact) -> str:
    """File name of an artifact; that of a segment is the one it will have in the log."""
    if artifact.kind == ArtifactKind.SEGMENT:
        return segment_name(artifact.frontier)
    return f"artifact-{artifact.kind}"


class Staging:
    """The staging of the group in ``directory``. One at a time; `open` ends an earlier one."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._artifacts: tuple[Artifact, ...] = ()
        self._handles: list[int] = []
        self._written: dict[Artifact, int] = {}  # bytes from the beginning, in this life
        self._later: dict[Artifact, dict[int, int]] = {}  # what lies behind a hole: start -> end
        self.opening = 0
        """Counts the stagings that were opened."""

    def require(self, opening: int) -> None:
        """Raise `Unreadable` unless the staging that was open at ``opening`` still is: a job that began under it may
        run when it is closed, or another one open."""
        if opening != self.opening or not self._handles:
            raise Unreadable(incoming_path(self._directory), "the staging was closed")

    def path(self, index: int) -> str:
        """File of an artifact of the open staging."""
        return f"{incoming_path(self._directory)}/{staged_name(self._artifacts[index])}"

    def open(self, artifacts: tuple[Artifact, ...]) -> tuple[int, ...]:
        """Open a file for each artifact; returns the bytes held of each. Files of other artifacts go. Raises
        `DiskFault`."""
        self._close_files()
        self.opening += 1
        names = [staged_name(artifact) for artifact in artifacts]
        if len(set(names)) != len(names):
            raise OurFault("two artifacts with one name in a staging")
        self._artifacts = artifacts
        held = []
        path = self._directory
        try:
            path = make_incoming(self._disk, self._directory)
            clear_incoming(self._disk, self._directory, names)
            for index, artifact in enumerate(artifacts):
                path = self.path(index)
                held.append(self._open_file(path, artifact))
        except OSError as error:
            raise disk_fault(error, path, "staging") from error
        self._written = dict(zip(artifacts, held, strict=True))
        self._later = {artifact: {} for artifact in artifacts}
        return tuple(held)

    def _open_file(self, path: str, artifact: Artifact) -> int:
        """Open one file; what it holds of ``artifact`` stays, anything else goes."""
        there = self._disk.exists(path)
        handle = self._disk.open_write(path, create=True)
        self._handles.append(handle)
        size = self._disk.size(path) if there else 0
        held = min(self._written.get(artifact, 0), size)
        if held < artifact.length and size == artifact.length and _hash(self._disk, handle, size) == artifact.checksum:
            held = size
        if size > held:
            self._disk.truncate(handle, held)
        return held

    def write(self, index: int, offset: int, data: object) -> None:
        """Bytes of an artifact arrived. Raises `DiskFault`."""
        if index >= len(self._handles):
            raise OurFault("a chunk for a staging that is not open")
        length = len(data)  # type: ignore[arg-type]
        try:
            write_all(self._disk, self._handles[index], [data], offset, length)
        except OSError as error:
            raise disk_fault(error, self.path(index), "staging", needed=length) from error
        artifact = self._artifacts[index]
        later = self._later[artifact]
        later[offset] = max(later.get(offset, 0), offset + length)
        while self._written[artifact] in later:
            self._written[artifact] = later.pop(self._written[artifact])

    def checksum(self, index: int) -> int:
        """Checksum of a staged artifact, read from its file. Raises `DiskFault`."""
        path = self.path(index)
        try:
            return _hash(self._disk, self._handles[index], self._artifacts[index].length)
        except OSError as error:
            raise disk_fault(error, path, READ) from error

    def read(self, index: int) -> bytes:
        """A whole staged artifact. Raises `DiskFault`."""
        path, length = self.path(index), self._artifacts[index].length
        buffer = bytearray(length)
        try:
            count = read_exact(self._disk, self._handles[index], memoryview(buffer), 0)
        except OSError as error:
            raise disk_fault(error, path, READ) from error
        return bytes(memoryview(buffer)[:count])

    def close(self, keep: bool) -> None:
        """End the staging; without ``keep`` its files go as well (what cannot be removed is removed by the next)."""
        self._close_files()
        if not keep:
            self._written.clear()
            try:
                clear_incoming(self._disk, self._directory)
            except OSError:
                # They are in nobody's way: the next staging removes them or fails by name.
                return

    def _close_files(self) -> None:
        for handle in self._handles:
            self._disk.close(handle)
        self._handles.clear()


def _hash(disk: Disk, handle: int, length: int) -> int:
    """XXH3-64 of the first ``length`` bytes. Raises `OSError`."""
    state = xxhash.xxh3_64()
    for chunk in chunks(disk, handle, length):
        state.update(chunk)
    return state.intdigest()


def chunks(disk: Disk, handle: int, length: int) -> Iterator[memoryview]:
    """The first ``length`` bytes, a piece at a time; fewer when the file ends. Raises `OSError`."""
    position = 0
    while position < length:
        buffer = memoryview(bytearray(min(CHUNK, length - position)))
        count = read_exact(disk, handle, buffer, position)
        if not count:
            return
        yield buffer[:count]
        position += count
