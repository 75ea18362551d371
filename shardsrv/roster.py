"""The roster of a cluster: which nodes there are, and where each is reached.

Owns the text form of ``cluster.nodes`` and the rules within it. Invariants: replica ids are 0 .. nodes - 1, names and
endpoints are unique, every address that replicas dial is a literal IP; parsing is total (a roster, or `ValueError` with
a reason that names the node and both keys where two contradict each other). The digest is that of what all nodes must
agree on, so that two nodes with different rosters never serve one cluster.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

NODES_MAX = 7
"""Members of a consensus group: the quorum tables end there."""
PORTS = ("tcp", "tcp_replica", "quic", "http", "websocket")
_KEYS = ("name", "ip", "replica_id", "advertised_address", "advertised_addresses", "ports")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")


@attrs.frozen
class RosterNode:
    """One node. ``advertised`` is the host that clients are told, ``ip`` the one that replicas dial."""

    name: str
    ip: str
    replica: int
    ports: Mapping[str, int]
    advertised_address: str = ""

    @property
    def advertised(self) -> str:
        """The host that clients are told."""
        return self.advertised_address or self.ip

    @property
    def tcp(self) -> int:
        """Port for clients."""
        return self.ports["tcp"]

    @property
    def tcp_replica(self) -> int:
        """Port for the other nodes."""
        return self.ports["tcp_replica"]


Roster = tuple[RosterNode, ...]


def parse_roster(value: Sequence[object]) -> Roster:
    """The nodes by replica id. Raises `ValueError`: a table that is wrong, or two that contradict each other."""
    if len(value) > NODES_MAX:
        raise ValueError(f"{len(value)} nodes; a cluster has at most {NODES_MAX}")
    nodes = [_node(index, table) for index, table in enumerate(value)]
    _check_unique(nodes)
    return tuple(sorted(nodes, key=lambda node: node.replica))


def roster_digest(roster: Roster) -> int:
    """A u64 over what every node of a cluster must say alike: ids, names, and where replicas are dialled."""
    lines = [f"{node.replica} {node.name} {node.ip} {node.tcp_replica}" for node in roster]
    return int.from_bytes(hashlib.blake2b("\n".join(lines).encode(), digest_size=8).digest(), "little")


def _node(index: int, table: object) -> RosterNode:
    where = f"nodes[{index}]"
    if not isinstance(table, Mapping):
        raise ValueError(f"{where} must be a table")
    for key in table:
        if key not in _KEYS:
            raise ValueError(f"{where}.{key} is unknown")
    if table.get("advertised_addresses"):
        raise ValueError(f"{where}.advertised_addresses is not part of this version; use advertised_address")
    name = _text(table, "name", where)
    ip = _text(table, "ip", where)
    try:
        ipaddress.ip_address(ip)
    except ValueError:
        raise ValueError(f"{where}.ip must be a literal IP address, not {ip!r}") from None
    replica = table.get("replica_id")
    if isinstance(replica, bool) or not isinstance(replica, int) or not 0 <= replica < NODES_MAX:
        raise ValueError(f"{where}.replica_id must be a whole number from 0 on")
    advertised = str(table.get("advertised_address", ""))
    if advertised and not _is_host(advertised):
        raise ValueError(f"{where}.advertised_address must be an IP address or a host name without a port")
    return RosterNode(name, ip, replica, _ports(table.get("ports"), where), advertised)


def _text(table: Mapping[str, Any], key: str, where: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not 1 <= len(value.encode()) <= 255:
        raise ValueError(f"{where}.{key} must be 1 to 255 bytes of text")
    return value


def _ports(value: object, where: str) -> dict[str, int]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}.ports must be a table with tcp and tcp_replica")
    ports = {}
    for key in PORTS:
        port = value.get(key)
        if port is None and key not in ("tcp", "tcp_replica"):
            continue
        if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
            raise ValueError(f"{where}.ports.{key} must be a port from 1 to 65535")
        ports[key] = port
    return ports


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text.strip("[]"))
        return True
    except ValueError:
        labels = text.split(".")
        return len(text) <= 253 and not labels[-1].isdigit() and all(_LABEL.fullmatch(label) for label in labels)


def _check_unique(nodes: list[RosterNode]) -> None:
    names: dict[str, int] = {}
    replicas: dict[int, int] = {}
    endpoints: dict[tuple[str, int], str] = {}
    for index, node in enumerate(nodes):
        if node.replica >= len(nodes):
            raise ValueError(f"nodes[{index}].replica_id {node.replica} is not below the number of nodes, {len(nodes)}")
        if names.setdefault(node.name, index) != index:
            raise ValueError(f"nodes[{names[node.name]}].name and nodes[{index}].name are both {node.name!r}")
        if replicas.setdefault(node.replica, index) != index:
            first = replicas[node.replica]
            raise ValueError(f"nodes[{first}].replica_id and nodes[{index}].replica_id are both {node.replica}")
        for key, port in node.ports.items():
            path = f"nodes[{index}].ports.{key}"
            other = endpoints.setdefault((node.ip, port), path)
            if other != path:
                raise ValueError(f"{other} and {path} are both {port} of {node.ip}")
