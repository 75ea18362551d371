"""A group that begins in a later view than 0: who its creator was told leads does; nobody was earlier."""

from __future__ import annotations

from shardsrv.vsr.status import NORMAL
from shardsrv.vsr.trust import DiskFacts
from tests.support.vsr_cluster import Cluster, Disk

VIEW = 4
LEADER = 1


def born(late: int | None = None, view: int = VIEW) -> Cluster:
    """Three members of a group made in ``view``; member ``late`` has not made it yet."""
    cluster = Cluster()
    cluster.wire.clear()
    for node in cluster.nodes:
        node.disk, node.up = Disk(), False
        if node.index != late:
            node.boot(DiskFacts(fresh=True, born_view=view))
    cluster.run(5)
    return cluster


def test_the_leader_of_that_view_serves_at_once() -> None:
    cluster = born()
    assert cluster.primary().index == LEADER
    cluster.commit(b"first", durability=1)
    assert {node.replica.view for node in cluster.nodes} == {VIEW}
    assert all(node.disk.state.view == node.disk.state.log_view == VIEW for node in cluster.nodes)


def test_a_member_that_comes_late_follows_a_view_that_was_elected_meanwhile() -> None:
    cluster = born(late=LEADER)
    cluster.run_until(cluster.has_primary)
    assert cluster.primary().replica.view > VIEW
    cluster.commit(b"without it")
    cluster.nodes[LEADER].boot(DiskFacts(fresh=True, born_view=VIEW))
    cluster.run_until(cluster.settled)
    assert cluster.nodes[LEADER].plane.applied == [b"without it"]


def test_a_member_that_restarts_asks_who_leads_like_any_other() -> None:
    cluster = born()
    cluster.commit(b"first")
    node = cluster.nodes[LEADER]
    node.kill()
    node.boot(DiskFacts(born_view=VIEW))
    assert node.replica.status != NORMAL
    cluster.run_until(cluster.settled)
    cluster.commit(b"second")


def test_a_member_whose_directory_was_lost_claims_nothing_of_that_view() -> None:
    cluster = born()
    cluster.commit(b"first", durability=1)
    node = cluster.nodes[LEADER]
    node.kill()
    node.disk = Disk()
    node.boot(DiskFacts(lost=True, born_view=VIEW))
    assert (node.replica.view, node.replica.leads) == (0, False)
    assert node.replica.suspect
