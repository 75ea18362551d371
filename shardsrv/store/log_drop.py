"""Removing the head of a log: the files of whole segments that are no longer part of it.

Invariant: oldest first, with a directory sync between, so that a crash leaves a log that begins later and never one
with a hole.
"""

from __future__ import annotations

from shardsrv.store.disk import SYNC, Disk, disk_fault
from shardsrv.store.log_files import index_path, segment_path


class DropPlan:
    """Head segments that are no longer part of the log; `run` (in a thread, if wanted) removes their files."""

    __slots__ = ("_directory", "_disk", "bytes", "first_ops")

    def __init__(self, disk: Disk, directory: str, first_ops: list[int], count: int) -> None:
        self._disk = disk
        self._directory = directory
        self.first_ops = first_ops
        self.bytes = count

    def run(self) -> None:
        """Remove the files, oldest first, each with its own directory sync.

        A file system may make the removal of two names durable in any order; with a sync between them a crash leaves a
        log that begins later, and never one with a hole. Idempotent: a second run removes what the first left.

        Raises:
            DiskFault: the step that failed.
        """
        for first_op in self.first_ops:
            path, action = segment_path(self._directory, first_op), "unlink"
            try:
                for path in (index_path(self._directory, first_op), segment_path(self._directory, first_op)):
                    if self._disk.exists(path):
                        self._disk.unlink(path)
                action = SYNC
                self._disk.fsync_dir(self._directory)
            except OSError as error:
                raise disk_fault(error, path, action) from error
