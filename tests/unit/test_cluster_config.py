"""The configuration of a cluster: its roster, its waits and its secret, each refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardsrv.config import Config, load, to_toml
from shardsrv.errors import ConfigurationError
from shardsrv.roster import roster_digest

SECRET = "a secret of a test, long enough to be taken"


def node(number: int, **changes: object) -> dict[str, object]:
    row: dict[str, object] = {
        "name": f"node-{number}",
        "ip": "127.0.0.1",
        "replica_id": number,
        "ports": {"tcp": 8090 + number, "tcp_replica": 9090 + number},
    }
    return row | changes


def built(tmp_path: Path, *nodes: dict[str, object], **cluster: object) -> Config:
    path = tmp_path / "cluster.toml"
    tree = {"cluster": {"enabled": True, "nodes": list(nodes or (node(0), node(1), node(2))), **cluster}}
    path.write_text(to_toml(tree))
    return load(str(path), {})[0]


def test_a_roster_is_read_in_the_order_of_its_ids(tmp_path: Path) -> None:
    roster = built(tmp_path, node(2), node(0, advertised_address="broker.example"), node(1)).cluster.roster
    assert [item.replica for item in roster] == [0, 1, 2]
    assert (roster[0].advertised, roster[1].advertised) == ("broker.example", "127.0.0.1")
    assert (roster[2].tcp, roster[2].tcp_replica) == (8092, 9092)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([node(0), node(1, name="node-0")], "nodes[0].name and nodes[1].name are both 'node-0'"),
        ([node(0), node(1, replica_id=0)], "nodes[0].replica_id and nodes[1].replica_id are both 0"),
        ([node(0), node(1, replica_id=2)], "nodes[1].replica_id 2 is not below the number of nodes"),
        ([node(0), node(1, ip="broker.example")], "nodes[1].ip must be a literal IP"),
        ([node(0), node(1, ports={"tcp": 8091})], "nodes[1].ports.tcp_replica"),
        (
            [node(0), node(1, ports={"tcp": 9090, "tcp_replica": 9091})],
            "nodes[0].ports.tcp_replica and nodes[1].ports.tcp are both 9090",
        ),
        ([node(0), node(1, advertised_address="a b")], "nodes[1].advertised_address"),
        ([node(0), node(1, advertised_addresses=[{"client_cidr": "10.0.0.0/8"}])], "not part of this version"),
        ([node(number) for number in range(8)], "at most 7"),
    ],
)
def test_a_roster_that_does_not_hold_is_refused(tmp_path: Path, nodes: list[dict[str, object]], reason: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        built(tmp_path, *nodes)
    assert refused.value.key == "cluster.nodes"
    assert reason in refused.value.reason and "cluster.toml" in refused.value.reason


@pytest.mark.parametrize(
    ("cluster", "key", "reason"),
    [
        ({"heartbeat_timeout": "1 s"}, "cluster.heartbeat_timeout", "cluster.commit_broadcast_interval"),
        (
            {"view_change_status_timeout": "1 s"},
            "cluster.view_change_status_timeout",
            "cluster.view_change_retransmit_interval",
        ),
        ({"repair_chunk_max": 512}, "cluster.repair_chunk_max", "message_bus.peer_queue_capacity"),
        ({"auth": {"enabled": True}}, "cluster.auth.shared_secret", "cluster.auth.enabled"),
        ({"auth": {"shared_secret": "short"}}, "cluster.auth.shared_secret", "32 bytes"),
        (
            {"auth": {"shared_secret": SECRET, "previous_shared_secret": SECRET}},
            "cluster.auth.previous_shared_secret",
            "cluster.auth.shared_secret",
        ),
    ],
)
def test_what_contradicts_is_refused_with_both_keys(
    tmp_path: Path, cluster: dict[str, object], key: str, reason: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        built(tmp_path, **cluster)
    assert refused.value.key == key and reason in refused.value.reason
    assert SECRET not in str(refused.value)


def test_a_single_node_is_not_asked_about_its_roster(tmp_path: Path) -> None:
    path = tmp_path / "single.toml"
    path.write_text(to_toml({"cluster": {"enabled": False, "nodes": [{"name": "half"}]}}))
    assert not load(str(path), {})[0].cluster.enabled


def test_what_was_read_is_written_without_secrets(tmp_path: Path) -> None:
    config = built(tmp_path, auth={"enabled": True, "shared_secret": SECRET})
    config.write_current(tmp_path / "current.toml", {})
    written = (tmp_path / "current.toml").read_text()
    assert "node-2" in written and SECRET not in written


def test_rosters_that_replicas_must_agree_on_differ_in_their_digest(tmp_path: Path) -> None:
    one = roster_digest(built(tmp_path).cluster.roster)
    moved = node(1, ports={"tcp": 8091, "tcp_replica": 9999})
    assert roster_digest(built(tmp_path, node(0), moved, node(2)).cluster.roster) != one
    told = node(1, advertised_address="elsewhere.example")
    assert roster_digest(built(tmp_path, node(0), told, node(2)).cluster.roster) == one
