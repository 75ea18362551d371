"""Accepting: all that waits, and what happens when descriptors run out."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator

import pytest

from shardsrv.bus.acceptor import ACCEPTS_PER_CALL, Acceptor, format_address
from shardsrv.errors import OurFault


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=512) as made:
        made.setblocking(False)
        yield made


@pytest.fixture
def acceptor() -> Iterator[Acceptor]:
    made = Acceptor()
    yield made
    made.close()


def test_all_waiting_connections_are_taken_with_their_addresses(listener: socket.socket, acceptor: Acceptor) -> None:
    clients = [socket.create_connection(listener.getsockname()) for _ in range(5)]
    taken = acceptor.accept_all(listener)
    assert [address for _, address in taken] == ["{}:{}".format(*client.getsockname()) for client in clients]
    assert acceptor.accept_all(listener) == [] and acceptor.accepted == 5
    for fd, _ in taken:
        assert not os.get_blocking(fd) and not os.get_inheritable(fd)
        os.close(fd)
    for client in clients:
        client.close()


def test_one_call_takes_a_bounded_number(listener: socket.socket, acceptor: Acceptor) -> None:
    clients = [socket.create_connection(listener.getsockname()) for _ in range(ACCEPTS_PER_CALL + 3)]
    first, second = acceptor.accept_all(listener), acceptor.accept_all(listener)
    assert (len(first), len(second)) == (ACCEPTS_PER_CALL, 3)
    for fd, _ in first + second:
        os.close(fd)
    for client in clients:
        client.close()


def test_without_descriptors_connections_are_closed_and_counted(listener: socket.socket, acceptor: Acceptor) -> None:
    clients = [socket.create_connection(listener.getsockname()) for _ in range(4)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    held: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, hard))
        with pytest.raises(OSError):
            while True:
                held.append(os.dup(0))
        os.close(held.pop())
        taken = acceptor.accept_all(listener)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in held:
            os.close(fd)
    assert (len(taken), acceptor.accepted, acceptor.refused) == (1, 1, 3)
    for client in clients[1:]:
        client.settimeout(5)
        assert client.recv(1) == b""
    os.close(taken[0][0])
    for client in clients:
        client.close()
    with socket.create_connection(listener.getsockname()):
        ((fd, _),) = acceptor.accept_all(listener)
        os.close(fd)


def test_a_listener_that_is_none_is_our_fault(acceptor: Acceptor) -> None:
    with socket.socket() as closed, pytest.raises(OurFault):
        closed.setblocking(False)
        acceptor.accept_all(closed)


def test_addresses() -> None:
    assert format_address(("::1", 80, 0, 0)) == "[::1]:80"
    assert format_address(("10.0.0.1", 80)) == "10.0.0.1:80"
    assert format_address("") == "unix"
