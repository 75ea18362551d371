"""Consumer groups and tokens: who owns what after joins, leaves, hand-overs, lost sessions, other partition counts."""

from __future__ import annotations

import random

import pytest

from shardsrv.errors import OurFault, RequestRefused
from shardsrv.plane.metadata import snapshot
from shardsrv.plane.metadata.changes import GroupChanged, GroupDeleted
from shardsrv.plane.metadata.commands import CompleteHandOver, CreateTokenResolved
from shardsrv.plane.metadata.groups import may_commit, may_poll
from shardsrv.plane.metadata.state import ConsumerGroup, HandOver
from shardsrv.plane.metadata.tokens import MAX_TOKENS
from shardsrv.wire.codes import CommandCode
from shardsrv.wire.constants import Operation
from shardsrv.wire.consumer_groups import (
    AssignmentReply,
    CreateConsumerGroup,
    DeleteConsumerGroup,
    GetConsumerGroup,
    JoinConsumerGroup,
    LeaveConsumerGroup,
    SyncConsumerGroup,
)
from shardsrv.wire.replies import decode_reply
from shardsrv.wire.streams import CreateStream, DeleteStream
from shardsrv.wire.topics import CreatePartitions, CreateTopic, DeletePartitions, DeleteTopic
from shardsrv.wire.users import CreatePersonalAccessToken, CreateUser, DeletePersonalAccessToken, DeleteUser
from tests.support.metadata import SECOND, START, Driver, entry, new_plane, zero_counters

GROUP = ("s", "t", "g")
A, B, C = (letter * 16 for letter in (b"a", b"b", b"c"))


def made(partitions: int) -> Driver:
    """Stream `s`, topic `t`, group `g` without members; changes drained."""
    driver = Driver()
    driver.run(Operation.CREATE_STREAM, CreateStream("s"))
    driver.run(Operation.CREATE_TOPIC, CreateTopic("s", partitions, "t"))
    assert driver.run(Operation.CREATE_CONSUMER_GROUP, CreateConsumerGroup(*GROUP))[0] == 0
    driver.plane.take_changes()
    return driver


def join(driver: Driver, client: bytes, session: int = 3) -> None:
    assert driver.run(Operation.JOIN_CONSUMER_GROUP, JoinConsumerGroup(*GROUP), 0, client, session)[0] == 0


def leave(driver: Driver, client: bytes) -> int:
    return driver.run(Operation.LEAVE_CONSUMER_GROUP, LeaveConsumerGroup(*GROUP), 0, client, 3)[0]


def the_group(driver: Driver) -> ConsumerGroup:
    return driver.plane.state.streams[0].topics[0].groups[0]


def owned(driver: Driver) -> dict[bytes, list[int]]:
    return {member.client: member.partitions for member in the_group(driver).ordered_members()}


def pending(driver: Driver) -> list[HandOver]:
    return [hand_over for member in the_group(driver).ordered_members() for hand_over in member.pending]


def complete(driver: Driver, hand_over: HandOver) -> int:
    """The owner of the partition reports that all is committed; the result code."""
    group = the_group(driver)
    command = CompleteHandOver(0, 0, group.id, group.created_revision, hand_over.partition, hand_over.since)
    operation = Operation.COMPLETE_CONSUMER_GROUP_REVOCATION
    prepare = entry(driver.plane.op + 1, operation, command.encode())
    driver.log.append(prepare)
    return int.from_bytes(driver.plane.apply(prepare)[8:12], "little")


def sync(driver: Driver, client: bytes) -> tuple[int, tuple[int, ...]] | None:
    body = driver.plane.query(
        CommandCode.SYNC_CONSUMER_GROUP, SyncConsumerGroup(*GROUP).encode(), 0, zero_counters, client
    )
    reply = decode_reply(CommandCode.SYNC_CONSUMER_GROUP, body)
    return (reply.generation, reply.partitions) if isinstance(reply, AssignmentReply) else None


def test_the_first_member_gets_everything_at_once() -> None:
    driver = made(3)
    join(driver, A)
    assert (owned(driver), sync(driver, A), sync(driver, B)) == ({A: [0, 1, 2]}, (1, (0, 1, 2)), None)
    join(driver, A)
    assert the_group(driver).generation == 1
    assert driver.plane.take_changes() == [GroupChanged(0, 0, 0, 3, 1)]


def test_a_join_begins_hand_overs_and_each_moves_when_it_is_reported() -> None:
    driver = made(5)
    join(driver, A)
    join(driver, B)
    assert owned(driver) == {A: [0, 1, 2, 3, 4], B: []}
    assert pending(driver) == [HandOver(3, 1, 5), HandOver(4, 1, 5)]
    assert (sync(driver, A), sync(driver, B)) == ((2, (0, 1, 2)), (2, ()))
    group = the_group(driver)
    assert (may_poll(group, A, 3), may_commit(group, A, 3), may_commit(group, B, 3)) == (False, True, False)
    assert complete(driver, pending(driver)[1]) == 0
    assert (owned(driver), sync(driver, B)) == ({A: [0, 1, 2, 3], B: [4]}, (3, (4,)))
    assert complete(driver, pending(driver)[0]) == 0
    assert (owned(driver), sync(driver, A), sync(driver, B)) == ({A: [0, 1, 2], B: [3, 4]}, (4, (0, 1, 2)), (4, (3, 4)))
    assert may_poll(group, B, 3)


def test_a_report_of_another_hand_over_has_no_effect() -> None:
    driver = made(2)
    join(driver, A)
    join(driver, B)
    (old,) = pending(driver)
    assert leave(driver, B) == 0
    assert complete(driver, old) == 20
    join(driver, B)
    (new,) = pending(driver)
    assert (new.partition, new.successor) == (old.partition, old.successor)
    assert complete(driver, old) == 20
    assert owned(driver) == {A: [0, 1], B: []}
    assert complete(driver, new) == 0
    driver.run(Operation.DELETE_CONSUMER_GROUP, DeleteConsumerGroup(*GROUP))
    with pytest.raises(KeyError):
        the_group(driver)


def test_more_members_than_partitions() -> None:
    driver = made(1)
    for client in (A, B, C):
        join(driver, client)
    assert (owned(driver), pending(driver)) == ({A: [0], B: [], C: []}, [])
    assert leave(driver, A) == 0
    assert owned(driver) == {B: [0], C: []}
    join(driver, A)
    assert [member.id for member in the_group(driver).ordered_members()] == [0, 1, 2]
    assert owned(driver) == {A: [], B: [0], C: []}


def test_a_leave_assigns_everything_anew() -> None:
    driver = made(5)
    for client in (A, B, C):
        join(driver, client)
    assert leave(driver, B) == 0
    assert (owned(driver), pending(driver)) == ({A: [0, 2, 4], C: [1, 3]}, [])
    assert leave(driver, B) == 5006
    assert (leave(driver, A), leave(driver, C), owned(driver)) == (0, 0, {})
    assert driver.plane.state.memberships == {}
    join(driver, B)
    assert owned(driver) == {B: [0, 1, 2, 3, 4]}


def test_another_number_of_partitions_assigns_everything_anew() -> None:
    driver = made(2)
    join(driver, A)
    join(driver, B)
    driver.run(Operation.CREATE_PARTITIONS, CreatePartitions("s", "t", 2))
    assert (owned(driver), the_group(driver).generation, pending(driver)) == ({A: [0, 2], B: [1, 3]}, 3, [])
    driver.run(Operation.DELETE_PARTITIONS, DeletePartitions("s", "t", 3))
    assert owned(driver) == {A: [0], B: []}
    driver.run(Operation.DELETE_PARTITIONS, DeletePartitions("s", "t", 1))
    assert owned(driver) == {A: [], B: []}
    driver.run(Operation.CREATE_PARTITIONS, CreatePartitions("s", "t", 1))
    assert owned(driver) == {A: [0], B: []}


def session_entry(driver: Driver, operation: int, client: bytes, session: int) -> None:
    prepare = entry(driver.plane.op + 1, operation, b"", 0, client, session)
    driver.log.append(prepare)
    assert driver.plane.apply(prepare) == b""


def test_a_membership_ends_with_its_session() -> None:
    driver = made(2)
    join(driver, A, session=3)
    join(driver, B, session=3)
    session_entry(driver, Operation.LOGOUT, B, 2)
    assert list(owned(driver)) == [A, B]
    session_entry(driver, Operation.LOGOUT, B, 3)
    assert owned(driver) == {A: [0, 1]}
    session_entry(driver, Operation.REGISTER, A, 0)
    assert owned(driver) == {}
    join(driver, C)
    driver.plane.client_gone(C)
    driver.plane.client_gone(C)
    assert (owned(driver), driver.plane.state.memberships) == ({}, {})


def test_memberships_go_with_groups_topics_and_streams() -> None:
    driver = made(1)
    driver.run(Operation.CREATE_TOPIC, CreateTopic("s", 1, "u"))
    driver.run(Operation.CREATE_CONSUMER_GROUP, CreateConsumerGroup("s", "u", "h"))
    join(driver, A)
    driver.run(Operation.JOIN_CONSUMER_GROUP, JoinConsumerGroup("s", "u", 0), 0, A, 3)
    assert driver.plane.state.memberships_of(A) == [(0, 0, 0), (0, 1, 0)]
    driver.plane.take_changes()
    driver.run(Operation.DELETE_CONSUMER_GROUP, DeleteConsumerGroup(*GROUP))
    assert driver.plane.take_changes() == [GroupDeleted(0, 0, 0, 3)]
    assert driver.plane.state.memberships_of(A) == [(0, 1, 0)]
    driver.run(Operation.DELETE_TOPIC, DeleteTopic("s", "u"))
    assert driver.plane.state.memberships == {}
    code, _ = driver.run(Operation.CREATE_CONSUMER_GROUP, CreateConsumerGroup(*GROUP))
    assert (code, list(driver.plane.state.streams[0].topics[0].groups)) == (0, [1])
    driver.run(Operation.JOIN_CONSUMER_GROUP, JoinConsumerGroup("s", "t", 1), 0, A, 3)
    driver.run(Operation.DELETE_STREAM, DeleteStream("s"))
    assert driver.plane.state.memberships == {}


def test_who_may_and_what_does_not_exist() -> None:
    driver = made(1)
    assert driver.run(Operation.CREATE_CONSUMER_GROUP, CreateConsumerGroup(*GROUP))[0] == 5004
    for place, code in (
        (("x", "t", "g"), 1009),
        (("s", "x", "g"), 2010),
        (("s", "t", "x"), 5000),
        (("s", "t", 1), 5000),
    ):
        assert driver.run(Operation.JOIN_CONSUMER_GROUP, JoinConsumerGroup(*place), 0, A)[0] == code
        assert driver.run(Operation.LEAVE_CONSUMER_GROUP, LeaveConsumerGroup(*place), 0, A)[0] == code
        assert driver.run(Operation.DELETE_CONSUMER_GROUP, DeleteConsumerGroup(*place), 0, A)[0] == code
    assert driver.run(Operation.JOIN_CONSUMER_GROUP, JoinConsumerGroup(*GROUP), 9, A)[0] == 41
    with pytest.raises(RequestRefused) as refusal:
        driver.plane.query(CommandCode.GET_CONSUMER_GROUP, GetConsumerGroup(*GROUP).encode(), 9, zero_counters)
    assert refusal.value.code == 41


def test_random_members_share_everything_and_copies_agree() -> None:
    """Each partition has one owner whatever happens; a copy fed by the log, and one restored half-way, give the same
    bytes.
    """
    chance = random.Random(20260101)
    driver = made(7)
    clients = [bytes([number]) * 16 for number in range(1, 6)]
    restored = new_plane()
    for step in range(300):
        act = chance.randrange(6)
        client = chance.choice(clients)
        if act < 2:
            join(driver, client)
        elif act == 2:
            leave(driver, client)
        elif act == 3 and pending(driver):
            assert complete(driver, chance.choice(pending(driver))) == 0
        elif act == 4:
            session_entry(driver, Operation.LOGOUT, client, 3)
        elif chance.randrange(4) == 0:
            driver.run(Operation.CREATE_PARTITIONS, CreatePartitions("s", "t", 1))
        elif chance.randrange(4) == 0:
            driver.run(Operation.DELETE_PARTITIONS, DeletePartitions("s", "t", 1))
        members = the_group(driver).members
        count = len(driver.plane.state.streams[0].topics[0].partitions) if members else 0
        assert sorted(partition for partitions in owned(driver).values() for partition in partitions) == list(
            range(count)
        )
        assert all(hand_over.successor in members for hand_over in pending(driver))
        if step == 150:
            restored.restore(snapshot.decode(driver.plane.encode_snapshot(1, 1, [])))
        elif step > 150:
            for prepare in driver.log:
                if prepare.op > restored.op:
                    restored.apply(prepare)
    assert restored.state == driver.plane.state
    assert restored.state.memberships.keys() == driver.plane.state.memberships.keys()
    assert restored.encode_snapshot(1, 1, []) == driver.plane.encode_snapshot(1, 1, [])


# --- tokens ----------------------------------------------------------------------------------------------------------


def test_a_token_is_kept_as_a_digest_and_expires_by_the_time_of_its_entry() -> None:
    driver = Driver()
    assert driver.run(Operation.CREATE_PERSONAL_ACCESS_TOKEN, CreatePersonalAccessToken("day", 86_400 * SECOND)) == (
        0,
        b"",
    )
    resolved = CreateTokenResolved.decode(driver.log[-1].body)
    found = driver.plane.state.find_token(resolved.digest)
    assert found is not None
    assert (found[0].id, found[1].expiry_at) == (0, START + SECOND + 86_400 * SECOND)
    for name, expiry in (("never", 0), ("ever", 2**64 - 1)):
        driver.run(Operation.CREATE_PERSONAL_ACCESS_TOKEN, CreatePersonalAccessToken(name, expiry))
        assert driver.plane.state.users[0].tokens[name].expiry_at == 0
    late = CreatePersonalAccessToken("late", 2**64 - 2)
    assert driver.run(Operation.CREATE_PERSONAL_ACCESS_TOKEN, late)[0] == 56
    again = CreatePersonalAccessToken("day", 0)
    assert driver.run(Operation.CREATE_PERSONAL_ACCESS_TOKEN, again)[0] == 51
    assert driver.run(Operation.DELETE_PERSONAL_ACCESS_TOKEN, DeletePersonalAccessToken("day"))[0] == 0
    assert driver.plane.state.find_token(resolved.digest) is None
    assert driver.run(Operation.DELETE_PERSONAL_ACCESS_TOKEN, DeletePersonalAccessToken("day"))[0] == 20
    with pytest.raises(OurFault):
        driver.plane.resolve(Operation.CREATE_PERSONAL_ACCESS_TOKEN, again.encode())


def test_a_user_has_a_bounded_number_of_tokens_and_takes_them_along() -> None:
    driver = Driver()
    driver.run(Operation.CREATE_USER, CreateUser("alice", "secret", 1))
    for number in range(MAX_TOKENS):
        token = CreatePersonalAccessToken(f"token {number}", 0)
        assert driver.run(Operation.CREATE_PERSONAL_ACCESS_TOKEN, token, 1)[0] == 0
    more = CreatePersonalAccessToken("more", 0).encode()
    refusal = driver.plane.refusal(Operation.CREATE_PERSONAL_ACCESS_TOKEN, more, 1)
    assert refusal is not None
    assert refusal.code == 52
    assert driver.plane.refusal(Operation.CREATE_PERSONAL_ACCESS_TOKEN, more, 0) is None
    body = CreateTokenResolved("more", "late", 0).encode()
    reply = driver.plane.apply(entry(driver.plane.op + 1, Operation.CREATE_PERSONAL_ACCESS_TOKEN, body, 1))
    assert int.from_bytes(reply[8:12], "little") == 52
    driver.run(Operation.DELETE_USER, DeleteUser("alice"))
    assert driver.plane.state.token_owners == {}
    assert driver.run(Operation.DELETE_PERSONAL_ACCESS_TOKEN, DeletePersonalAccessToken("token 1"), 1)[0] == 40
