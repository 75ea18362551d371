"""How many requests the reactor answers: echo of small frames inside trio, a lockstep client in another process.

    python bench/echo.py --connections 1,8 --seconds 2 --body 100

The server is one process: a trio task waits for the reactor's epoll descriptor, polls it (each poll waits up to
50 us) until a few polls in a row bring nothing, and goes back to trio. Each frame costs one Python callback and one
reply. The client is a reactor too (frames are frames in both directions), so that what is measured is mostly the
server; on two cores each has one.

Printed: requests/s, and processor time of the server for each request, user and system apart.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import socket
import struct
import sys
import time

import trio

from shardsrv.bus._memory import Arena, Region
from shardsrv.bus._net import Frame, Reactor

WAIT_US = 50
WAITS = 3
"""Waits in the kernel before the task goes back to trio: a lockstep client answers within one of them."""
TURNS_MAX = 200
"""Turns in a row before other tasks of the process have theirs: about 2 ms."""


def make_reactor(connections: int) -> Reactor:
    return Reactor(
        Arena(Region("echo", 256 << 20), owner=True),
        frame_size_max=64 << 20,
        connections_max=connections,
        unauthenticated_bytes_max=64 << 20,
        ingress_bytes_max=128 << 20,
    )


def request(body: int) -> bytes:
    header = bytearray(256)
    struct.pack_into("<I", header, 48, 256 + body)
    header[60] = 5
    header[176] = 2
    return bytes(header) + bytes(body)


class Client:
    """Sends the next request as soon as the answer to the last is there, until time is over."""

    def __init__(self, reactor: Reactor, frame: bytes) -> None:
        self.reactor = reactor
        self.frame = frame

    def on_frame(self, frame: Frame) -> None:
        self.reactor.reply_one(frame.connection, self.frame)

    def on_close(self, connection: int, reason: int) -> None:
        raise RuntimeError(f"connection {connection} closed: {reason}")

    def on_wake(self, key: int) -> None: ...


def run_client(address: tuple[str, int], connections: int, seconds: float, body: int) -> None:
    reactor = make_reactor(connections)
    client = Client(reactor, request(body))
    for _ in range(connections):
        connection = reactor.adopt(socket.create_connection(address).detach())
        reactor.reply_one(connection, client.frame)
    reactor.flush()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(50):
            reactor.poll(1000, client)
            reactor.flush()
    reactor.shutdown()


class Server:
    """Echoes."""

    def __init__(self, reactor: Reactor) -> None:
        self.reactor = reactor
        self.frames = 0
        self.open = reactor.connections

    def on_frame(self, frame: Frame) -> None:
        self.frames += 1
        self.reactor.reply(frame.connection, (frame.header, frame.body))

    def on_close(self, connection: int, reason: int) -> None:
        self.open -= 1

    def on_wake(self, key: int) -> None: ...


async def serve(reactor: Reactor, server: Server) -> None:
    while server.open:
        await trio.lowlevel.wait_readable(reactor.epoll_fd)
        idle = turns = 0
        while idle < WAITS and turns < TURNS_MAX:
            handled = reactor.poll(WAIT_US, server)
            reactor.flush()
            idle = 0 if handled or reactor.has_backlog() else idle + 1
            turns += 1


def measure(connections: int, seconds: float, body: int) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=connections)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run_client(listener.getsockname(), connections, seconds, body)
            code = 0
        finally:
            os._exit(code)
    reactor = make_reactor(connections)
    for _ in range(connections):
        reactor.adopt(listener.accept()[0].detach())
    server = Server(reactor)
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    trio.run(serve, reactor, server)
    elapsed, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    reactor.shutdown()
    listener.close()
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        sys.exit("the client failed")
    user = (after.ru_utime - before.ru_utime) / server.frames * 1e6
    system = (after.ru_stime - before.ru_stime) / server.frames * 1e6
    print(
        f"{connections:4d} connections, frames of {256 + body} B: {server.frames / elapsed:10,.0f} requests/s,"
        f" {user:5.2f} us user + {system:5.2f} us system a request"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--connections", default="1,8", help="numbers of connections, one run each (default 1,8)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a run (default 2)")
    parser.add_argument("--body", type=int, default=100, help="bytes behind the header (default 100)")
    arguments = parser.parse_args()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{machine}, {arguments.seconds} s a run")
    for connections in arguments.connections.split(","):
        measure(int(connections), arguments.seconds, arguments.body)


if __name__ == "__main__":
    main()
