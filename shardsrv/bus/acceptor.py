"""Accepting client connections: all that wait, without ever spinning on a full descriptor table.

Invariants: one call takes a bounded number; a connection that cannot be taken for want of descriptors is closed at once
and counted, so that the listener does not stay readable for ever; what is returned belongs to the caller.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Final

from shardsrv.errors import OurFault

ACCEPTS_PER_CALL: Final = 256
"""Connections taken in one call; about 2 ms. The listener stays readable when more wait."""

_GONE: Final = frozenset({errno.ECONNABORTED, errno.ECONNRESET, errno.EPROTO, errno.EPERM, errno.ETIMEDOUT})
"""The connection ended before it was accepted, or a firewall forbids it: the next one may be fine."""
_NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
_NO_MEMORY: Final = frozenset({errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """Accepts from listeners and keeps one descriptor in reserve for the moment when there is none left.

    Attributes:
        accepted: connections handed to the caller.
        refused: connections closed at once because no descriptor was left.
    """

    def __init__(self) -> None:
        self.accepted = 0
        self.refused = 0
        self._reserve: int | None = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def accept_all(self, listener: socket.socket) -> list[tuple[int, str]]:
        """Accept what waits at a non-blocking listener.

        Returns:
            (descriptor, peer address) for each; the descriptors belong to the caller and are non-blocking.
        Raises:
            OurFault: the listener is none, or was closed.
        """
        taken: list[tuple[int, str]] = []
        for _ in range(ACCEPTS_PER_CALL):
            try:
                connection, address = listener.accept()
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in _GONE:
                    continue
                if error.errno in _NO_DESCRIPTORS and self._refuse_one(listener):
                    continue
                if error.errno in _NO_DESCRIPTORS or error.errno in _NO_MEMORY:
                    break
                raise OurFault(f"accept: {error.strerror}") from error
            connection.setblocking(False)
            taken.append((connection.detach(), format_address(address)))
        self.accepted += len(taken)
        return taken

    def _refuse_one(self, listener: socket.socket) -> bool:
        """Accept and close one connection in the place of the reserved descriptor. False when there is no reserve."""
        if self._reserve is None:
            self._refill()
        if self._reserve is None:
            return False
        os.close(self._reserve)
        self._reserve = None
        try:
            listener.accept()[0].close()
            self.refused += 1
        except OSError:
            # It went away, or another process took the freed descriptor: either way there is nothing to close now.
            pass
        self._refill()
        return True

    def _refill(self) -> None:
        try:
            self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in _NO_DESCRIPTORS:
                raise
            self._reserve = None

    def close(self) -> None:
        """Give the reserved descriptor back. Idempotent."""
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None


def format_address(address: object) -> str:
    """``ip:port``, ``[ip]:port`` for IPv6, ``unix`` for a local socket."""
    if not isinstance(address, tuple) or len(address) < 2:
        return "unix"
    return f"[{address[0]}]:{address[1]}" if ":" in str(address[0]) else f"{address[0]}:{address[1]}"
