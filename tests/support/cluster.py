"""A cluster of real nodes on the loopback address, each a process tree with its own data directory."""

from __future__ import annotations

import contextlib
import os
import select
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from shardsrv.config import to_toml
from tests.support.client import Client, Evicted, Refused
from tests.support.frames import ConnectionLost
from tests.support.node import Node, free_port

T = TypeVar("T")
SECRET = "the secret of a cluster that lives for one test"
GET_CLUSTER_METADATA = 12
WAIT = 30.0
PAUSE_MILLISECONDS = 20
"""Between two looks at what a cluster says of itself; nobody tells a test when an election is over."""
QUICK = {
    "heartbeat_timeout": "2 s",
    "commit_broadcast_interval": "200 ms",
    "prepare_retransmit_interval": "100 ms",
    "view_change_retransmit_interval": "200 ms",
    "view_change_status_timeout": "2 s",
    "request_start_view_retransmit_interval": "200 ms",
}


class ClusterNode(Node):
    """One node; readiness is that it listens: a cluster serves once enough of its nodes do."""

    def __init__(self, root: Path, number: int, config: Path, port: int, arguments: tuple[str, ...] = ()) -> None:
        super().__init__(root, arguments=("--config", str(config), *arguments), port=port)
        self.number = number
        self.arguments[self.arguments.index("--node") + 1] = str(number)

    def _answers(self, deadline: float) -> bool:
        try:
            Client(self.host, self.port, max(0.1, deadline - time.monotonic())).close()
        except OSError:
            return False
        return True


class Cluster:
    """``size`` nodes; nothing is started yet. ``waits`` and ``sections``: more of its configuration."""

    def __init__(
        self,
        root: Path,
        size: int = 3,
        *,
        arguments: tuple[str, ...] = ("--shards", "2"),
        waits: dict[str, str] | None = None,
        **sections: object,
    ) -> None:
        ports = [(free_port(), free_port()) for _ in range(size)]
        rows = [
            {"name": f"node-{n}", "ip": "127.0.0.1", "replica_id": n, "ports": {"tcp": tcp, "tcp_replica": replica}}
            for n, (tcp, replica) in enumerate(ports)
        ]
        tree = {
            "cluster": {
                "enabled": True,
                "name": "of-tests",
                "nodes": rows,
                "auth": {"enabled": True, "shared_secret": SECRET},
                **(QUICK | (waits or {})),
            },
            "users": {"argon2_memory": "8 KiB", "argon2_iterations": 1},
            **sections,
        }
        root.mkdir(parents=True, exist_ok=True)
        config = root / "cluster.toml"
        config.write_text(to_toml(tree))
        self.nodes = [ClusterNode(root / f"node-{n}", n, config, ports[n][0], arguments) for n in range(size)]

    def __enter__(self) -> Cluster:
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.await_service()
        return self

    def __exit__(self, *_error: object) -> None:
        for node in self.nodes:
            node.kill()

    def running(self) -> list[ClusterNode]:
        """Those whose process lives."""
        return [node for node in self.nodes if node.process is not None and node.process.poll() is None]

    def leader(self, among: list[ClusterNode] | None = None, timeout: float = WAIT) -> ClusterNode:
        """The node that leads the metadata, as every running node says. Waits for it."""
        asked = among or self.running()
        return self.until(lambda: self._agreed(asked), timeout)

    def _agreed(self, asked: list[ClusterNode]) -> ClusterNode | None:
        said = {leader_said_by(node) for node in asked}
        numbers = {node.number for node in asked}
        (one,) = said if len(said) == 1 else (None,)
        return self.nodes[one] if one is not None and one in numbers else None

    def until(self, look: Callable[[], T | None], timeout: float = WAIT) -> T:
        """What ``look`` finds, once it finds something. Raises AssertionError with the logs of all nodes."""
        deadline = time.monotonic() + timeout
        ends = {os.pidfd_open(node.pid): node for node in self.running()}
        try:
            end = select.poll()
            for descriptor in ends:
                end.register(descriptor, select.POLLIN)
            while True:
                found = look()
                if found:
                    return found
                assert time.monotonic() < deadline, f"it did not come about within {timeout} s\n{self.logs()}"
                for descriptor, _ in end.poll(PAUSE_MILLISECONDS):
                    raise AssertionError(f"node {ends[descriptor].number} ended\n{self.logs()}")
        finally:
            for descriptor in ends:
                os.close(descriptor)

    def logs(self, lines: int = 15) -> str:
        """The ends of all logs."""
        return "\n".join(f"--- node {node.number}\n{node.log_tail(lines)}" for node in self.nodes)

    @contextlib.contextmanager
    def client(self, node: ClusterNode, timeout: float = WAIT) -> Iterator[Client]:
        """A connection to ``node``, logged in as root as soon as the cluster takes it."""
        client = self.until(lambda: logged_in(node), timeout)
        with client:
            yield client


def logged_in(node: ClusterNode) -> Client | None:
    """A connection that is logged in; None while nobody can take the login."""
    try:
        return node.client(timeout=10.0)
    except (OSError, ConnectionLost, Refused, Evicted):
        return None


def leader_said_by(node: ClusterNode) -> int | None:
    """The number of the node that leads, as ``node`` says it; None for none, or no answer."""
    try:
        with node.client(timeout=5.0) as client:
            for number, (_, role, _) in enumerate(roster(client)):
                if role == 0:
                    return number
    except (OSError, ConnectionLost, Refused, Evicted):
        return None
    return None


def roster(client: Client) -> list[tuple[str, int, int]]:
    """(name, role, status) of every node, as get_cluster_metadata says."""
    reply = client.read(GET_CLUSTER_METADATA, b"")
    at = 4 + struct.unpack_from("<I", reply)[0]
    (count,) = struct.unpack_from("<I", reply, at)
    at += 4
    rows = []
    for _ in range(count):
        (length,) = struct.unpack_from("<I", reply, at)
        name = reply[at + 4 : at + 4 + length].decode()
        at += 4 + length
        at += 4 + struct.unpack_from("<I", reply, at)[0] + 8
        rows.append((name, reply[at], reply[at + 1]))
        at += 2
    return rows
