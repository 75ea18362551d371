"""The payload of a metadata snapshot: same state, same bytes; what is damaged is named; nothing is built on it."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest

from shardsrv.errors import DecodeError, UnsupportedVersion
from shardsrv.plane.metadata import queries, snapshot
from shardsrv.plane.metadata.state import ConsumerGroup, HandOver, Member, MetadataState, Token
from shardsrv.wire.constants import Operation
from shardsrv.wire.options import Option, decode_options, encode_options
from shardsrv.wire.permissions import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions
from shardsrv.wire.streams import CreateStream, DeleteStream, PurgeStream
from shardsrv.wire.topics import CreatePartitions, CreateTopic, DeleteTopic
from shardsrv.wire.typed_values import TypedValue
from shardsrv.wire.users import CreateUser
from tests.support.metadata import Driver, new_plane

ROOT = Path(__file__).parent.parent.parent
CLIENT_TABLE: list[Any] = [[0, bytes(range(16)), 3, 0, 7, 2**64 - 1, [[7, 9, 3, 4, 128, b"reply"]]]]


def populated() -> Driver:
    """Every kind of record, in an order of making that is not the order of ids; names that hash seeds would shuffle."""
    driver = Driver()
    for name in ("zeta", "alpha", "поток", "mid"):
        driver.run(Operation.CREATE_STREAM, CreateStream(name))
    driver.run(Operation.DELETE_STREAM, DeleteStream("alpha"))
    options = (Option("segment_size", TypedValue.text("2MiB")), Option("enforce_fsync", TypedValue.text("true")))
    driver.run(Operation.CREATE_TOPIC, CreateTopic("zeta", 3, "events", options))
    driver.run(Operation.CREATE_TOPIC, CreateTopic("zeta", 1, "gone"))
    driver.run(Operation.CREATE_TOPIC, CreateTopic("zeta", 2, "audit"))
    driver.run(Operation.DELETE_TOPIC, DeleteTopic("zeta", "gone"))
    driver.run(Operation.CREATE_PARTITIONS, CreatePartitions("zeta", "audit", 3))
    driver.run(Operation.PURGE_STREAM, PurgeStream("zeta"))
    permissions = Permissions(
        GlobalPermissions(read_streams=True),
        {
            9: StreamPermissions(send_messages=True),
            0: StreamPermissions(topics={5: TopicPermissions(True), 1: TopicPermissions()}),
        },
    )
    driver.run(Operation.CREATE_USER, CreateUser("walter", "secret", 2, permissions))
    driver.run(Operation.CREATE_USER, CreateUser("berta", "secret", 1))
    add_groups_and_tokens(driver.plane.state)
    return driver


def add_groups_and_tokens(state: MetadataState) -> None:
    topic = state.streams[0].topics[0]
    topic.next_group_id = 4
    for number, name in ((3, "workers"), (1, "readers")):
        topic.groups[number] = ConsumerGroup(number, name, 2, generation=5)
        topic.group_ids[name] = number
    handing_over = [HandOver(2, 0, 8)]
    topic.groups[3].members = {2: Member(2, b"b" * 16, 7, [1, 2], handing_over), 0: Member(0, b"a" * 16, 6, [0])}
    state.memberships = {b"b" * 16: [(0, 0, 3)], b"a" * 16: [(0, 0, 3)]}
    berta = state.users[2]
    for name in ("night", "build", "ops"):
        berta.tokens[name] = Token(name, f"digest of {name}", 17)
        state.token_owners[f"digest of {name}"] = 2


def encoded(driver: Driver, client_table: list[Any] | None = None) -> bytes:
    table = CLIENT_TABLE if client_table is None else client_table
    return driver.plane.encode_snapshot(checksum=2**64 - 1, created_at=1_800_000_000_000_000, client_table=table)


def test_round_trip_gives_the_same_bytes_and_the_same_state() -> None:
    driver = populated()
    payload = encoded(driver)
    decoded = snapshot.decode(payload)
    assert decoded.state == driver.plane.state
    assert (decoded.op, decoded.checksum, decoded.created_at) == (driver.plane.op, 2**64 - 1, 1_800_000_000_000_000)
    assert decoded.timestamp == driver.plane.timestamp
    assert decoded.client_table == CLIENT_TABLE
    assert snapshot.reencode(decoded) == payload
    assert snapshot.reencode(snapshot.decode(snapshot.reencode(decoded))) == payload


def test_a_restored_plane_goes_on_like_the_one_it_was_taken_from() -> None:
    driver = populated()
    restored = new_plane()
    restored.restore(snapshot.decode(encoded(driver)))
    other = Driver(restored)
    for name in ("alpha", "beta"):
        stream, topic = CreateStream(name), CreateTopic(name, 2, "t")
        assert driver.run(Operation.CREATE_STREAM, stream) == other.run(Operation.CREATE_STREAM, stream)
        assert driver.run(Operation.CREATE_TOPIC, topic) == other.run(Operation.CREATE_TOPIC, topic)
    user = CreateUser("carla", "secret", 1)
    assert driver.run(Operation.CREATE_USER, user) == other.run(Operation.CREATE_USER, user)
    assert encoded(driver) == encoded(other)
    assert restored.state.find_stream("beta") is not None
    assert restored.state.find_token("digest of ops") == (
        restored.state.users[2],
        restored.state.users[2].tokens["ops"],
    )
    assert restored.state.memberships_of(b"b" * 16) == [(0, 0, 3)]
    assert restored.state.streams[0].topics[0].find_group("workers") is restored.state.streams[0].topics[0].groups[3]


def test_bytes_do_not_depend_on_the_order_in_which_records_were_made() -> None:
    driver = populated()
    payload = encoded(driver)
    state = driver.plane.state
    state.streams = dict(reversed(state.streams.items()))
    state.users = dict(reversed(state.users.items()))
    for stream in state.streams.values():
        stream.topics = dict(reversed(stream.topics.items()))
        for topic in stream.topics.values():
            explicit, derived = dict(reversed(topic.explicit.items())), dict(reversed(topic.derived.items()))
            topic.set_options(explicit, derived, topic.settings)
            topic.groups = dict(reversed(topic.groups.items()))
    assert encoded(driver) == payload


def test_bytes_do_not_depend_on_the_hash_seed() -> None:
    code = "from tests.unit.test_metadata_snapshot import *; print(encoded(populated()).hex())"
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.strip()
        for seed in ("0", "1", "4242")
    ]
    assert outputs == [encoded(populated()).hex()] * 3


def test_a_decoded_snapshot_changes_nothing_until_it_is_restored() -> None:
    driver = populated()
    plane = new_plane()
    before = copy.deepcopy(plane.state)
    decoded = snapshot.decode(encoded(driver))
    assert plane.state == before
    plane.restore(decoded)
    assert plane.state is decoded.state
    assert (plane.op, plane.timestamp) == (driver.plane.op, driver.plane.timestamp)
    assert plane.take_changes() == []


def test_a_restore_leaves_the_counters_of_partitions_where_they_are() -> None:
    """S2-123, S2-125: no snapshot has them; they lie at the slot that the partition's record names, and a partition
    that was deleted meanwhile, or made again under its number, is told by its revision."""
    driver = populated()
    plane, payload = driver.plane, encoded(driver)
    counted = {owned.slot: 42 + owned.slot for owned in plane.owned()}
    slots = {owned.identity: owned.slot for owned in plane.owned()}

    def totals() -> queries.Totals:
        return queries.totals(plane.state, lambda partition: (counted[partition.slot], 0, 0, 1))

    before = totals()
    assert before.messages == sum(counted.values()) > 42
    plane.restore(snapshot.decode(payload))
    assert totals() == before and plane.take_changes() == [], "nobody is told to make or to clear anything"
    driver.run(Operation.DELETE_TOPIC, DeleteTopic("zeta", "events"))
    driver.run(Operation.CREATE_TOPIC, CreateTopic("zeta", 3, "events"))
    later = {owned.identity for owned in plane.owned()}
    gone = slots.keys() - later
    assert gone and {identity.group for identity in gone} & {identity.group for identity in later}
    plane.restore(snapshot.decode(payload))
    assert {owned.identity: owned.slot for owned in plane.owned()} == slots


@pytest.mark.parametrize("kept", range(1, len(snapshot.SECTIONS)))
def test_a_missing_section_is_named(kept: int) -> None:
    sections = msgpack.unpackb(encoded(populated()))[:kept]
    with pytest.raises(DecodeError) as failure:
        snapshot.decode(msgpack.packb(sections))
    assert failure.value.what == f"snapshot section {snapshot.SECTIONS[kept]}"


def test_a_newer_format_is_not_guessed_at() -> None:
    sections = msgpack.unpackb(encoded(populated()))
    sections[0] = snapshot.FORMAT_VERSION + 1
    with pytest.raises(UnsupportedVersion) as failure:
        snapshot.decode(msgpack.packb(sections))
    assert (failure.value.found, failure.value.highest) == (snapshot.FORMAT_VERSION + 1, snapshot.FORMAT_VERSION)


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", b"\x90", b"\x01", b"\x98\x01", b"\xdd\xff\xff\xff\xff", msgpack.packb({1: 2})]
)
def test_what_is_no_snapshot_is_refused(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        snapshot.decode(payload)


def test_every_cut_and_trailing_byte_is_refused() -> None:
    payload = encoded(populated())
    for length in range(0, len(payload), 7):
        with pytest.raises(DecodeError):
            snapshot.decode(payload[:length])
    with pytest.raises(DecodeError):
        snapshot.decode(payload + b"\x00")


def test_another_encoding_of_the_same_state_is_refused() -> None:
    payload = encoded(populated())
    assert payload[:2] == b"\x98\x01"
    with pytest.raises(DecodeError, match="canonical"):
        snapshot.decode(b"\x98\xcc\x01" + payload[2:])


def _topic(sections: list[Any]) -> list[Any]:
    topic: list[Any] = sections[5][0][4][0]
    return topic


def _members(sections: list[Any]) -> list[Any]:
    members: list[Any] = _topic(sections)[9][1][4]
    return members


def _append(sections: list[Any], field: int, key: str, value: str) -> None:
    topic = _topic(sections)
    topic[field] = encode_options((*decode_options(topic[field]), Option(key, TypedValue.text(value))))


DAMAGE: dict[str, Callable[[list[Any]], Any]] = {
    "op above the bound": lambda s: s.__setitem__(2, 2**62),
    "op that is a bool": lambda s: s.__setitem__(2, True),
    "checksum that is text": lambda s: s.__setitem__(3, "x"),
    "streams that are no array": lambda s: s.__setitem__(5, None),
    "stream without a field": lambda s: s[5][0].pop(),
    "stream id out of order": lambda s: s[5].reverse(),
    "stream id above the limit": lambda s: s[5][-1].__setitem__(0, 2**20),
    "stream name twice": lambda s: s[5][1].__setitem__(1, s[5][0][1]),
    "stream without a name": lambda s: s[5][0].__setitem__(1, ""),
    "stream name too long": lambda s: s[5][0].__setitem__(1, "n" * 256),
    "stream created after the snapshot": lambda s: s[5][0].__setitem__(3, s[2] + 1),
    "topic twice": lambda s: s[5][0][4].append(s[5][0][4][-1]),
    "topic id above the limit": lambda s: _topic(s).__setitem__(0, 4096),
    "topic name twice": lambda s: s[5][0][4][1].__setitem__(1, _topic(s)[1]),
    "option that does not exist": lambda s: _append(s, 4, "zzz", "v"),
    "option explicit and derived": lambda s: _append(s, 5, "segment_size", "2MiB"),
    "option missing": lambda s: _topic(s).__setitem__(5, b""),
    "option value out of bounds": lambda s: _topic(s).__setitem__(4, _topic(s)[4].replace(bytes(5), b"\x07" * 5)),
    "options out of order": lambda s: _topic(s).__setitem__(5, encode_options(decode_options(_topic(s)[5])[::-1])),
    "options that are no block": lambda s: _topic(s).__setitem__(4, _topic(s)[4][:-1]),
    "options that are no bytes": lambda s: _topic(s).__setitem__(4, []),
    "purge after the snapshot": lambda s: _topic(s).__setitem__(6, s[2] + 1),
    "partition missing": lambda s: _topic(s)[7].pop(0),
    "partition created after the snapshot": lambda s: _topic(s)[7][0].__setitem__(1, s[2] + 1),
    "two partitions on one slot": lambda s: _topic(s)[7][1].__setitem__(4, _topic(s)[7][0][4]),
    "slot above the bound": lambda s: _topic(s)[7][0].__setitem__(4, 2**31),
    "group id not given out yet": lambda s: _topic(s).__setitem__(8, 3),
    "group name twice": lambda s: _topic(s)[9][0].__setitem__(1, _topic(s)[9][1][1]),
    "member with half a client id": lambda s: _topic(s)[9][1][4][0].__setitem__(1, b"a" * 8),
    "member of a partition that does not exist": lambda s: _members(s)[0][3].append(3),
    "member with another's partition": lambda s: _members(s)[0][3].append(1),
    "member of a later session": lambda s: _members(s)[0].__setitem__(2, s[2] + 1),
    "two memberships of one client": lambda s: _members(s)[1].__setitem__(1, _members(s)[0][1]),
    "hand-over of another's partition": lambda s: _members(s)[0][4].append([1, 2, 8]),
    "hand-over to nobody": lambda s: _members(s)[1][4][0].__setitem__(1, 5),
    "hand-over to oneself": lambda s: _members(s)[1][4][0].__setitem__(1, 2),
    "hand-over after the snapshot": lambda s: _members(s)[1][4][0].__setitem__(2, s[2] + 1),
    "no root": lambda s: s[6].pop(0),
    "no users": lambda s: s[6].clear(),
    "user id out of order": lambda s: s[6][2].__setitem__(0, 1),
    "username twice": lambda s: s[6][2].__setitem__(1, s[6][1][1]),
    "user status unknown": lambda s: s[6][1].__setitem__(3, 3),
    "user without a password hash": lambda s: s[6][1].__setitem__(4, ""),
    "permissions cut short": lambda s: s[6][1].__setitem__(5, s[6][1][5][:-1]),
    "token digest twice": lambda s: s[6][2][6][1].__setitem__(1, s[6][2][6][0][1]),
    "tokens out of order": lambda s: s[6][2][6].reverse(),
    "client table that is no array": lambda s: s.__setitem__(7, {}),
    "one section more": lambda s: s.append([]),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_refused(name: str) -> None:
    sections = msgpack.unpackb(encoded(populated()))
    DAMAGE[name](sections)
    with pytest.raises(DecodeError):
        snapshot.decode(msgpack.packb(sections))
