"""A node whose disk is gone begins anew by its operator's word, gets everything from the others, and counts again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.test_catching_up import attempt, cluster, follower_of, keep_one, let_go, logged
from tests.cluster.test_cluster import STREAM, TOPIC, payloads, sees
from tests.support.cluster import Cluster, ClusterNode

__all__ = ["cluster"]


def recover(node: ClusterNode, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`shardsrv recover` for ``node``, with the configuration that it runs with."""
    given = node.arguments[: node.arguments.index("--config") + 2]
    command = [sys.executable, "-m", "shardsrv", "recover", *given, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def lose_disk(node: ClusterNode, kept: Path) -> None:
    """Stop the node and take its data directory away."""
    assert node.stop() == 0
    node.data.rename(kept)


def taken(cluster: Cluster, node: ClusterNode, topic: str, payload: bytes) -> None:
    """A send is acknowledged, at once or when the nodes that are left have agreed on who leads."""
    with cluster.client(node) as client:
        cluster.until(lambda: attempt(lambda: client.send(STREAM, topic, 0, [payload])))


def test_a_node_that_lost_its_disk_begins_anew_and_counts_again(cluster: Cluster, tmp_path: Path) -> None:
    away, leader = follower_of(cluster), cluster.leader()
    (other,) = (node for node in cluster.nodes if node not in (away, leader))
    with cluster.client(leader) as client:
        keep_one(cluster, client, away)
        lose_disk(away, tmp_path / "lost")
        client.send(STREAM, TOPIC, 0, [b"meanwhile"])
        done = recover(away, "--yes")
        assert (done.returncode, done.stderr) == (0, "") and "begins anew" in done.stdout
        away.start()
        sees(cluster, away, [b"kept", b"meanwhile"])
        forgotten = away.data / "metadata" / "forgotten"
        cluster.until(lambda: not forgotten.exists())
        assert logged(away, "has come back")
    other.kill()
    taken(cluster, leader, TOPIC, b"of two, one of them the one that began anew")
    with cluster.client(leader) as client:
        client.create_topic(STREAM, "of two", 1)
    taken(cluster, leader, "of two", b"a new partition")
    assert away.stop() == 0
    away.start()
    taken(cluster, leader, TOPIC, b"after a restart")
    with cluster.client(leader) as client:
        assert payloads(client)[-1] == b"after a restart"
    away.kill()
    away.data.rename(tmp_path / "anew")
    (tmp_path / "lost").rename(away.data)
    away.start()
    cluster.until(lambda: logged(away, "comes back with another data directory"))


def test_a_node_that_is_killed_while_it_begins_anew_goes_on_with_it(cluster: Cluster, tmp_path: Path) -> None:
    away = follower_of(cluster)
    with cluster.client(cluster.leader()) as client:
        keep_one(cluster, client, away)
        lose_disk(away, tmp_path / "lost")
        assert recover(away, "--yes").returncode == 0
        forgotten = away.data / "metadata" / "forgotten"
        for _ in range(3):
            away.start()
            away.kill()
        assert recover(away, "--yes").returncode == 0, "what was begun is begun again"
        assert (away.data / "before-recover-1" / "metadata" / "snapshot.bin").exists()
        away.start()
        sees(cluster, away, [b"kept"])
    cluster.until(lambda: not forgotten.exists())


@pytest.mark.parametrize("elected", [False, True], ids=["same view", "an election has passed by"])
def test_what_no_log_holds_any_more_comes_as_a_state(cluster: Cluster, tmp_path: Path, elected: bool) -> None:
    away, leader = follower_of(cluster), cluster.leader()
    with cluster.client(leader) as client:
        keep_one(cluster, client, away)
        lose_disk(away, tmp_path / "lost")
        cluster.until(lambda: let_go(client, leader))
    if elected:
        leader.kill()
        leader.start()
    assert recover(away, "--yes").returncode == 0
    away.start()
    sees(cluster, away, [b"kept"])
    assert logged(away, "state transfer: state transfer installed"), away.log_tail(60)
    cluster.until(lambda: not (away.data / "metadata" / "forgotten").exists())
    with cluster.client(away) as client:
        assert client.send(STREAM, TOPIC, 0, [b"by the one that began anew"]) == 1


@pytest.mark.parametrize("running", [True, False])
def test_nothing_is_begun_anew_by_mistake(cluster: Cluster, running: bool) -> None:
    node = follower_of(cluster)
    if running:
        done = recover(node, "--yes")
        assert done.returncode == 1 and "is in use by process" in done.stderr
    else:
        assert node.stop() == 0
        done = recover(node)
        assert done.returncode == 1 and "Nothing was changed; do it with --yes" in done.stdout
    assert not (node.data / "metadata" / "forgotten").exists()
    assert not list(node.data.glob("before-recover-*"))
