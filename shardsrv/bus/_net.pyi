"""The reactor: client sockets, frames, replies. Interface; the implementation is ``_net.pyx``."""

from collections.abc import Buffer, Sequence
from typing import Final, Protocol

from shardsrv.bus._memory import Arena

# Why a connection ended (`Handler.on_close`).
CLOSED_BY_PEER: Final = 1
CLOSED_BY_RESET: Final = 2
CLOSED_BAD_SIZE: Final = 3        # size field below 256 or above the limit
CLOSED_BAD_COMMAND: Final = 4     # command byte above 29
CLOSED_BY_US: Final = 5
CLOSED_OVER_BUDGET: Final = 6

class Frame:
    """One complete request frame. The body stays in the arena buffer that it was received into, until the frame is dropped."""

    connection: int          # slot | generation << 32
    command: int             # header byte 60
    operation: int           # header byte 176
    code: int                # header u32 at 196 (command code when operation is 2)
    request: int
    session: int
    client: bytes            # 16 bytes
    request_checksum: int    # low 64 bits; `request_checksum_high` tells whether the upper half is zero
    request_checksum_high: int
    timestamp: int
    size: int
    header: memoryview       # 256 bytes, read-only
    body: memoryview         # size - 256 bytes, WRITABLE (a batch is stamped where it lies)
    body_offset: int         # offset of the body in the arena: what a lane descriptor carries

class Handler(Protocol):
    def on_frame(self, frame: Frame) -> None: ...
    def on_close(self, connection: int, reason: int) -> None: ...
    def on_wake(self, key: int) -> None:
        """A descriptor added by `Reactor.watch` is readable (its eventfd counter was read by the reactor)."""

class Reactor:
    """Owns one epoll set with all sockets of a shard. Synchronous: nothing in here awaits.

    Lockstep: after `on_frame` for a connection no further frame of it is delivered until `reply`, `resume` or `close` was called for
    it; pipelined bytes wait in the buffer or in the socket. `reply` only queues; `flush` writes, one writev a socket.
    """

    epoll_fd: int
    connections: int
    ingress_bytes: int       # bytes of frames received and not yet dropped, and of partial frames
    frames_received: int
    bytes_received: int
    bytes_sent: int

    def __init__(
        self, arena: Arena, *, frame_size_max: int, connections_max: int, unauthenticated_bytes_max: int, ingress_bytes_max: int
    ) -> None: ...
    def watch(self, fd: int, key: int, is_eventfd: bool = True) -> None:
        """Report readability of a non-socket descriptor through `on_wake(key)`."""
    def unwatch(self, fd: int) -> None: ...
    def adopt(self, fd: int) -> int:
        """Take over an accepted, non-blocking socket; sets TCP_NODELAY. Returns the connection id. Raises `ConnectionRefused...` typed when full."""
    def poll(self, timeout_us: int, handler: Handler) -> int:
        """Wait up to ``timeout_us`` (0: do not wait; below 1 ms through epoll_pwait2, GIL released), receive, deliver frames. Returns how
        many epoll events were handled. Connections whose buffered bytes hold a further frame and that were answered are served too."""
    def has_backlog(self) -> bool:
        """Whether buffered frames wait that a next `poll(0, ...)` would deliver without any epoll event."""
    def reply(self, connection: int, parts: Sequence[Buffer]) -> bool:
        """Queue one reply frame given as buffers, kept alive until written. False when the connection is gone."""
    def reply_one(self, connection: int, frame: bytes) -> bool:
        """`reply` of a single bytes object; the fast path."""
    def resume(self, connection: int) -> None:
        """No answer to this frame: let the next one come."""
    def set_authenticated(self, connection: int, value: bool) -> None: ...
    def address(self, connection: int) -> str:
        """``ip:port`` of the peer."""
    def close(self, connection: int, after_flush: bool = False) -> None: ...
    def flush(self) -> int:
        """Write what is queued; what the kernel does not take waits for EPOLLOUT. Returns bytes written."""
    def stop_receiving(self) -> None:
        """Graceful stop: deliver no more new frames."""
    def connection_ids(self) -> list[int]: ...
    def shutdown(self) -> None:
        """Close every socket and the epoll set."""
