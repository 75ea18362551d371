"""Members of a group in normal operation: fan-out, acknowledgements, commits, loss, order, clocks, strangers."""

from __future__ import annotations

import pytest

from tests.support.vsr_cluster import Cluster


@pytest.mark.parametrize("members", [2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("durability", [0, 1])
def test_entries_commit_on_every_member(members: int, durability: int) -> None:
    cluster = Cluster(members)
    cluster.commit(b"a" * 8, b"b" * 8, b"c" * 8, durability=durability)
    assert all(node.replica.commit_min == 3 for node in cluster.nodes)
    assert all(node.replica.dropped == {} for node in cluster.nodes)
