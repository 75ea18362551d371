"""Restarts: probing, the nonce, trust after a loss of power, lost directories, the whole cluster at once."""

from __future__ import annotations

from typing import Any

import pytest

from shardsrv.vsr.events import Message
from shardsrv.vsr.frames import body_fields, decode_frame
from shardsrv.vsr.sending import view_durable
from shardsrv.vsr.status import NORMAL, RECOVERING, VIEW_CHANGE
from shardsrv.vsr.trust import SUSPECT, TRUSTED, DiskFacts, judge
from shardsrv.wire.constants import Command
from shardsrv.wire.replica_headers import RequestStartViewHeader, StartViewHeader
from tests.support.vsr_cluster import CLUSTER, GROUP, Cluster, Node

BODIES = (b"a", b"b", b"c")


def started(members: int = 3, **more: Any) -> Cluster:
    cluster = Cluster(members, **more)
    cluster.commit(*BODIES, durability=1)
    cluster.settle()
    return cluster


def sent_by(cluster: Cluster, node: Node, since: int) -> set[int]:
    return {kind for tick, source, kind in cluster.sent if source == node.index and tick > since}


def test_a_member_that_restarts_asks_and_neither_votes_nor_acknowledges_until_it_is_told() -> None:
    cluster = started()
    node = cluster.nodes[1]
    node.kill()
    cluster.filter = lambda source, target, frame: None if frame[60] == Command.START_VIEW else 1
    since = cluster.now
    node.boot()
    assert node.replica.status == RECOVERING
    cluster.request(b"d")
    cluster.run(8)
    cluster.run(4)
    assert sent_by(cluster, node, since) == {Command.REQUEST_START_VIEW}
    cluster.filter = lambda source, target, frame: 1
    cluster.settle()
    assert node.replica.status == NORMAL and node.replica.commit_min == 4


def test_a_restarted_primary_does_not_resume_its_view() -> None:
    cluster = started()
    cluster.nodes[0].kill()
    cluster.nodes[0].boot()
    cluster.run(3)
    assert cluster.nodes[0].replica.status == RECOVERING and not cluster.nodes[0].replica.leads
    assert cluster.nodes[1].replica.status == VIEW_CHANGE, "its question starts the election at once"
    assert cluster.nodes[1].replica.member.election.reason == "the primary restarted"
    cluster.settle()
    assert cluster.primary().index == 1


def in_view_1() -> Cluster:
    """Three members in view 1; all that their logs hold was born in view 0."""
    cluster = started()
    cluster.nodes[0].kill()
    cluster.settle()
    cluster.nodes[0].boot()
    cluster.settle()
    assert {node.replica.view for node in cluster.nodes} == {1}
    return cluster


def test_a_member_begins_in_the_view_of_its_record_and_not_in_that_of_its_last_entry() -> None:
    """S0-05: it voted in view 1 and never votes in it, nor in an earlier one, again."""
    cluster = in_view_1()
    node = cluster.nodes[2]
    assert node.disk.log[-1].view == 0
    node.kill()
    cluster.cut = frozenset([2])
    node.boot()
    assert (node.replica.view, node.replica.log_view) == (1, 1)
    cluster.run_until(lambda: node.replica.status == VIEW_CHANGE)
    assert node.replica.view == 2, "nobody answered: it calls for a view that it was never in"


def test_a_member_whose_record_cannot_be_written_asks_all_the_same() -> None:
    """S0-26: a question vouches for nothing; everything else waits for the record."""
    cluster = in_view_1()
    node = cluster.nodes[2]
    node.kill()
    node.disk.log = []
    node.broken_superblock = True
    cluster.filter = lambda source, target, frame: None if source == 2 else 1
    since = cluster.now
    node.boot(DiskFacts(lost=True))
    cluster.run(80)
    assert not view_durable(node.replica), "the log view that its log had earned is to be taken back, and is not"
    assert node.replica.status == VIEW_CHANGE, "it gave up asking"
    assert sent_by(cluster, node, since - 1) == {Command.REQUEST_START_VIEW}


@pytest.mark.parametrize("members", [2, 3, 5])
@pytest.mark.parametrize("power", [False, True])
def test_a_whole_cluster_comes_back_with_what_was_persisted(members: int, power: bool) -> None:
    cluster = Cluster(members)
    cluster.commit(*BODIES, durability=1)
    facts: list[Any] = []
    for node in cluster.nodes:
        facts.append(node.lose_power() if power else node.kill())
    for node, fact in zip(cluster.nodes, facts, strict=True):
        node.boot(fact)
    assert not any(node.replica.member.suspect for node in cluster.nodes), "all that was acknowledged is synced"
    cluster.settle()
    assert cluster.primary().plane.applied == list(BODIES)
    cluster.commit(b"d")


@pytest.mark.parametrize("members", [2, 3, 5])
def test_a_whole_cluster_that_lost_power_keeps_every_entry_of_which_a_copy_is_left(members: int) -> None:
    cluster = Cluster(members)
    cluster.commit(*BODIES, durability=1)
    cluster.commit(b"d", b"e", durability=0)
    facts = [node.lose_power(keep=1 if node.index == members - 1 else 0) for node in cluster.nodes]
    cluster.acknowledged.clear()  # the window of a replicated acknowledgement does not outlive the power of all
    del cluster.content[5]
    for node, fact in zip(cluster.nodes, facts, strict=True):
        node.boot(fact)
    assert all(node.replica.member.suspect for node in cluster.nodes)
    cluster.settle(4000)
    assert cluster.primary().plane.applied == [*BODIES, b"d"]
    assert not any(node.replica.member.suspect for node in cluster.nodes)
    cluster.commit(b"f")


def test_a_suspect_is_silent_until_it_holds_what_the_primary_had_when_it_asked() -> None:
    cluster = started()
    cluster.nodes[2].kill()
    node = cluster.nodes[1]
    cluster.filter = lambda source, target, frame: None if frame[60] == Command.PREPARE_OK else 1
    cluster.request(b"d", durability=0)
    cluster.request(b"e", durability=0)
    cluster.run(3)
    facts = node.lose_power()
    assert (facts.head_op, facts.synced_op) == (5, 3), "it lost what it had acknowledged"

    def without_the_last(source: int, target: int, frame: bytes) -> int | None:
        body = frame[60] in (Command.REPAIR_PREPARE, Command.PREPARE)
        return None if body and int.from_bytes(frame[176:184], "little") == 5 else 1

    cluster.filter = without_the_last
    since = cluster.now
    node.boot(facts)
    cluster.run(20)
    assert node.head == 4 and node.disk.log[-1].op == 4
    assert node.replica.member.suspect and node.replica.status == NORMAL
    assert not {Command.PREPARE_OK, Command.DO_VIEW_CHANGE} & sent_by(cluster, node, since)
    cluster.filter = lambda source, target, frame: 1
    cluster.settle()
    cluster.run_until(lambda: not node.replica.member.suspect, 50)
    assert node.replica.commit_min == 5


def test_a_power_lost_member_does_not_vote_an_acknowledged_entry_away() -> None:
    """Members 0 and 1 acknowledged the entry; 1 loses power and its copy, then 0 is cut off: 1 and 2 must not decide
    without it."""
    cluster = started()
    cluster.cut = frozenset([2])
    origin = cluster.request(b"d", durability=0)
    cluster.run_until(lambda: cluster.origins[origin] > 0)
    facts = cluster.nodes[1].lose_power()
    assert facts.synced_op == 3
    cluster.cut = frozenset([0])
    cluster.nodes[1].boot(facts)
    cluster.run(600)
    assert not any(node.replica.leads for node in cluster.nodes[1:]), "the two would lose it"
    cluster.cut = frozenset()
    cluster.settle()
    assert cluster.primary().plane.applied == [*BODIES, b"d"]


def test_a_killed_member_keeps_its_vote() -> None:
    cluster = started()
    cluster.cut = frozenset([2])
    origin = cluster.request(b"d", durability=0)
    cluster.run_until(lambda: cluster.origins[origin] > 0)
    cluster.nodes[1].kill()
    cluster.cut = frozenset([0])
    cluster.nodes[1].boot(DiskFacts(clean=False, synced_op=3, head_op=4))
    cluster.run_until(lambda: any(node.replica.leads for node in cluster.nodes[1:]))
    assert max(cluster.nodes[1:], key=lambda node: node.replica.leads).replica.commit_max >= 3
    cluster.cut = frozenset()
    cluster.settle()
    assert cluster.primary().plane.applied == [*BODIES, b"d"]


def start_view(node: Node, view: int, op: int, echo: int, sender: int, body: bytes = b"") -> dict[str, int]:
    header = StartViewHeader(
        cluster=CLUSTER,
        replica=sender,
        view=view,
        group=GROUP,
        created_revision=7,
        op=op,
        commit=0,
        incarnation=echo,
        **body_fields(body),
    )
    node.step(Message(sender, header, body, 0))
    return dict(node.replica.dropped)


def probing() -> Node:
    cluster = started()
    node = cluster.nodes[1]
    node.kill()
    cluster.filter = lambda source, target, frame: None
    cluster.wire = []
    node.boot()
    assert node.replica.status == RECOVERING and node.head == 3
    return node


@pytest.mark.parametrize(
    ("view", "op", "echo", "adopted"),
    [
        (0, 2, "another", False),  # an answer to an earlier life
        (0, 2, "own", True),
        (0, 3, "another", True),  # its head is not behind ours
        (2, 2, "another", True),  # a later view
        (0, 2, "none", True),  # no claim: judged by the other rules
    ],
)
def test_which_start_view_a_probing_member_takes(view: int, op: int, echo: str, adopted: bool) -> None:
    node = probing()
    nonce = {"own": node.replica.member.nonce, "another": 12345, "none": 0}[echo]
    start_view(node, view, op, nonce, view % 3)
    assert (node.replica.status == NORMAL) == adopted
    assert node.head == (2 if view else 3), "a frame of the own log view never shortens the log"


@pytest.mark.parametrize(
    ("sender", "view", "reason"),
    [
        (2, 0, "sender does not lead the view"),
        (1, 1, "no such member"),
        (9, 0, "no such member"),
    ],
)
def test_a_start_view_that_is_not_adopted_changes_nothing(sender: int, view: int, reason: str) -> None:
    node = probing()
    before = (node.replica.view, node.replica.status, node.head)
    assert start_view(node, view, 3, 0, sender) == {reason: 1}
    assert (node.replica.view, node.replica.status, node.head) == before


def test_an_older_view_is_not_adopted() -> None:
    cluster = started()
    cluster.nodes[0].kill()
    cluster.settle()
    node = cluster.nodes[2]
    start_view(node, 0, 9, 0, 0)
    assert node.replica.dropped["older view"] >= 1 and node.replica.view == 1


def test_only_the_leading_primary_answers_and_echoes() -> None:
    cluster = started()
    question = RequestStartViewHeader(
        cluster=CLUSTER, replica=2, view=0, group=GROUP, created_revision=7, incarnation=4711, member=99
    )
    cluster.nodes[0].step(Message(2, question, b"", 0))
    cluster.run_until(lambda: any(frame[60] == Command.START_VIEW for _, _, _, frame in cluster.wire), 10)
    (answer,) = [decode_frame(frame)[0] for _, _, _, frame in cluster.wire if frame[60] == Command.START_VIEW]
    assert (answer.incarnation, answer.op) == (4711, 3)
    assert cluster.nodes[1].step(Message(2, question, b"", 0)) == []
    assert cluster.nodes[0].replica.member.incarnations[2] == 99


def test_a_lost_directory_is_no_new_voter() -> None:
    cluster = started()
    node = cluster.nodes[1]
    node.kill()
    node.disk.log = []
    node.boot(DiskFacts(lost=True))
    assert node.replica.status == RECOVERING and node.replica.log_view == 0
    cluster.nodes[2].kill()
    cluster.filter = lambda source, target, frame: None if frame[60] == Command.REPAIR_PREPARE else 1
    since = cluster.now
    cluster.request(b"d")
    cluster.run(40)
    assert Command.PREPARE_OK not in sent_by(cluster, node, since)
    assert cluster.nodes[0].replica.commit_min == 3, "nothing commits with its help"
    cluster.filter = lambda source, target, frame: 1
    cluster.settle()
    assert node.plane.applied == [*BODIES, b"d"] and not node.replica.member.lost


def test_a_lost_directory_beside_a_dead_primary_waits_for_the_third() -> None:
    cluster = started()
    cluster.nodes[1].kill()
    cluster.nodes[1].disk.log = []
    cluster.cut = frozenset([0])
    cluster.nodes[1].boot(DiskFacts(lost=True))
    cluster.run(500)
    assert not any(node.replica.leads for node in cluster.nodes[1:])
    cluster.cut = frozenset()
    cluster.settle()
    assert cluster.primary().plane.applied == list(BODIES)


def test_a_restarted_member_applies_only_what_is_known_to_be_committed() -> None:
    cluster = started()
    cluster.cut = frozenset([1, 2])
    cluster.request(b"d", at=0)
    cluster.run(3)
    cluster.nodes[0].kill()
    cluster.nodes[0].boot()
    replica = cluster.nodes[0].replica
    assert replica.head_op == 4 and replica.commit_min == 3, "the head of the log may be nobody else's"
    cluster.cut = frozenset()
    cluster.settle()


@pytest.mark.parametrize(
    ("members", "facts", "verdict"),
    [
        (1, DiskFacts(lost=True, fenced=True, clean=False, same_boot=False), TRUSTED),
        (3, DiskFacts(lost=True), SUSPECT),
        (3, DiskFacts(fenced=True), SUSPECT),
        (3, DiskFacts(clean=True, same_boot=False), TRUSTED),
        (3, DiskFacts(clean=False, same_boot=True, synced_op=1, head_op=5), TRUSTED),
        (3, DiskFacts(clean=False, same_boot=False, synced_op=5, head_op=5), TRUSTED),
        (3, DiskFacts(clean=False, same_boot=False, synced_op=4, head_op=5), SUSPECT),
        (3, DiskFacts(clean=False, same_boot=False, synced_op=5, head_op=5, cut=True), SUSPECT),
    ],
)
def test_trust_by_what_the_disk_says(members: int, facts: DiskFacts, verdict: str) -> None:
    assert judge(members, facts) == verdict


def test_the_vote_of_an_earlier_incarnation_does_not_elect() -> None:
    """Member 2 voted, was wiped and came back as another incarnation; its old vote arrives only then."""
    cluster = started()
    held: list[tuple[int, int, bytes]] = []

    def hold_votes(source: int, target: int, frame: bytes) -> int | None:
        if frame[60] == Command.DO_VIEW_CHANGE and source == 2:
            held.append((source, target, frame))
            return None
        return 1

    cluster.filter = hold_votes
    cluster.nodes[0].kill()
    cluster.run_until(lambda: bool(held))
    node = cluster.nodes[2]
    node.kill()
    node.disk.log, node.disk.state = [], None
    node.boot(DiskFacts(lost=True))
    cluster.run(3)
    candidate = cluster.nodes[1].replica
    assert candidate.view == 1 and candidate.status == VIEW_CHANGE
    assert candidate.member.incarnations[2] == node.boots, "the probe told of the new incarnation"
    source, target, frame = held[0]
    header, body = decode_frame(frame)
    cluster.nodes[target].step(Message(source, header, body, 0))
    assert 2 in candidate.member.election.votes
    cluster.run(5)
    assert not candidate.leads, "what the old incarnation held is gone"
    cluster.filter = lambda source, target, frame: 1
    cluster.nodes[0].boot()
    cluster.settle(4000)
    assert node.plane.applied == list(BODIES)


def test_a_vote_that_was_not_wiped_away_does_elect() -> None:
    cluster = started()
    cluster.nodes[0].kill()
    cluster.run_until(lambda: cluster.nodes[1].replica.leads)


def test_a_group_that_was_just_made_asks_nobody() -> None:
    """Metadata is made with its first record before the replica is: the driver says that it is new."""
    from shardsrv.vsr.policy import metadata_policy
    from shardsrv.vsr.replica import GroupIdentity, Replica
    from shardsrv.vsr.state import VsrState
    from tests.support.vsr_cluster import LedgerPlane

    def made(**facts: Any) -> Replica:
        identity = GroupIdentity(CLUSTER, 1 << 63, 0, 0, 3)
        state = VsrState(CLUSTER, 0, 3, incarnation=5, **facts)
        replica = Replica.recover(identity, metadata_policy(), LedgerPlane(), state, disk=DiskFacts(fresh=True))
        replica.start()
        return replica

    assert made().leads and made().status == NORMAL
    assert made(view=1).status == RECOVERING, "a group that was in a view is not new, whatever is said"
