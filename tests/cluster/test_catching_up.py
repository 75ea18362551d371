"""A node that was away for longer than any log reaches back gets the state; one that must not join is refused."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shardsrv.config import to_toml
from shardsrv.wire.error_codes import ErrorCode
from tests.cluster.test_cluster import STREAM, TOPIC, payloads, sees
from tests.support.client import Client, Refused
from tests.support.cluster import SECRET, Cluster, ClusterNode
from tests.support.commands import purge_topic


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, metadata={"checkpoint": {"bytes": "64 KiB", "interval": "1 s"}}) as running:
        yield running


def follower_of(cluster: Cluster) -> ClusterNode:
    leader = cluster.leader()
    return next(node for node in cluster.nodes if node is not leader)


def logged(node: ClusterNode, text: str) -> bool:
    return text in node.log_path.read_text(errors="replace")


def test_metadata_that_no_log_holds_any_more_comes_as_a_state(cluster: Cluster) -> None:
    away = follower_of(cluster)
    leader = cluster.leader()
    with cluster.client(leader) as client:
        client.create_stream("before")
        client.create_topic("before", "gone meanwhile", 1)
        cluster.until(lambda: served(away, "before", "gone meanwhile"))
        away.kill()
        client.delete_stream("before")
        for number in range(3):
            client.create_stream(f"meanwhile {number}")
        client.create_stream(STREAM)
        client.create_topic(STREAM, TOPIC, 2)
        cluster.until(lambda: let_go(client, leader))
        client.send(STREAM, TOPIC, 0, [b"meanwhile"])
        away.start()
        client.send(STREAM, TOPIC, 0, [b"after"])
    sees(cluster, away, [b"meanwhile", b"after"])
    assert logged(away, "state transfer: state transfer installed"), away.log_tail(60)
    with cluster.client(away) as client:
        assert client.send(STREAM, TOPIC, 1, [b"by the one that was away"]) == 0
    cluster.until(lambda: not list((away.data / "partitions" / "0" / "0").glob("*")))


def served(node: ClusterNode, stream: str, topic: str) -> bool:
    """Whether a node itself has made the first partition of a topic."""
    with node.client() as client:
        try:
            return client.poll(stream, topic, 0) == []
        except Refused:
            return False


def let_go(client: Client, leader: ClusterNode) -> bool:
    """Write some metadata; whether the log of the leader has let its oldest go."""
    for number in range(20):
        client.create_stream(f"filler {number} {'x' * 200}")
    for number in range(20):
        client.delete_stream(f"filler {number} {'x' * 200}")
    (first, *_) = sorted((leader.data / "metadata" / "log").glob("*.seg"))
    return int(first.stem) > 20


def test_a_partition_whose_log_was_dropped_comes_as_segments(cluster: Cluster) -> None:
    away, leader = follower_of(cluster), cluster.leader()
    with cluster.client(leader) as client:
        client.create_stream(STREAM)
        client.create_topic(STREAM, TOPIC, 1)
        client.send(STREAM, TOPIC, 0, [b"before"])
        sees(cluster, away, [b"before"])
        away.kill()
        for number in range(3):
            client.send(STREAM, TOPIC, 0, [b"purged %d" % number])
        purge_topic(client, STREAM, TOPIC)
        cluster.until(lambda: payloads(client) == [])
        directory = next((leader.data / "partitions" / "0" / "0").iterdir())
        cluster.until(lambda: all(int(path.stem) > 1 for path in directory.glob("*.seg")))
        client.send(STREAM, TOPIC, 0, [b"kept"])
        away.start()
        sees(cluster, away, [b"kept"])
        assert logged(away, "state transfer: state transfer installed"), away.log_tail(60)
        client.send(STREAM, TOPIC, 0, [b"after"])
    sees(cluster, away, [b"kept", b"after"])


def test_a_damaged_partition_is_set_aside_and_comes_from_the_others(cluster: Cluster) -> None:
    away = follower_of(cluster)
    with cluster.client(cluster.leader()) as client:
        client.create_stream(STREAM)
        client.create_topic(STREAM, TOPIC, 1)
        for number in range(5):
            client.send(STREAM, TOPIC, 0, [b"message %d" % number])
    expected = [b"message %d" % number for number in range(5)]
    sees(cluster, away, expected)
    assert away.stop() == 0
    (segment,) = (away.data / "partitions" / "0" / "0").glob("*/*.seg")
    data = bytearray(segment.read_bytes())
    data[600] ^= 1
    segment.write_bytes(data)
    away.start()
    sees(cluster, away, expected)
    assert logged(away, "set aside")


def keep_one(cluster: Cluster, client: Client, away: ClusterNode) -> None:
    """A topic of one partition with one message, which ``away`` holds as well."""
    client.create_stream(STREAM)
    client.create_topic(STREAM, TOPIC, 1)
    client.send(STREAM, TOPIC, 0, [b"kept"])
    sees(cluster, away, [b"kept"])


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("spoiled", ["log", "snapshot"])
def test_damaged_metadata_is_set_aside_and_comes_from_the_others(cluster: Cluster, spoiled: str) -> None:
    away, leader = follower_of(cluster), cluster.leader()
    (other,) = (node for node in cluster.nodes if node not in (away, leader))
    metadata = away.data / "metadata"
    with cluster.client(leader) as client:
        client.create_stream(STREAM)
        client.create_topic(STREAM, TOPIC, 1)
        client.send(STREAM, TOPIC, 0, [b"kept"])
        cluster.until(lambda: let_go(client, leader))
        client.create_stream("the last one")
        sees(cluster, away, [b"kept"])
        assert away.stop() == 0
        if spoiled == "log":
            flip(min((metadata / "log").glob("*.seg")), 40)
        else:
            flip(metadata / "snapshot.bin", 600)
        away.start()
        cluster.until(lambda: logged(away, "damaged metadata is set aside"))
        sees(cluster, away, [b"kept"])
        kept = [path.name for path in metadata.iterdir() if ".damaged-" in path.name]
        assert sorted(kept) == (["log.damaged-1"] if spoiled == "log" else ["log.damaged-1", "snapshot.bin.damaged-1"])
        other.kill()
        cluster.until(lambda: attempt(lambda: client.send(STREAM, TOPIC, 0, [b"of two, one of them healed"])))
        client.create_stream("of two, one of them healed")


def attempt(action: Callable[[], object]) -> bool:
    """Whether it was done now; a cluster that has just lost a node may say "not yet" or "not known"."""
    try:
        action()
    except Refused as refused:
        assert refused.code in (ErrorCode.TRANSIENT_NOT_ACCEPTED, ErrorCode.TRANSIENT_NOT_COMMITTED)
        return False
    return True


def strangers(cluster: Cluster, tmp_path: Path, **changes: object) -> ClusterNode:
    """A node that takes the place of a follower that was stopped, with another configuration and no data."""
    away = follower_of(cluster)
    assert away.stop() == 0
    tree = tomllib.loads((tmp_path / "cluster.toml").read_text())
    tree["cluster"] |= changes
    path = tmp_path / "another.toml"
    path.write_text(to_toml(tree))
    return ClusterNode(tmp_path / "stranger", away.number, path, away.port, ("--shards", "2"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"auth": {"enabled": True, "shared_secret": SECRET[::-1]}}, "another cluster.auth.shared_secret"),
        ({"auth": {"enabled": False}}, "cluster.auth.enabled differs"),
        ({"name": "another"}, "another cluster"),
    ],
)
def test_who_must_not_join_is_refused_by_name_on_both_sides(
    cluster: Cluster, tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    stranger = strangers(cluster, tmp_path, **changes)
    try:
        stranger.start()
        rest = [node for node in cluster.nodes if node.number != stranger.number]
        # It has no data either: which of the two a node meets first depends on who of them dials.
        reasons = (reason, "comes back with another data directory")
        cluster.until(
            lambda: (
                logged(stranger, reason)
                and all(any(logged(node, each) for each in reasons) for node in rest)
                and any(logged(node, reason) for node in rest)
            )
        )
        with cluster.client(cluster.leader(rest)) as client:
            client.create_stream(STREAM)
    finally:
        stranger.kill()


def test_another_number_of_shards_is_refused(cluster: Cluster) -> None:
    away = follower_of(cluster)
    assert away.stop() == 0
    away.arguments[away.arguments.index("--shards") + 1] = "3"
    away.start()
    cluster.until(lambda: logged(away, "another number of shards"))


def test_another_root_user_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    stranger = strangers(cluster, tmp_path)
    stranger.environment["IGGY_ROOT_PASSWORD"] = "another password"
    try:
        stranger.start()
        cluster.until(lambda: logged(stranger, "began with another root user"))
    finally:
        stranger.kill()


def test_a_node_that_comes_back_empty_is_refused_until_its_data_is_back(cluster: Cluster, tmp_path: Path) -> None:
    away = follower_of(cluster)
    with cluster.client(cluster.leader()) as client:
        keep_one(cluster, client, away)
        assert away.stop() == 0
        away.data.rename(tmp_path / "kept")
        away.start()
        rest = [node for node in cluster.nodes if node is not away]
        reason = "comes back with another data directory"
        cluster.until(lambda: logged(away, reason) and all(logged(node, reason) for node in rest))
        assert away.stop() == 0
        away.data.rename(tmp_path / "empty")
        (tmp_path / "kept").rename(away.data)
        away.start()
        client.send(STREAM, TOPIC, 0, [b"more"])
    sees(cluster, away, [b"kept", b"more"])
