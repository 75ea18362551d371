"""The reactor: client sockets, frames, replies. Types of ``_net.pyx``; how bytes are received stands there."""

from collections.abc import Iterable
from typing import Final, Protocol

from typing_extensions import Buffer as AnyBuffer

from shardsrv.bus._arena import Arena
from shardsrv.bus._frame import Frame as Frame

# Why a connection ended (`Handler.on_close`).
CLOSED_BY_PEER: Final = 1
CLOSED_BY_RESET: Final = 2
CLOSED_BAD_SIZE: Final = 3  # size field below 256 or above the limit
CLOSED_BAD_COMMAND: Final = 4  # command byte above 29
CLOSED_BY_US: Final = 5
CLOSED_OVER_BUDGET: Final = 6  # frame larger than a connection may send before login

class Handler(Protocol):
    """What the reactor calls, from `poll` only. An exception leaves `poll`; the reactor stays in order and goes on
    with the next `poll` (the frame counts as delivered).
    """

    def on_frame(self, frame: Frame, /) -> object:
        """A complete frame; answer it with `reply`, `resume` or `close`, now or later."""
    def on_close(self, connection: int, reason: int, /) -> object:
        """The connection is gone, for one of the CLOSED_ reasons. Once for each adopted connection, also after
        `close`.
        """
    def on_wake(self, key: int, /) -> object:
        """A descriptor added by `Reactor.watch` is readable (its eventfd counter was read by the reactor)."""

class Reactor:
    """Owns one epoll set with all sockets of a shard. Synchronous: nothing in here awaits. One thread.

    Lockstep: after `on_frame` for a connection no further frame of it is delivered until `reply`, `resume` or `close`
    was called for it, nor while the kernel does not take its output; pipelined bytes wait in the buffer or in the
    socket. Made with ``lockstep=False`` it delivers what comes, without waiting for anything. `reply` only queues;
    `flush` writes, one writev a socket.

    A loop that drains it: ``while reactor.poll(0, handler) or reactor.has_backlog(): reactor.flush()``.
    """

    @property
    def arena(self) -> Arena: ...
    @property
    def epoll_fd(self) -> int:
        """-1 after `shutdown`."""
    @property
    def connections(self) -> int: ...
    @property
    def connections_max(self) -> int: ...
    @property
    def ingress_bytes(self) -> int:
        """Bytes of frames received and not yet dropped, and of partial frames (whole size once they have a buffer)."""
    @property
    def frames_received(self) -> int: ...
    @property
    def bytes_received(self) -> int: ...
    @property
    def bytes_sent(self) -> int: ...
    @property
    def parkings(self) -> int:
        """How often a socket was left unread because the arena or the ingress budget had no room."""
    def __init__(
        self,
        arena: Arena,
        *,
        frame_size_max: int,
        connections_max: int,
        unauthenticated_bytes_max: int,
        ingress_bytes_max: int,
        lockstep: bool = True,
    ) -> None:
        """Raises ConfigurationError for limits that cannot work (`ingress_bytes_max` below `frame_size_max`)."""
    def watch(self, fd: int, key: int, is_eventfd: bool = True) -> None:
        """Report readability of a non-socket descriptor through `on_wake(key)`. Without ``is_eventfd`` the handler
        has to read it, or is told again at every poll. Unwatch it before it is closed.
        """
    def unwatch(self, fd: int) -> None: ...
    def adopt(self, fd: int) -> int:
        """Take over a connected socket (TCP or AF_UNIX stream); sets O_NONBLOCK and TCP_NODELAY. Returns the
        connection id.

        Raises NotAccepted when `connections_max` are open, OSError when the socket is dead; it then still belongs to
        the caller.
        """
    def detach(self, connection: int) -> int | None:
        """Give up a connection with nothing in flight, without closing it: its descriptor, already out of the epoll
        set. None when it is unknown or not idle. `on_close` is not called.
        """
    def poll(self, timeout_us: int, handler: Handler) -> int:
        """Wait up to ``timeout_us`` (0: do not wait; negative: for ever; below 1 ms through epoll_pwait2, GIL
        released), receive, deliver frames, at most one a connection. Returns how many epoll events were handled.
        Connections whose buffered bytes hold a further frame and that were answered are served too; while there are
        such, it does not wait.
        """
    def has_backlog(self) -> bool:
        """Whether a next `poll(0, ...)` would do something without any epoll event."""
    def reply(self, connection: int, parts: Iterable[AnyBuffer]) -> bool:
        """Queue one reply frame given as buffers, kept alive until written. False when the connection is gone."""
    def reply_one(self, connection: int, frame: bytes) -> bool:
        """`reply` of a single bytes object; the fast path."""
    def resume(self, connection: int) -> None:
        """No answer to this frame: let the next one come."""
    def set_authenticated(self, connection: int, value: bool) -> None: ...
    def address(self, connection: int) -> str:
        """``ip:port`` of the peer, ``[ip]:port`` for IPv6, ``unix`` for a local socket; empty when the connection is
        gone.
        """
    def close(self, connection: int, after_flush: bool = False) -> None:
        """End a connection, at once or when its queued output is written. A connection that has gone is ignored."""
    def queued(self, connection: int) -> tuple[int, int]:
        """(buffers, bytes) that are queued and not written; zeros when the connection is gone."""
    def flush(self) -> int:
        """Write what is queued; what the kernel does not take waits for EPOLLOUT. Returns bytes written."""
    def stop_receiving(self) -> None:
        """Graceful stop: deliver no more new frames."""
    def connection_ids(self) -> list[int]: ...
    def shutdown(self) -> None:
        """Close every socket and the epoll set. Handlers hear nothing of it."""
