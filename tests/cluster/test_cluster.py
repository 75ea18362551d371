"""Three real nodes over real sockets: any node serves, any one may go, nothing acknowledged is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.client import Client, Refused
from tests.support.cluster import Cluster, ClusterNode, roster
from tests.support.frames import ConnectionLost

STREAM, TOPIC = "s", "t"
HEALTHY, UNREACHABLE = 0, 3
PARTITIONS = 5


@pytest.fixture
def shards() -> int:
    """Shards of each node."""
    return 2


@pytest.fixture
def cluster(tmp_path: Path, shards: int) -> Iterator[Cluster]:
    with Cluster(tmp_path, arguments=("--shards", str(shards))) as running:
        yield running


def payloads(client: Client, partition: int = 0) -> list[bytes]:
    return [message.payload for message in client.poll_all(STREAM, TOPIC, partition)]


def sees(cluster: Cluster, node: ClusterNode, expected: list[bytes], partition: int = 0) -> None:
    """Wait until ``node`` itself serves exactly these messages."""
    with cluster.client(node) as client:

        def look() -> bool:
            try:
                return payloads(client, partition) == expected
            except Refused:
                return False

        cluster.until(look)


def send(cluster: Cluster, node: ClusterNode, payload: bytes, partition: int = 0) -> None:
    """Send until it is acknowledged, as a client with reconnection does; what is asked again is the same request."""

    def once() -> bool:
        try:
            with node.client(timeout=10.0) as client:
                client.send(STREAM, TOPIC, partition, [payload])
        except (OSError, ConnectionLost, Refused):
            return False
        return True

    cluster.until(once)


@pytest.mark.parametrize("shards", [2, 4])
def test_any_node_serves_everything(cluster: Cluster) -> None:
    leader = cluster.leader()
    others = [node for node in cluster.nodes if node is not leader]
    with cluster.client(others[0]) as client:
        client.create_stream(STREAM)
        client.create_topic(STREAM, TOPIC, PARTITIONS)
        for partition in range(1, PARTITIONS):
            assert client.send(STREAM, TOPIC, partition, [b"partition %d" % partition]) == 0
        assert [role for _, role, _ in roster(client)].count(0) == 1
        assert [client.send(STREAM, TOPIC, 0, [b"by the first"]), client.send(STREAM, TOPIC, 0, [b"again"])] == [0, 1]
        client.store_offset(STREAM, TOPIC, 0, 1)
    with cluster.client(others[1]) as client:
        assert client.send(STREAM, TOPIC, 0, [b"by the second"]) == 2
        with pytest.raises(Refused) as refused:
            client.create_stream(STREAM)
        assert refused.value.code == 1012
    everything = [b"by the first", b"again", b"by the second"]
    for node in cluster.nodes:
        sees(cluster, node, everything)
        for partition in range(1, PARTITIONS):
            sees(cluster, node, [b"partition %d" % partition], partition)
    with cluster.client(leader) as client:
        assert client.get_offset(STREAM, TOPIC, 0) == 1
        client.delete_stream(STREAM)
    for node in others:
        with cluster.client(node) as client:
            cluster.until(lambda client=client: not known(client))


def known(client: Client) -> bool:
    try:
        client.poll(STREAM, TOPIC, 0)
    except Refused:
        return False
    return True


def test_a_send_between_two_primaries_waits_for_the_next(cluster: Cluster) -> None:
    leader = cluster.leader()
    follower = next(node for node in cluster.nodes if node is not leader)
    with cluster.client(follower) as client:
        client.create_stream(STREAM)
        client.create_topic(STREAM, TOPIC, 1)
        assert client.send(STREAM, TOPIC, 0, [b"before"]) == 0
        leader.kill()
        cluster.until(lambda: roster(client)[leader.number][2] == UNREACHABLE)
        assert client.send(STREAM, TOPIC, 0, [b"nobody leads yet"]) == 1
        assert client.create_topic(STREAM, "another", 1) == 1
        assert payloads(client) == [b"before", b"nobody leads yet"]


def test_a_killed_follower_misses_nothing(cluster: Cluster) -> None:
    leader = cluster.leader()
    follower = next(node for node in cluster.nodes if node is not leader)
    with cluster.client(leader) as client:
        client.create_stream(STREAM)
        client.create_topic(STREAM, TOPIC, 1)
        client.send(STREAM, TOPIC, 0, [b"before"])
        follower.kill()
        client.send(STREAM, TOPIC, 0, [b"meanwhile"])
        client.create_topic(STREAM, "made meanwhile", 1)
        cluster.until(lambda: roster(client)[follower.number][2] == UNREACHABLE)
        follower.start()
        cluster.until(lambda: roster(client)[follower.number][2] == HEALTHY)
        client.send(STREAM, TOPIC, 0, [b"after"])
    sees(cluster, follower, [b"before", b"meanwhile", b"after"])
    with cluster.client(follower) as client:
        cluster.until(lambda: client.send(STREAM, "made meanwhile", 0, [b"there"]) == 0)


def test_a_killed_leader_is_followed_by_another_that_has_everything(cluster: Cluster) -> None:
    first = cluster.leader()
    with cluster.client(first) as client:
        client.create_stream(STREAM)
        client.create_topic(STREAM, TOPIC, 2)
        for number in range(20):
            client.send(STREAM, TOPIC, number % 2, [b"%d" % number])
    first.kill()
    rest = [node for node in cluster.nodes if node is not first]
    second = cluster.leader(rest)
    assert second is not first
    for partition in (0, 1):
        send(cluster, rest[0], b"after", partition)
    expected = [[*(b"%d" % number for number in range(start, 20, 2)), b"after"] for start in (0, 1)]
    for node in rest:
        for partition in (0, 1):
            sees(cluster, node, expected[partition], partition)
    with cluster.client(second) as client:
        client.create_topic(STREAM, "made by the second", 1)
        assert client.send(STREAM, "made by the second", 0, [b"at once"]) == 0, "who made it leads it"
    first.start()
    for partition in (0, 1):
        sees(cluster, first, expected[partition], partition)
    assert cluster.leader() is second


def test_all_nodes_stop_and_start_again(cluster: Cluster) -> None:
    with cluster.client(cluster.leader()) as client:
        client.create_stream(STREAM)
        client.create_topic(STREAM, TOPIC, 1)
        client.send(STREAM, TOPIC, 0, [b"kept"])
    for node in cluster.nodes:
        assert node.stop() == 0
    for node in cluster.nodes:
        node.launch()
    for node in cluster.nodes:
        node.await_service()
    cluster.leader()
    send(cluster, cluster.nodes[0], b"more")
    for node in cluster.nodes:
        sees(cluster, node, [b"kept", b"more"])


def test_a_leader_that_stops_lets_another_lead_at_once(tmp_path: Path) -> None:
    patient = {"heartbeat_timeout": "60 s", "view_change_status_timeout": "10 s"}
    with Cluster(tmp_path, waits=patient) as cluster:
        first = cluster.leader()
        with cluster.client(first) as client:
            client.create_stream(STREAM)
            client.create_topic(STREAM, TOPIC, 1)
            client.send(STREAM, TOPIC, 0, [b"before"])
        assert first.stop() == 0
        rest = [node for node in cluster.nodes if node is not first]
        assert cluster.leader(rest, timeout=20.0) is not first
        send(cluster, rest[0], b"after")
        sees(cluster, rest[1], [b"before", b"after"])
