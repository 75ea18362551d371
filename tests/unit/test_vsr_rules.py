"""The small rules of consensus: quorums, policies, clock, head."""

import itertools

import pytest

from shardsrv.errors import ConfigurationError
from shardsrv.vsr.clock import acceptable, next_timestamp
from shardsrv.vsr.head import ANNOUNCED, HELD, NOTHING, announced, held, refreshed
from shardsrv.vsr.policy import PARTITION, GroupPolicy, metadata_policy, partition_policy
from shardsrv.vsr.quorum import nack_quorum, primary_of, replication_quorum, view_change_quorum

QUORUMS = [(1, 1, 1), (2, 2, 1), (3, 2, 2), (4, 3, 2), (5, 3, 3), (6, 4, 3), (7, 4, 4)]


@pytest.mark.parametrize(("members", "majority", "nack"), QUORUMS)
def test_quorums_of_one_to_seven_members(members: int, majority: int, nack: int) -> None:
    assert (replication_quorum(members), view_change_quorum(members), nack_quorum(members)) == (
        majority,
        majority,
        nack,
    )


@pytest.mark.parametrize("members", range(1, 8))
def test_every_two_quorums_share_a_member_and_nacks_reach_every_replication_quorum(members: int) -> None:
    everyone = range(members)
    majorities = [set(each) for each in itertools.combinations(everyone, replication_quorum(members))]
    deniers = [set(each) for each in itertools.combinations(everyone, nack_quorum(members))]
    assert all(one & other for one in majorities for other in majorities)
    assert all(one & other for one in majorities for other in deniers)


@pytest.mark.parametrize("members", [0, -1, 33])
def test_a_cluster_outside_its_bounds_is_refused(members: int) -> None:
    with pytest.raises(ConfigurationError):
        replication_quorum(members)


def test_views_go_round_the_members() -> None:
    assert [primary_of(view, 3) for view in range(5)] == [0, 1, 2, 0, 1]


@pytest.mark.parametrize("depth", [0, 128])
def test_a_pipeline_that_a_view_change_cannot_carry_is_refused(depth: int) -> None:
    with pytest.raises(ConfigurationError):
        partition_policy(depth)


def test_policies_say_what_their_plane_needs() -> None:
    assert metadata_policy().always_synced and metadata_policy().clients_max == 8192
    assert not partition_policy(127).always_synced
    with pytest.raises(ConfigurationError):
        metadata_policy(clients_max=1)
    with pytest.raises(ConfigurationError):
        GroupPolicy(PARTITION, 8, False, 100)


@pytest.mark.parametrize(("now", "last", "stamp"), [(10, 5, 10), (5, 5, 6), (3, 5, 6)])
def test_timestamps_rise_whatever_the_clock_does(now: int, last: int, stamp: int) -> None:
    assert next_timestamp(now, last) == stamp


def test_a_new_stamp_is_accepted_up_to_the_slack_of_the_clock_or_a_second_after_the_last() -> None:
    second = 1_000_000
    assert acceptable(1500, now=1000, last=900, slack=500)
    assert acceptable(900 + second, now=1000, last=900, slack=500)
    assert not acceptable(901 + second, now=1000, last=900, slack=500)
    assert acceptable(5 * second + 500, now=5 * second, last=900, slack=500)
    assert not acceptable(5 * second + 501, now=5 * second, last=900, slack=500)
    assert not acceptable(900, now=1000, last=900, slack=500), "not above the last one"


# Head: `entries` are the ops that the log holds; the identity of op n is 1000 + n.
HEADS = {
    "nothing held stays nothing": (NOTHING, 0, (), NOTHING),
    "an empty log grows from op 1": (NOTHING, 0, (1, 2, 4), held(2, 1002)),
    "an entry above a hole is not reached": (held(1, 1001), 0, (1, 3), held(1, 1001)),
    "the frame that fills the hole moves the head over all that follows": (held(1, 1001), 0, (1, 2, 3), held(3, 1003)),
    "a backfill below the head moves nothing": (held(171, 1171), 0, (169, 170, 171), held(171, 1171)),
    "the checksum is that of the log's own entry": (held(5, 77), 0, (5,), held(5, 1005)),
    "announced and missing stays, whatever lies above": (announced(5), 0, (3, 4, 6, 7), announced(5)),
    "announced and delivered brings both halves without moving the op": (announced(5), 0, (5,), held(5, 1005)),
    "announced and delivered walks on": (announced(5), 0, (5, 6), held(6, 1006)),
    "an absent head at the floor is walked over": (held(169, 1169), 169, (170, 171, 172), held(172, 1172)),
    "an absent head that is not the floor is not": (held(169, 1169), 100, (170, 171), held(169, 1169)),
    "an announced head is never taken for the floor": (announced(169), 169, (170,), announced(169)),
}


@pytest.mark.parametrize("case", HEADS)
def test_head(case: str) -> None:
    head, floor, entries, expected = HEADS[case]
    log = {op: 1000 + op for op in entries}
    assert refreshed(head, floor, log.get) == expected


def test_only_a_head_that_is_held_carries_a_checksum_and_only_an_announced_one_is_not_built_on() -> None:
    assert held(3, 9).kind == HELD and held(3, 9).builds
    assert announced(3).kind == ANNOUNCED and not announced(3).builds and announced(3).checksum == 0
    assert held(0, 0) == NOTHING and NOTHING.builds


def test_head_agrees_with_a_walk_over_every_small_log() -> None:
    for mask in range(64):
        log = {op: 1000 + op for op in range(1, 7) if mask >> (op - 1) & 1}
        for start in range(7):
            for head in (held(start, 1000 + start), announced(start)) if start else (NOTHING,):
                for floor in (0, start):
                    after = refreshed(head, floor, log.get)
                    assert after.op >= head.op
                    assert all(op in log for op in range(head.op + 1, after.op + 1)), "no hole is crossed"
                    if after.op > head.op:
                        assert after == held(after.op, log[after.op])
                    if after.kind == HELD and after.op in log:
                        assert after.op + 1 not in log and after.checksum == log[after.op]
