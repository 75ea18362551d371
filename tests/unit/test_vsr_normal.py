"""Members of a group in normal operation: fan-out, acknowledgements, commits, loss, order, strangers, both planes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import attrs
import pytest

from shardsrv.vsr.effects import Append, Refused, Send
from shardsrv.vsr.events import Message, Request, Tick
from shardsrv.vsr.status import NORMAL, VIEW_CHANGE
from shardsrv.wire.constants import Command
from shardsrv.wire.replica_headers import (
    CommitHeader,
    DoViewChangeHeader,
    PrepareOkHeader,
    RangeEvictedHeader,
    RepairDoneHeader,
    RequestPreparesHeader,
    RequestStartViewHeader,
    StartViewChangeHeader,
    StartViewHeader,
    StateTransferTargetHeader,
)
from tests.support.vsr_cluster import CLUSTER, GROUP, START, Cluster


@pytest.mark.parametrize("members", [2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("durability", [0, 1])
def test_entries_commit_on_every_member(members: int, durability: int) -> None:
    cluster = Cluster(members)
    cluster.commit(b"a" * 8, b"b" * 8, b"c" * 8, durability=durability)
    assert all(node.replica.commit_min == 3 for node in cluster.nodes)
    assert all(node.replica.dropped == {} for node in cluster.nodes)


def test_the_primary_sends_to_all_others_directly_and_at_once() -> None:
    cluster = Cluster(5)
    effects = cluster.nodes[0].step(Request(bytes(16), 0, 1, 192, 0, 0, 0, b"x", None, START))
    assert [type(effect) for effect in effects] == [Append, Send, Send, Send, Send]
    assert [effect.replica for effect in effects[1:]] == [1, 2, 3, 4]


@pytest.mark.parametrize("durability", [0, 1])
def test_an_acknowledgement_says_what_the_entry_asks_for(durability: int) -> None:
    cluster = Cluster(3)
    levels: list[int] = []

    def look(source: int, target: int, frame: bytes) -> int:
        if frame[60] == Command.PREPARE_OK:
            levels.append(frame[208])
        return 1

    cluster.filter = look
    cluster.commit(b"a", durability=durability)
    assert levels == [durability, durability], "the support module checks that it is true"


def test_nothing_commits_without_a_majority() -> None:
    cluster = Cluster(5)
    cluster.cut = frozenset([2, 3, 4])
    origin = cluster.request(b"a")
    cluster.run(30)
    assert cluster.origins[origin] == 0 and cluster.nodes[1].head == 1
    cluster.cut = frozenset([3, 4])
    cluster.run_until(lambda: cluster.origins[origin] > 0)


def test_a_lost_prepare_or_acknowledgement_is_sent_again_with_growing_distance() -> None:
    cluster = Cluster(3)
    times: list[int] = []

    def lose(source: int, target: int, frame: bytes) -> int | None:
        if frame[60] == Command.PREPARE and target == 1:
            times.append(cluster.now)
        return None if frame[60] in (Command.PREPARE, Command.PREPARE_OK) else 1

    cluster.filter = lose
    cluster.request(b"a")
    cluster.run(400)
    distances = [later - earlier for earlier, later in pairwise(times)]
    assert distances[:6] == [5, 10, 20, 40, 80, 80]
    cluster.filter = lambda source, target, frame: None if frame[60] == Command.PREPARE_OK else 1
    cluster.run(100)
    assert cluster.nodes[1].head == 1 and cluster.nodes[0].replica.commit_min == 0
    cluster.filter = lambda source, target, frame: 1
    cluster.settle()


def test_doubled_delayed_and_disordered_prepares_change_nothing() -> None:
    cluster = Cluster(3)
    turn = [0]

    def shuffle(source: int, target: int, frame: bytes) -> int:
        turn[0] = (turn[0] * 7 + 3) % 11
        cluster.wire.append((cluster.now + 11 - turn[0], source, target, frame))
        return 1 + turn[0]

    cluster.filter = shuffle
    for number in range(40):
        cluster.request(bytes([number]) * 4)
        cluster.run(1)
        cluster.run_until(lambda: cluster.nodes[0].replica.accepts())
    cluster.filter = lambda source, target, frame: 1
    cluster.settle()
    assert cluster.nodes[2].replica.commit_min == 40


def test_backups_hear_of_a_commit_with_the_next_tick_when_nothing_else_tells_them() -> None:
    cluster = Cluster(3)
    origin = cluster.request(b"a")
    cluster.run_until(lambda: cluster.origins[origin] > 0)
    cluster.run(2)
    assert all(node.replica.commit_min == 1 for node in cluster.nodes)


def test_heartbeats_count_up_and_an_older_one_is_no_sign_of_life() -> None:
    cluster = Cluster(3)
    cluster.run(25)
    node = cluster.nodes[1]
    node.replica.member.idle = 9
    old = CommitHeader(
        cluster=CLUSTER, replica=0, view=0, group=GROUP, created_revision=7, timestamp_monotonic=1, commit=0
    )
    node.step(Message(0, old, b"", 0))
    assert node.replica.dropped == {"older heartbeat": 1} and node.replica.member.idle == 9


HEADERS: dict[type, dict[str, Any]] = {
    PrepareOkHeader: {"op": 1},
    CommitHeader: {"timestamp_monotonic": 99},
    StartViewChangeHeader: {"view": 3},
    DoViewChangeHeader: {"view": 3},
    StartViewHeader: {"view": 3},
    RequestStartViewHeader: {},
    RequestPreparesHeader: {"from_op": 1, "to_op": 1},
    RepairDoneHeader: {},
    RangeEvictedHeader: {},
    StateTransferTargetHeader: {},
}


@pytest.mark.parametrize("kind", HEADERS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cluster": b"another cluster."}, "foreign cluster"),
        ({"group": GROUP + 1}, "another group"),
        ({"group": 1 << 63}, "another group"),
        ({"created_revision": 8}, "another life of the group"),
        ({"replica": 2}, "sender is not the member of the link"),
    ],
)
def test_a_frame_that_lies_is_dropped_and_counted_and_changes_nothing(
    kind: type, change: dict[str, Any], reason: str
) -> None:
    cluster = Cluster(3)
    node = cluster.nodes[0]
    base = kind(**({"cluster": CLUSTER, "replica": 1, "group": GROUP, "created_revision": 7} | HEADERS[kind]))
    before = (node.replica.view, node.replica.status, node.head)
    assert node.step(Message(1, attrs.evolve(base, **change), b"", 0)) == []
    assert node.replica.dropped == {reason: 1}
    assert (node.replica.view, node.replica.status, node.head) == before


@pytest.mark.parametrize("peer", [-1, 0, 3, 31, 255])
def test_a_peer_that_is_no_other_member_is_dropped(peer: int) -> None:
    cluster = Cluster(3)
    header = StartViewChangeHeader(cluster=CLUSTER, replica=1, view=9, group=GROUP, created_revision=7)
    assert cluster.nodes[0].step(Message(peer, header, b"", 0)) == []
    assert cluster.nodes[0].replica.dropped == {"no such member": 1} and cluster.nodes[0].replica.view == 0


def test_impossible_entries_are_dropped_by_name() -> None:
    cluster = Cluster(3)
    cluster.commit(b"a", b"b")
    node = cluster.nodes[1]
    good = cluster.nodes[0].disk.log[1]

    def build(**changes: Any) -> Any:
        from shardsrv._core import Prepare, xxh3

        fields: dict[str, Any] = {
            "cluster": CLUSTER,
            "view": 0,
            "replica": 0,
            "client": bytes(16),
            "parent": good.checksum,
            "request_checksum": 0,
            "op": 3,
            "commit": 2,
            "timestamp": good.timestamp + 5,
            "request": 0,
            "operation": 192,
            "group": GROUP,
            "user_id": 0,
            "created_revision": 7,
            "durability": 0,
            "body": b"x",
            "checksum_body": xxh3(b"x"),
        }
        return Prepare.build(**(fields | changes))

    now = cluster.clock(1)
    for changes, peer, reason in (
        ({"cluster": b"another cluster."}, 0, "foreign cluster"),
        ({"group": 1 << 63, "created_revision": 0, "operation": 128}, 0, "another group"),
        ({"created_revision": 9}, 0, "another life of the group"),
        ({}, 2, "sender does not lead the view"),
        ({"view": 1}, 1, "no such member"),
        ({"parent": 5}, 0, "does not chain"),
        ({"timestamp": good.timestamp}, 0, "time does not rise"),
        ({"timestamp": now + 3_600_000_000}, 0, "clock"),
        ({"op": 2000}, 0, "no room above the hole"),
    ):
        before = dict(node.replica.dropped)
        node.step(Message(peer, build(**changes), b"", now))
        assert node.replica.dropped.get(reason, 0) == before.get(reason, 0) + 1, reason
        assert node.head == 2
    node.step(Message(0, build(), b"", now))
    assert node.head == 3, "the same entry without a lie is taken"


# --- requests ---------------------------------------------------------------------------------------------------------


def refusals(cluster: Cluster, index: int) -> list[tuple[Any, int]]:
    return [(origin, status) for kind, origin, status in cluster.nodes[index].answers if kind == "refused"]


def test_a_member_that_does_not_lead_certainly_accepts_nothing() -> None:
    cluster = Cluster(3)
    cluster.request(b"a", at=1)
    assert refusals(cluster, 1) == [((1, b"a"), 58)]
    assert cluster.nodes[1].replica.accepts(), "it refuses at once, nothing is to be parked"


def test_what_is_in_flight_when_primaryship_is_lost_is_unknown() -> None:
    cluster = Cluster(3)
    cluster.cut = frozenset([0])
    cluster.request(b"a", at=0)
    cluster.run_until(lambda: cluster.nodes[1].replica.leads)
    cluster.cut = frozenset()
    cluster.settle()
    assert refusals(cluster, 0) == [((0, b"a"), 57)]


REGISTER, CREATE_STREAM = 1, 128


def ask(cluster: Cluster, at: int, operation: int, number: int, session: int, client: int = 1) -> list[Any]:
    node = cluster.nodes[at]
    origin = (at, operation, number)
    cluster.origins[origin] = 0
    return node.step(
        Request(client.to_bytes(16, "little"), session, number, operation, 3, 0, 1, b"body", origin, cluster.clock(at))
    )


def test_a_session_and_its_replies_outlive_the_primary() -> None:
    cluster = Cluster(3, metadata=True)
    ask(cluster, 0, REGISTER, 0, 0)
    cluster.settle()
    ask(cluster, 0, CREATE_STREAM, 1, 1)
    cluster.settle()
    assert cluster.origins[(0, CREATE_STREAM, 1)] == 2
    cluster.nodes[0].kill()
    cluster.settle()
    ask(cluster, 1, CREATE_STREAM, 1, 1)
    assert cluster.nodes[1].answers[-1] == ("repeat", (1, CREATE_STREAM, 1), 2), "the retry is not executed again"
    tables = [node.replica.table.snapshot() for node in cluster.nodes if node.up]
    assert tables[0] == tables[1]


def test_a_new_primary_accepts_metadata_only_when_all_that_may_be_acknowledged_is_applied() -> None:
    """The request is in the log of the new primary and not committed there yet: executing its retry would run it
    twice."""
    cluster = Cluster(3, metadata=True)
    ask(cluster, 0, REGISTER, 0, 0)
    cluster.settle()
    cluster.filter = lambda source, target, frame: None if frame[60] == Command.PREPARE_OK else 1
    ask(cluster, 0, CREATE_STREAM, 1, 1)
    cluster.run(3)
    cluster.nodes[0].kill()
    cluster.run_until(lambda: cluster.nodes[1].replica.leads)
    replica = cluster.nodes[1].replica
    assert replica.barrier == 2 > replica.commit_min and not replica.caught_up and not replica.accepts()
    (refused,) = ask(cluster, 1, CREATE_STREAM, 1, 1)
    assert isinstance(refused, Refused) and (refused.status, refused.reason) == (58, "not caught up")
    cluster.filter = lambda source, target, frame: 1
    cluster.settle()
    ask(cluster, 1, CREATE_STREAM, 1, 1)
    assert cluster.nodes[1].answers[-1][0] == "repeat"
    assert replica.status == NORMAL and replica.caught_up


def test_a_full_pipeline_refuses_the_next() -> None:
    cluster = Cluster(3, depth=2)
    for body in (b"a", b"b", b"c"):
        cluster.request(body)
    assert refusals(cluster, 0) == [((0, b"c"), 58)]
    assert not cluster.nodes[0].replica.accepts()


def test_a_group_at_rest_is_told_several_ticks_at_once() -> None:
    cluster = Cluster(3)
    cluster.commit(b"a")
    cluster.run(3)
    leader, follower = cluster.nodes[0].replica, cluster.nodes[1].replica
    timeouts = leader.member.timeouts
    leader.member.idle = 4
    assert leader.rest == timeouts.commit - 4, "its heartbeat is due then"
    assert follower.rest == timeouts.heartbeat // 10
    follower.member.idle = timeouts.heartbeat - 2
    assert follower.rest == 2, "silence is noticed when it is too long, not later"
    follower.member.idle = 0
    sent = leader.step(Tick(cluster.clock(0), leader.rest))
    assert [effect.replica for effect in sent] == [1, 2]
    follower.step(Tick(cluster.clock(1), timeouts.heartbeat))
    assert follower.status == VIEW_CHANGE and follower.rest == 1
    cluster.request(b"b")
    assert leader.rest == 1
