"""View changes of real replicas: the primary ends at each step, frames are lost, suffixes differ, old primaries come
back."""

from __future__ import annotations

import pytest

from shardsrv.vsr.merge import Decided
from shardsrv.vsr.status import NORMAL, VIEW_CHANGE
from shardsrv.vsr.suffix import vote_frame
from shardsrv.wire.constants import Command
from shardsrv.wire.replica_bodies import decode_suffix
from tests.support.vsr_cluster import SEND, Cluster, Node


def command(frame: bytes) -> int:
    return frame[60]


def start_with(cluster: Cluster, *bodies: bytes) -> None:
    cluster.commit(*bodies)
    cluster.settle()


@pytest.mark.parametrize("durability", [0, 1])
@pytest.mark.parametrize("members", [3, 5])
@pytest.mark.parametrize("after", range(9))
def test_the_primary_ends_at_each_step_of_an_entry(members: int, after: int, durability: int) -> None:
    cluster = Cluster(members)
    start_with(cluster, b"a", b"b")
    origin = cluster.request(b"c", durability=durability)
    cluster.run(after)
    answered = cluster.origins[origin]
    cluster.nodes[0].kill()
    cluster.settle()
    follower = cluster.primary()
    assert follower.index == 1 and follower.replica.view == 1
    if answered:
        assert follower.replica.commit_min >= answered
    cluster.commit(b"d")
    cluster.nodes[0].boot()
    cluster.settle()
    assert cluster.nodes[0].plane.applied[-1] == b"d"


@pytest.mark.parametrize("members", [3, 4, 5, 7])
def test_a_candidate_that_ends_at_each_step_is_passed_over(members: int) -> None:
    for after in range(0, 24, 3):
        cluster = Cluster(members)
        start_with(cluster, b"a")
        cluster.request(b"b")
        cluster.nodes[0].kill()
        cluster.run_until(lambda cluster=cluster: cluster.nodes[1].replica.status == VIEW_CHANGE)
        cluster.run(after)
        cluster.nodes[1].kill()
        if members < 5:
            cluster.nodes[0].boot()
        cluster.settle()
        assert cluster.primary().index not in (1,)
        cluster.nodes[1].boot()
        cluster.commit(b"c")
        assert all(node.plane.applied[0] == b"a" for node in cluster.nodes if node.up)


@pytest.mark.parametrize(
    "lost",
    [
        Command.START_VIEW_CHANGE,
        Command.DO_VIEW_CHANGE,
        Command.START_VIEW,
        Command.REQUEST_PREPARES,
        Command.REPAIR_PREPARE,
        Command.REPAIR_DONE,
        Command.PREPARE_OK,
        Command.PREPARE,
        Command.COMMIT,
    ],
)
def test_the_first_frames_of_a_kind_are_lost(lost: int) -> None:
    cluster = Cluster(3)
    start_with(cluster, b"a")
    dropped = []

    def first_five(source: int, target: int, frame: bytes) -> int | None:
        if command(frame) == lost and len(dropped) < 5:
            dropped.append(frame)
            return None
        return 1

    cluster.nodes[2].kill()
    cluster.commit(*(bytes([n]) for n in range(6)), everywhere=False)
    cluster.filter = first_five
    cluster.nodes[2].boot()
    cluster.commit(b"b", everywhere=False)
    cluster.nodes[0].kill()
    cluster.settle()
    cluster.commit(b"c")
    assert dropped, "the fault occurred"


def test_an_entry_that_only_the_old_primary_has_is_cut_when_it_comes_back() -> None:
    cluster = Cluster(3)
    start_with(cluster, b"a")
    cluster.cut = frozenset([0])
    cluster.request(b"only here", at=0)
    cluster.request(b"here too", at=0)
    cluster.run_until(lambda: any(node.replica.leads for node in cluster.nodes[1:]))
    cluster.commit(b"b", b"c", b"d", everywhere=False)
    old = cluster.nodes[0]
    assert [bytes(entry.body) for entry in old.disk.log] == [b"a", b"only here", b"here too"]
    cluster.cut = frozenset()
    cluster.settle()
    assert [bytes(entry.body) for entry in old.disk.log] == [b"a", b"b", b"c", b"d"]
    assert ("refused", (0, b"only here"), 57) in old.answers, "its outcome was unknown to its client"


def test_what_a_majority_holds_survives_although_nobody_knew_it_committed() -> None:
    """The entry reached one backup, whose acknowledgement was lost with the primary."""
    cluster = Cluster(3)
    start_with(cluster, b"a")
    cluster.filter = lambda source, target, frame: (
        None if command(frame) == Command.PREPARE_OK or (command(frame) == Command.PREPARE and target == 1) else 1
    )
    cluster.request(b"b")
    cluster.run(3)
    assert cluster.nodes[2].head == 2 and cluster.nodes[1].head == 1
    cluster.nodes[0].kill()
    cluster.filter = lambda source, target, frame: 1
    cluster.settle()
    assert cluster.primary().index == 1, "the candidate had to fetch the entry first"
    assert cluster.primary().plane.applied == [b"a", b"b"]


def test_uncommitted_suffixes_of_two_views_meet() -> None:
    """Member 0 has an entry of view 0, member 1 one of view 1 at the same op; both were cut off before anybody else
    had it."""
    cluster = Cluster(5)
    start_with(cluster, b"a")
    cluster.cut = frozenset([0])
    cluster.request(b"view 0", at=0)
    cluster.run_until(lambda: cluster.nodes[1].replica.leads)
    cluster.run(20)
    cluster.cut = frozenset([0, 1])
    cluster.request(b"view 1", at=1)
    cluster.run_until(lambda: cluster.nodes[2].replica.leads)
    assert cluster.nodes[0].disk.log[1].checksum != cluster.nodes[1].disk.log[1].checksum
    cluster.cut = frozenset()
    cluster.settle()
    cluster.commit(b"view 2")
    for node in cluster.nodes:
        assert [bytes(entry.body) for entry in node.disk.log][-1] == b"view 2"


def test_nothing_leaves_in_a_view_that_the_superblock_does_not_hold() -> None:
    """The checks of the support module look at each frame; here writes take long and fail."""
    cluster = Cluster(3)
    start_with(cluster, b"a")
    cluster.superblock_ticks = 7
    cluster.nodes[2].broken_superblock = True
    cluster.nodes[0].kill()
    cluster.run(200)
    assert not cluster.has_primary(), "a member whose promise is not durable elects nobody"
    sent = {kind for tick, source, kind in cluster.sent if source == 2 and tick > 100}
    assert Command.START_VIEW_CHANGE not in sent and Command.DO_VIEW_CHANGE not in sent
    cluster.nodes[2].broken_superblock = False
    cluster.settle()
    cluster.commit(b"b")


def test_a_newer_view_during_the_write_is_not_taken_for_durable() -> None:
    """S0-22: what is durable is what was written."""
    cluster = Cluster(3)
    start_with(cluster, b"a")
    cluster.superblock_ticks = 30
    cluster.nodes[0].kill()
    node = cluster.nodes[2]
    cluster.run_until(lambda: node.replica.view == 1)
    from shardsrv.vsr.events import Message
    from shardsrv.wire.replica_headers import StartViewChangeHeader
    from tests.support.vsr_cluster import CLUSTER, GROUP

    call = StartViewChangeHeader(cluster=CLUSTER, replica=1, view=4, group=GROUP, created_revision=7)
    node.step(Message(1, call, b"", 0))
    assert node.replica.view == 4
    cluster.run_until(lambda: node.disk.state.view == 1, 100)
    assert node.replica.durable_state.view == 1
    assert not any(source == 2 and kind == Command.START_VIEW_CHANGE for _, source, kind in cluster.sent)


def test_the_record_of_a_view_change_repeats_the_checkpoint_pair() -> None:
    """S0-20: nothing else on the disk says which snapshot the log that was dropped went into."""
    cluster = Cluster(3)
    start_with(cluster, b"a", b"b")
    node = cluster.nodes[1]
    node.follow(node.replica.record(checkpoint_op=2, checkpoint_checksum=77))
    cluster.run(3)
    cluster.nodes[0].kill()
    cluster.settle()
    cluster.commit(b"c", everywhere=False)
    state = node.disk.state
    assert (state.view, state.log_view) == (1, 1)
    assert (state.checkpoint_op, state.checkpoint_checksum) == (2, 77)


def test_a_vote_holds_the_header_of_the_commit_point_although_the_log_below_it_is_gone() -> None:
    """S0-44: what the merge chains from."""
    cluster = Cluster(3)
    start_with(cluster, b"a", b"b", b"c")
    for node in cluster.nodes:
        node.replica.log_dropped(4)
    replica = cluster.nodes[1].replica
    fields, body = vote_frame(replica)
    assert (fields["op"], fields["commit"], fields["present_bitset"]) == (3, 3, 1)
    slots, _ = decode_suffix(body, 3, 3)
    assert [(slot.op, slot.checksum) for slot in slots] == [(3, cluster.nodes[1].disk.log[2].checksum)]
    cluster.nodes[0].kill()
    cluster.settle()
    cluster.commit(b"d", everywhere=False)


def test_a_primary_whose_clock_runs_away_abdicates_by_name() -> None:
    cluster = Cluster(3)
    start_with(cluster, b"a")
    cluster.nodes[0].skew = 3_600_000_000
    cluster.request(b"from the future")
    cluster.run(3)
    assert cluster.nodes[0].replica.status == VIEW_CHANGE
    assert cluster.nodes[0].replica.member.election.reason == "the primary's clock was refused"
    assert cluster.nodes[1].replica.dropped["clock"] == 1
    cluster.run_until(lambda: cluster.has_primary() and cluster.primary().index == 1)
    cluster.commit(b"b")
    assert all(node.plane.applied == [b"a", b"b"] for node in cluster.nodes)


def test_the_refusal_of_a_suspect_counts_since_it_says_nothing_of_its_log() -> None:
    cluster = Cluster(3)
    start_with(cluster, b"a")
    suspect = cluster.nodes[2].replica.member
    suspect.suspect, suspect.trust_op = True, 1 << 40
    cluster.nodes[0].skew = 3_600_000_000
    cluster.request(b"from the future")
    cluster.run_until(lambda: cluster.nodes[0].replica.status == VIEW_CHANGE, 50)
    assert cluster.nodes[0].replica.member.election.reason == "the primary's clock was refused"


def test_one_backup_whose_clock_stands_does_not_stop_the_group() -> None:
    cluster = Cluster(3)
    start_with(cluster, b"a")
    cluster.nodes[1].skew = -3_600_000_000
    cluster.run(150)
    cluster.commit(b"b", b"c", everywhere=False)
    assert cluster.nodes[0].replica.leads
    assert cluster.nodes[1].replica.dropped["clock"] >= 1
    cluster.nodes[1].skew = 0
    cluster.settle()


def test_a_fenced_primary_is_followed_by_another() -> None:
    from shardsrv.vsr.events import PersistFailed

    cluster = Cluster(3)
    start_with(cluster, b"a")
    cluster.nodes[0].step(PersistFailed(999, "no space"))
    cluster.run(2)
    for node in cluster.nodes[1:]:
        assert node.replica.status == VIEW_CHANGE, "it said so by name: nobody waits for its silence"
        assert node.replica.member.election.reason == "the primary cannot serve"
    cluster.run_until(lambda: any(node.replica.leads for node in cluster.nodes[1:]))
    cluster.nodes[0].up = False
    cluster.commit(b"b")


def test_a_member_that_was_cut_off_learns_of_the_view_and_of_what_it_missed() -> None:
    cluster = Cluster(5)
    start_with(cluster, b"a")
    cluster.cut = frozenset([4])
    cluster.commit(*(bytes([n]) * 4 for n in range(20)), everywhere=False)
    cluster.nodes[0].kill()
    cluster.run_until(lambda: cluster.nodes[1].replica.leads)
    cluster.nodes[0].boot()
    cluster.commit(*(bytes([n]) * 4 for n in range(20, 30)), everywhere=False)
    cluster.cut = frozenset()
    cluster.settle()
    assert cluster.nodes[4].replica.commit_min == cluster.primary().replica.commit_min


def test_a_pipeline_full_of_entries_is_taken_over_whole() -> None:
    cluster = Cluster(3, depth=127)
    start_with(cluster, b"a")
    cluster.filter = lambda source, target, frame: None if command(frame) == Command.PREPARE_OK else 1
    for number in range(127):
        cluster.request(number.to_bytes(4, "little"))
    assert not cluster.nodes[0].replica.accepts()
    cluster.run(4)
    assert cluster.nodes[1].head == 128 and cluster.nodes[1].replica.commit_min == 1
    cluster.nodes[0].kill()
    cluster.filter = lambda source, target, frame: 1
    cluster.settle()
    assert cluster.primary().replica.commit_min == 128


def test_a_suffix_that_does_not_chain_is_refused_and_changes_nothing() -> None:
    cluster = Cluster(3)
    start_with(cluster, b"a")
    cluster.nodes[0].kill()
    candidate = cluster.nodes[1]
    cluster.run_until(lambda: candidate.replica.status == VIEW_CHANGE)
    from shardsrv.vsr.events import Message
    from shardsrv.vsr.frames import body_fields
    from shardsrv.wire.prepare_header import PrepareHeader
    from shardsrv.wire.replica_headers import DoViewChangeHeader
    from tests.support.vsr_cluster import CLUSTER, GROUP

    slots = [
        PrepareHeader(
            cluster=CLUSTER, group=GROUP, created_revision=7, op=op, operation=SEND, timestamp=op, parent=op * 5
        ).sealed()
        for op in (3, 2)
    ]
    body = b"".join(slot.pack() for slot in slots)
    lie = DoViewChangeHeader(
        cluster=CLUSTER,
        replica=2,
        view=candidate.replica.view,
        group=GROUP,
        created_revision=7,
        op=3,
        commit=1,
        present_bitset=3,
        **body_fields(body),
    )
    head = candidate.head
    candidate.step(Message(2, lie, body, 0))
    assert candidate.replica.dropped["suffix does not decode"] == 1 and candidate.head == head
    cluster.settle()


def leads_alone(node: Node) -> bool:
    return node.replica.leads and node.replica.status == NORMAL


def test_the_outcome_of_a_merge_is_kept_for_those_who_look() -> None:
    cluster = Cluster(3)
    start_with(cluster, b"a")
    cluster.nodes[0].kill()
    cluster.settle()
    outcome = cluster.primary().replica.member.election.outcome
    assert isinstance(outcome, Decided) and outcome.head == 1
    assert leads_alone(cluster.primary())
