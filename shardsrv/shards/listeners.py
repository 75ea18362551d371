"""Listening sockets: bound early, so that a taken address is told before anything is written; listening only when
served.

Invariants: a socket that is bound here does not accept before `listen`; a listener that is made again after the death
of a shard has the port of the one before, also where the system had chosen it; errors are typed, with the address.
"""

from __future__ import annotations

import errno
import socket
import time

from shardsrv.config import Config
from shardsrv.errors import ConfigurationError, PortInUse
from shardsrv.quantities import format_address, parse_address

BACKLOG = 4096
"""Connections that wait for accept; the kernel lowers it to net.core.somaxconn. A restart of every client fits."""

RETRY_SECONDS = 0.01
"""Pause between two attempts: the kernel tells nobody when a port becomes free."""


REPLICA = "tcp_replica"
"""The listener for the other nodes of a cluster."""


def bind_all(
    config: Config, known: dict[str, str], *, patience: float = 0.0, node: int = 0
) -> dict[str, socket.socket]:
    """Bound sockets by transport name.

    Args:
        config: which transports are enabled, and where.
        known: addresses of an earlier call, which keep the ports that the system chose.
        node: which node of the roster this is; in a cluster its ports come from there, the host from ``tcp.address``.
        patience: seconds in which a taken address may become free, after a crash whose sockets are still being closed.

    Raises:
        PortInUse, ConfigurationError: as `bind`.
    """
    wanted = {}
    if config.cluster.enabled:
        host, _ = parse_address(config.tcp.address)
        own = config.cluster.roster[node]
        wanted = {"tcp": format_address(host, own.tcp), REPLICA: format_address(host, own.tcp_replica)}
    elif config.tcp.enabled:
        wanted = {"tcp": config.tcp.address}
    sockets: dict[str, socket.socket] = {}
    try:
        for transport, address in wanted.items():
            key = f"cluster.nodes[{node}].ports.{transport}" if config.cluster.enabled else f"{transport}.address"
            sockets[transport] = bind(key, known.get(transport, address), patience=patience)
    except BaseException:
        for bound in sockets.values():
            bound.close()
        raise
    return sockets


def bind(key: str, address: str, *, patience: float = 0.0) -> socket.socket:
    """A non-blocking socket bound to `address`, the value of the configuration's `key`.

    Raises:
        PortInUse: the address is taken.
        ConfigurationError: this machine does not have it, or it may not be used.
    """
    host, port = parse_address(address)
    listener = socket.socket(
        socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK
    )
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    give_up = time.monotonic() + patience
    while True:
        try:
            listener.bind((host, port))
            return listener
        except OSError as error:
            if error.errno == errno.EADDRINUSE and time.monotonic() < give_up:
                time.sleep(RETRY_SECONDS)
                continue
            listener.close()
            raise _refused(key, host, port, error) from error


def listen(key: str, listener: socket.socket) -> None:
    """Start to accept.

    Raises:
        PortInUse: another program started to listen since `bind`.
    """
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise _refused(key, host, port, error) from error


def bound_address(listener: socket.socket) -> str:
    """The address it is bound to, as the configuration writes it."""
    host, port = listener.getsockname()[:2]
    return format_address(host, port)


def _refused(key: str, host: str, port: int, error: OSError) -> PortInUse | ConfigurationError:
    if error.errno == errno.EADDRINUSE:
        return PortInUse(host, port)
    reason = f"this machine cannot listen there: {error.strerror}; use an address of this machine and a permitted port"
    return ConfigurationError(key, format_address(host, port), reason)
