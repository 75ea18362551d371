"""Signals of the supervisor as bytes in a pipe, so that one wait covers signals, shards and deadlines.

Invariants: handlers do nothing; a signal is never lost (the pipe holds thousands, and the first stops the node); what
stood before is put back on `close`.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""All three mean: stop in good order."""


class Signals:
    """Readable at `fileno` when a signal has arrived."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._before: dict[int, Any] = {number: signal.signal(number, _note) for number in (*STOPPING, signal.SIGCHLD)}
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def fileno(self) -> int:
        """The descriptor to wait on for `take`."""
        return self._read

    def take(self) -> list[signal.Signals]:
        """The signals that have arrived since the last call, without waiting."""
        taken = b""
        while True:
            try:
                piece = os.read(self._read, 4096)
            except BlockingIOError:
                break
            taken += piece
        return [signal.Signals(number) for number in taken]

    def close_in_child(self) -> None:
        """Give back the pipe in a forked child, which has handlers of its own."""
        os.close(self._read)
        os.close(self._write)

    def close(self) -> None:
        """Put the former handlers back."""
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self.close_in_child()


def _note(_number: int, _frame: FrameType | None) -> None:
    """Being there is enough: the number goes to the pipe."""
