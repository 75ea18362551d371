"""The plane at its edges: admission, resolved bodies, ids, slots, changes, purge generations, reads, passwords."""

from __future__ import annotations

import pytest

from shardsrv.errors import OurFault, RequestRefused
from shardsrv.plane.metadata import queries, topics
from shardsrv.plane.metadata.changes import (
    CreatedPartition,
    PartitionsCreated,
    PartitionsDeleted,
    TopicPurged,
    TopicUpdated,
    UserDeleted,
)
from shardsrv.plane.metadata.commands import CreatePartitionsResolved, CreateTopicResolved, CreateUserResolved
from shardsrv.plane.metadata.numbers import LowestFree
from shardsrv.plane.metadata.options_catalog import MIB, TopicDefaults
from shardsrv.plane.metadata.state import Partition, PartitionIdentity
from shardsrv.wire.codes import CommandCode
from shardsrv.wire.constants import Operation, UserStatus
from shardsrv.wire.options import Option
from shardsrv.wire.replies import decode_reply
from shardsrv.wire.streams import CreateStream, DeleteStream, GetStream, GetStreams, PurgeStream, UpdateStream
from shardsrv.wire.system import DescribeOptions
from shardsrv.wire.topics import (
    CreatePartitions,
    CreateTopic,
    DeletePartitions,
    DeleteTopic,
    GetTopic,
    GetTopics,
    PurgeTopic,
    TopicDetailsReply,
    UpdateTopic,
)
from shardsrv.wire.typed_values import TypedValue, ValueKind
from shardsrv.wire.users import ChangePassword, CreateUser, DeleteUser, GetUser, GetUsers, UpdateUser
from tests.support.metadata import SECOND, START, Driver, entry, hashed, new_plane, passwords_for, zero_counters


@pytest.fixture
def driver() -> Driver:
    """A plane with stream `s` and in it topic `t` of two partitions; changes drained."""
    made = Driver()
    assert made.run(Operation.CREATE_STREAM, CreateStream("s"))[0] == 0
    assert made.run(Operation.CREATE_TOPIC, CreateTopic("s", 2, "t"))[0] == 0
    made.plane.take_changes()
    return made


def identity(partition: int, revision: int, topic: int = 0) -> PartitionIdentity:
    return PartitionIdentity(0, topic, partition, revision)


# --- admission -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "body", "code"),
    [
        (Operation.CREATE_STREAM, b"", 3),
        (Operation.CREATE_STREAM, b"\x00", 3),
        (Operation.CREATE_STREAM, CreateStream("x", (Option("k", TypedValue.text("v")),)).encode(), 4041),
        (Operation.UPDATE_STREAM, UpdateStream("s", "x", (Option("k", TypedValue.text("v")),)).encode(), 4041),
        (Operation.CREATE_TOPIC, CreateTopic("s", 1001, "x").encode(), 2015),
        (Operation.CREATE_TOPIC, CreateTopic("s", 1001, "x", (Option("k", TypedValue.text("v")),)).encode(), 4041),
        (
            Operation.UPDATE_TOPIC,
            UpdateTopic("s", "t", "t", (Option("max_topic_size", TypedValue.text("1")),)).encode(),
            1019,
        ),
        (
            Operation.UPDATE_TOPIC,
            UpdateTopic("s", "t", "t", (Option("durability", TypedValue.text("x")),)).encode(),
            4041,
        ),
        (Operation.CREATE_PARTITIONS, CreatePartitions("s", "t", 0).encode(), 2015),
        (Operation.CREATE_PARTITIONS, CreatePartitions("s", "t", 1001).encode(), 2015),
        (Operation.DELETE_PARTITIONS, DeletePartitions("s", "t", 0).encode(), 2015),
        (Operation.CREATE_USER, CreateUser("abc", "abc", 1, None, (Option("k", TypedValue.text("v")),)).encode(), 4041),
        (Operation.UPDATE_USER, UpdateUser("abc", None, None, (Option("k", TypedValue.text("v")),)).encode(), 4041),
        (Operation.CREATE_PERSONAL_ACCESS_TOKEN, b"", 3),
        (Operation.CREATE_TOPIC_WITH_ASSIGNMENTS, b"", 5),
    ],
)
def test_what_never_becomes_an_entry(driver: Driver, operation: int, body: bytes, code: int) -> None:
    refusal = driver.plane.refusal(operation, body)
    assert refusal is not None
    assert refusal.code == code
    with pytest.raises(RequestRefused) as raised:
        driver.plane.resolve(operation, body)
    assert raised.value.code == code


@pytest.mark.parametrize(
    "request_",
    [CreateTopic("s", 0, "x"), CreateTopic("s", 1000, "x"), CreateTopic("nobody", 1, "x"), CreateTopic("s", 1, "t")],
)
def test_what_is_decided_by_the_entry_is_admitted(driver: Driver, request_: CreateTopic) -> None:
    assert driver.plane.refusal(Operation.CREATE_TOPIC, request_.encode()) is None


def test_trailing_bytes_are_accepted(driver: Driver) -> None:
    assert driver.submit(Operation.DELETE_STREAM, DeleteStream("s").encode() + b"more") == bytes(4)


def test_resolved_bodies_hold_what_configuration_says() -> None:
    plane = new_plane(TopicDefaults(segment_size=4 * MIB))
    operation, body = plane.resolve(Operation.CREATE_TOPIC, CreateTopic("s", 3, "t").encode(), view=9)
    assert operation == Operation.CREATE_TOPIC_WITH_ASSIGNMENTS
    resolved = CreateTopicResolved.decode(body)
    derived = {option.key: option.value for option in resolved.derived}
    assert (resolved.partitions_count, resolved.created_view, resolved.explicit) == (3, 9, ())
    assert derived["segment_size"] == TypedValue.of(ValueKind.UINT64, 4 * MIB)

    elsewhere = new_plane(TopicDefaults(segment_size=8 * MIB))
    elsewhere.apply(entry(1, Operation.CREATE_STREAM, CreateStream("s").encode()))
    elsewhere.apply(entry(2, operation, body))
    assert elsewhere.state.streams[0].topics[0].settings.segment_size == 4 * MIB
    assert [partition.created_view for partition in elsewhere.state.streams[0].topics[0].partitions] == [9, 9, 9]

    operation, body = plane.resolve(Operation.CREATE_PARTITIONS, CreatePartitions("s", "t", 2).encode(), view=5)
    assert operation == Operation.CREATE_PARTITIONS_WITH_ASSIGNMENTS
    assert CreatePartitionsResolved.decode(body) == CreatePartitionsResolved("s", "t", 2, 5)


# --- entries ---------------------------------------------------------------------------------------------------------


def test_entries_are_applied_in_order_and_known_ones_only() -> None:
    plane = new_plane()
    plane.apply(entry(1, Operation.REGISTER, b""))
    plane.apply(entry(3, Operation.CREATE_STREAM, CreateStream("s").encode()))
    for op in (3, 2):
        with pytest.raises(OurFault):
            plane.apply(entry(op, Operation.CREATE_STREAM, CreateStream("again").encode()))
    with pytest.raises(OurFault):
        plane.apply(entry(4, 120, b""))
    assert (plane.op, plane.timestamp, len(plane.state.streams)) == (3, START + 3 * SECOND, 1)
    assert plane.apply(entry(4, Operation.LOGOUT, b"")) == b""


def test_a_body_that_does_not_decode_is_a_committed_refusal() -> None:
    plane = new_plane()
    assert plane.apply(entry(1, Operation.CREATE_STREAM, b"")) == bytes.fromhex("010000000000000003000000")
    assert plane.op == 1


def test_changes_name_partitions_slots_and_revisions(driver: Driver) -> None:
    plane = driver.plane
    settings = plane.state.streams[0].topics[0].settings
    driver.run(Operation.CREATE_PARTITIONS, CreatePartitions("s", "t", 1))
    created = (CreatedPartition(identity(2, 3), 2, 0),)
    assert plane.take_changes() == [PartitionsCreated(created, settings)]
    assert plane.take_changes() == []
    driver.run(Operation.DELETE_PARTITIONS, DeletePartitions("s", "t", 2))
    assert plane.take_changes() == [PartitionsDeleted((identity(1, 2), identity(2, 3)), (1, 2))]
    driver.run(Operation.CREATE_TOPIC, CreateTopic("s", 0, "empty"))
    driver.run(Operation.PURGE_TOPIC, PurgeTopic("s", "empty"))
    driver.run(Operation.DELETE_TOPIC, DeleteTopic("s", "empty"))
    assert plane.take_changes() == []
    driver.run(Operation.DELETE_STREAM, DeleteStream("s"))
    assert plane.take_changes() == [PartitionsDeleted((identity(0, 2),), (0,))]


def test_ids_and_slots_are_the_lowest_free_ones_and_revisions_tell_lives_apart(driver: Driver) -> None:
    driver.run(Operation.CREATE_TOPIC, CreateTopic("s", 2, "u"))
    driver.run(Operation.DELETE_TOPIC, DeleteTopic("s", "t"))
    driver.run(Operation.CREATE_TOPIC, CreateTopic("s", 3, "v"))
    owned = [(owned.identity, owned.slot) for owned in driver.plane.owned()]
    assert owned == [
        (identity(0, 5), 0),
        (identity(1, 5), 1),
        (identity(2, 5), 4),
        (identity(0, 3, 1), 2),
        (identity(1, 3, 1), 3),
    ]
    assert identity(0, 2).group == identity(0, 5).group


def test_a_purge_does_not_reach_partitions_that_were_created_after_it(driver: Driver) -> None:
    driver.run(Operation.PURGE_STREAM, PurgeStream("s"))
    driver.run(Operation.CREATE_PARTITIONS, CreatePartitions("s", "t", 1))
    changes = driver.plane.take_changes()
    assert changes[0] == TopicPurged((identity(0, 2), identity(1, 2)), 3)
    assert [owned.purge_generation for owned in driver.plane.owned()] == [3, 3, 0]
    driver.run(Operation.PURGE_TOPIC, PurgeTopic(0, 0))
    assert [owned.purge_generation for owned in driver.plane.owned()] == [5, 5, 5]


def test_an_update_tells_owners_only_what_changed(driver: Driver) -> None:
    driver.run(Operation.UPDATE_TOPIC, UpdateTopic("s", "t", "renamed"))
    assert driver.plane.take_changes() == []
    driver.run(
        Operation.UPDATE_TOPIC, UpdateTopic("s", "renamed", "t", (Option("message_expiry", TypedValue.text("1h")),))
    )
    (change,) = driver.plane.take_changes()
    assert isinstance(change, TopicUpdated)
    assert change.identities == (identity(0, 2), identity(1, 2))
    assert change.settings.message_expiry == 3_600 * SECOND


def test_an_update_is_checked_against_the_topic_that_it_meets(driver: Driver) -> None:
    small = Option("segment_size", TypedValue.text("1MiB"))
    driver.run(Operation.CREATE_TOPIC, CreateTopic("s", 1, "small", (small,)))
    update = UpdateTopic("s", "small", "small", (Option("max_topic_size", TypedValue.text("1MiB")),))
    operation, body = driver.plane.resolve(Operation.UPDATE_TOPIC, update.encode())
    driver.run(Operation.DELETE_TOPIC, DeleteTopic("s", "small"))
    driver.run(Operation.CREATE_TOPIC, CreateTopic("s", 1, "small"))
    reply = driver.plane.apply(entry(driver.plane.op + 1, operation, body))
    assert int.from_bytes(reply[8:12], "little") == 4042


def test_limits_of_ids(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    state = driver.plane.state
    state.stream_numbers = LowestFree(1, [0])
    assert driver.run(Operation.CREATE_STREAM, CreateStream("more"))[0] == 1020
    state.streams[0].topic_numbers = LowestFree(1, [0])
    assert driver.run(Operation.CREATE_TOPIC, CreateTopic("s", 1, "more"))[0] == 2021
    state.user_numbers = LowestFree(1, [0])
    assert driver.run(Operation.CREATE_USER, CreateUser("more", "secret", 1))[0] == 55
    monkeypatch.setattr(topics, "MAX_PARTITIONS", 5)
    assert driver.run(Operation.CREATE_PARTITIONS, CreatePartitions("s", "t", 4))[0] == 3013
    state.streams[0].topic_numbers = LowestFree(2, [0])
    assert driver.run(Operation.CREATE_TOPIC, CreateTopic("s", 6, "wide"))[0] == 3013
    assert driver.run(Operation.CREATE_TOPIC, CreateTopic("s", 5, "wide"))[0] == 0
    assert driver.run(Operation.CREATE_PARTITIONS, CreatePartitions("s", "t", 3))[0] == 0


def test_lowest_free_numbers() -> None:
    numbers = LowestFree(6, [4, 1])
    assert [numbers.take() for _ in range(3)] == [0, 2, 3]
    numbers.release(1)
    numbers.release(4)
    assert [numbers.take(), numbers.take(), numbers.take(), numbers.exhausted] == [1, 4, 5, True]
    numbers.release(0)
    assert (numbers.exhausted, numbers.used) == (False, 5)


# --- reads -----------------------------------------------------------------------------------------------------------


def counters(partition: Partition) -> tuple[int, int, int, int]:
    return 10 * (partition.id + 1), 1000 * (partition.id + 1), 10 * (partition.id + 1) - 1, partition.id + 1


def test_sums_are_made_from_the_counters_of_partitions(driver: Driver) -> None:
    body = driver.plane.query(CommandCode.GET_TOPIC, GetTopic("s", "t").encode(), 0, counters)
    topic = decode_reply(CommandCode.GET_TOPIC, body)
    assert isinstance(topic, TopicDetailsReply)
    assert (topic.topic.messages_count, topic.topic.size_bytes) == (30, 3000)
    assert [(p.messages_count, p.size_bytes, p.current_offset, p.segments_count) for p in topic.partitions] == [
        (10, 1000, 9, 1),
        (20, 2000, 19, 2),
    ]
    totals = queries.totals(driver.plane.state, counters)
    assert totals == queries.Totals(1, 1, 2, 3, 30, 3000, 0)


def test_options_in_replies_follow_an_update(driver: Driver) -> None:
    def explicit() -> list[str]:
        body = driver.plane.query(CommandCode.GET_TOPIC, GetTopic("s", "t").encode(), 0, zero_counters)
        reply = decode_reply(CommandCode.GET_TOPIC, body)
        assert isinstance(reply, TopicDetailsReply)
        assert reply.encode() == body
        return [option.key for option in reply.topic.options]

    assert explicit() == []
    driver.run(Operation.UPDATE_TOPIC, UpdateTopic("s", "t", "t", (Option("message_expiry", TypedValue.text("1h")),)))
    assert explicit() == ["message_expiry"]


def test_what_does_not_exist_is_an_empty_answer_even_without_rights(driver: Driver) -> None:
    def ask(code: int, body: bytes, user: int = 99) -> bytes:
        return driver.plane.query(code, body, user, zero_counters)

    assert ask(CommandCode.GET_STREAM, GetStream("x").encode()) == b""
    assert ask(CommandCode.GET_TOPIC, GetTopic("s", "x").encode()) == b""
    assert ask(CommandCode.GET_TOPIC, GetTopic("x", "t").encode()) == b""
    assert ask(CommandCode.GET_TOPICS, GetTopics("x").encode()) == bytes(4)
    assert ask(CommandCode.GET_USER, GetUser("x").encode()) == b""
    for code, request in (
        (CommandCode.GET_STREAM, GetStream("s")),
        (CommandCode.GET_STREAMS, GetStreams()),
        (CommandCode.GET_TOPIC, GetTopic("s", 0)),
        (CommandCode.GET_TOPICS, GetTopics("s")),
        (CommandCode.GET_USER, GetUser("iggy")),
        (CommandCode.GET_USERS, GetUsers()),
    ):
        with pytest.raises(RequestRefused) as refusal:
            ask(code, request.encode())
        assert refusal.value.code == 41
    with pytest.raises(RequestRefused) as refusal:
        ask(CommandCode.GET_STREAM, b"\x03\x01a", 0)
    assert refusal.value.code == 3
    with pytest.raises(RequestRefused):
        ask(CommandCode.DESCRIBE_OPTIONS, b"\x09", 0)
    assert len(ask(CommandCode.DESCRIBE_OPTIONS, b"\x01")) > len(DescribeOptions(1).encode())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("place", "code"), [(("x", "t", 0), 1009), (("s", "x", 0), 2010), (("s", "t", 2), 3007), ((0, 9, 0), 2010)]
)
def test_partitions_that_do_not_resolve(driver: Driver, place: tuple[int | str, int | str, int], code: int) -> None:
    with pytest.raises(RequestRefused) as refusal:
        driver.plane.find_partition(*place)
    assert refusal.value.code == code


def test_names_match_exactly(driver: Driver) -> None:
    assert driver.plane.find_partition("s", 0, 1) == identity(1, 2)
    assert driver.run(Operation.CREATE_STREAM, CreateStream("S"))[0] == 0
    assert driver.run(Operation.CREATE_STREAM, CreateStream("0"))[0] == 0
    assert driver.plane.find_partition(0, "t", 0) == identity(0, 2)
    with pytest.raises(RequestRefused):
        driver.plane.find_partition("S", "t", 0)


# --- users -----------------------------------------------------------------------------------------------------------


def test_a_password_is_hashed_before_it_reaches_the_log() -> None:
    driver = Driver()
    driver.run(Operation.CREATE_USER, CreateUser("alice", "open sesame", 9))
    resolved = CreateUserResolved.decode(driver.log[-1].body)
    assert (resolved.password_hash, resolved.status) == (hashed("open sesame"), UserStatus.ACTIVE)
    with pytest.raises(OurFault):
        driver.plane.resolve(Operation.CREATE_USER, CreateUser("bob", "secret", 1).encode())


def test_a_change_of_password_holds_only_while_the_old_hash_does() -> None:
    driver = Driver()
    driver.run(Operation.CREATE_USER, CreateUser("alice", "first", 1))
    change = ChangePassword("alice", "first", "second").encode()
    task = driver.plane.password_task(Operation.CHANGE_PASSWORD, change)
    operation, body = driver.plane.resolve(Operation.CHANGE_PASSWORD, change, secrets=passwords_for(task))
    assert driver.run(Operation.CHANGE_PASSWORD, ChangePassword("alice", "wrong", "third"), 1)[0] == 42
    assert driver.run(Operation.CHANGE_PASSWORD, ChangePassword("alice", "first", "third"), 1)[0] == 0
    late = driver.plane.apply(entry(driver.plane.op + 1, operation, body, 1))
    assert int.from_bytes(late[8:12], "little") == 42
    assert driver.plane.state.users[1].password_hash == hashed("third")
    assert driver.run(Operation.CHANGE_PASSWORD, ChangePassword("iggy", "iggy", "x"), 1)[0] == 41


def test_usernames_root_and_own_account() -> None:
    driver = Driver()
    assert driver.run(Operation.CREATE_USER, CreateUser("al", "secret", 1))[0] == 43
    assert driver.run(Operation.CREATE_USER, CreateUser("n" * 51, "secret", 1))[0] == 43
    assert driver.run(Operation.CREATE_USER, CreateUser("alice", "secret", 2))[0] == 0
    assert driver.run(Operation.UPDATE_USER, UpdateUser("alice", "iggy"))[0] == 46
    assert driver.run(Operation.UPDATE_USER, UpdateUser("alice", "a"))[0] == 43
    assert driver.run(Operation.UPDATE_USER, UpdateUser("alice", None, 7))[0] == 0
    assert driver.plane.state.users[1].status == UserStatus.INACTIVE
    assert driver.run(Operation.UPDATE_USER, UpdateUser(0, None, 2))[0] == 45
    assert driver.run(Operation.DELETE_USER, DeleteUser("iggy"))[0] == 48
    assert driver.plane.query(CommandCode.GET_USER, GetUser("alice").encode(), 1, zero_counters) != b""
    driver.plane.take_changes()
    driver.run(Operation.DELETE_USER, DeleteUser(1))
    assert driver.plane.take_changes() == [UserDeleted(1)]
    assert driver.run(Operation.CREATE_USER, CreateUser("bob", "secret", 1))[1][:4] == (1).to_bytes(4, "little")
