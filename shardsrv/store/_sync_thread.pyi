"""A thread that syncs files and never asks for the interpreter. Interface; ``_sync_thread.pyx`` implements it."""

from collections.abc import Iterable

class SyncThread:
    """One round of `fdatasync` at a time: `start`, wait until ``event_fd`` is readable, `finish`. Not for use by
    several threads, nor after a fork."""

    @property
    def event_fd(self) -> int:
        """An eventfd, readable when the round is done; -1 after `close`."""

    def __init__(self, affinity: Iterable[int]) -> None:
        """``affinity``: the cores it may run on. Raises OSError when there are no more threads or descriptors."""

    def start(self, files: list[int]) -> None:
        """Begin a round over descriptors, which must stay open until `finish`. Raises RuntimeError while one is out, or
        after `close`."""

    def finish(self) -> tuple[int, int] | None:
        """The outcome of the round as `store.disk.Disk.fdatasync_all` gives it. Raises BlockingIOError while it is not
        done."""

    def close(self) -> None:
        """Wait for what is out, end the thread. Twice is harmless."""
