"""Clusters under seeded trouble: loss, delay, doubling, kills, power losses, broken superblocks. Nothing acknowledged
is lost, nothing has two contents, and once the trouble ends the cluster comes together."""

from __future__ import annotations

import random

import pytest

from shardsrv.vsr.trust import DiskFacts
from tests.support.vsr_cluster import Cluster


def blackout(cluster: Cluster, dice: random.Random) -> None:
    """All lose power at once and come back. What was acknowledged as persisted is still there, and so is all before it;
    of the rest, what no disk kept may be another entry from now on."""
    kept = max((op for op, durability in cluster.durability.items() if durability), default=0)
    facts = [node.lose_power(dice.randint(0, 1)) for node in cluster.nodes if node.up]
    up = [node for node in cluster.nodes if node.disk.state is not None]
    for op in [op for op in cluster.content if op > kept]:
        del cluster.content[op]
        cluster.acknowledged.pop(op, None)
    cluster.wire = []
    for node, fact in zip(up, facts, strict=False):
        node.boot(fact)


def trouble(seed: int, members: int, steps: int = 400, power: bool = True, blackouts: bool = False) -> Cluster:
    """One run of a cluster; raises where a check does not hold."""
    dice = random.Random(seed)
    cluster = Cluster(members)
    loss, double, slow = dice.choice((0.0, 0.02, 0.1)), dice.choice((0.0, 0.05)), dice.choice((1, 3, 12))
    cluster.superblock_ticks = dice.choice((1, 1, 4))
    down: dict[int, DiskFacts | None] = {}

    def network(source: int, target: int, frame: bytes) -> int | None:
        if dice.random() < double:
            cluster.wire.append((cluster.now + dice.randint(1, 40), source, target, frame))
        return None if dice.random() < loss else dice.randint(1, slow)

    cluster.filter = network
    tolerated = (members - 1) // 2
    count = 0
    for _ in range(steps):
        cluster.tick()
        chance = dice.random()
        if chance < 0.3:
            count += 1
            leaders = [n for n in cluster.nodes if n.up and n.replica.leads and n.replica.accepts()]
            if leaders:
                at = dice.choice(leaders).index
                cluster.request(count.to_bytes(8, "little"), at=at, durability=dice.randint(0, 1))
        elif chance < 0.315 and len(down) < tolerated:
            node = dice.choice([node for node in cluster.nodes if node.up])
            if power and dice.random() < 0.4:
                down[node.index] = node.lose_power(dice.randint(0, 2))
            else:
                node.kill()
                down[node.index] = DiskFacts(clean=False, synced_op=0, head_op=node.disk.highest)
        elif chance < 0.34 and down:
            index = dice.choice(sorted(down))
            cluster.nodes[index].boot(down.pop(index))
        elif chance < 0.345:
            cluster.cut = frozenset([dice.randrange(members)])
        elif chance < 0.37:
            cluster.cut = frozenset()
        elif chance < 0.38 and blackouts and not down:
            blackout(cluster, dice)
        elif chance < 0.382:
            node = dice.choice(cluster.nodes)
            node.broken_superblock = not node.broken_superblock
    cluster.cut = frozenset()
    cluster.filter = lambda source, target, frame: 1
    for node in cluster.nodes:
        node.broken_superblock = False
        if not node.up:
            node.boot(down.get(node.index))
    cluster.settle(3000)
    return cluster


@pytest.mark.parametrize("members", [2, 3, 4, 5])
@pytest.mark.parametrize("seed", range(6))
def test_nothing_acknowledged_is_lost_and_the_cluster_comes_together(seed: int, members: int) -> None:
    cluster = trouble(seed, members)
    cluster.commit(b"at the end")


@pytest.mark.parametrize("members", [2, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_what_was_persisted_outlives_the_power_of_all(seed: int, members: int) -> None:
    cluster = trouble(seed, members, blackouts=True)
    cluster.commit(b"at the end")


def test_the_runs_had_their_trouble() -> None:
    clusters = [trouble(seed, 3) for seed in range(20, 26)]
    assert any(cluster.acknowledged for cluster in clusters)
    assert max(node.replica.view for cluster in clusters for node in cluster.nodes) > 1
    assert sum(node.boots - 1 for cluster in clusters for node in cluster.nodes) > 5
