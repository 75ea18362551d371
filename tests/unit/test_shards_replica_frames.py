"""Frames of other nodes: to their group, kept for a moment, or dropped; the copy of the metadata behind a state."""

from __future__ import annotations

from typing import Any

import pytest

from shardsrv._core import Prepare, xxh3
from shardsrv.plane.metadata import snapshot
from shardsrv.plane.metadata.options_catalog import TopicDefaults
from shardsrv.plane.metadata.plane import MetadataPlane
from shardsrv.plane.metadata.state import MetadataState
from shardsrv.shards.metadata_copy import MetadataCopy
from shardsrv.shards.replica_frames import PARKED_FRAMES, PARKED_TICKS, ReplicaFrames
from shardsrv.wire.constants import Operation
from shardsrv.wire.replica_headers import CommitHeader

GROUP, REVISION = 1 << 32 | 2 << 20 | 3, 7
FRAME_MAX = 1 << 20


class Group:
    def __init__(self) -> None:
        self.messages: list[Any] = []

    def deliver(self, message: Any) -> None:
        self.messages.append(message)


class Shard:
    def __init__(self, parks: bool = True) -> None:
        self.groups: dict[tuple[int, int], Group] = {}
        self.frames = ReplicaFrames(
            lambda group, revision: self.groups.get((group, revision)),  # type: ignore[arg-type, return-value]
            frame_max=FRAME_MAX,
            parks=parks,
        )


def frame(commit: int, revision: int = REVISION) -> bytes:
    return CommitHeader(cluster=bytes(16), group=GROUP, created_revision=revision, commit=commit).pack()


def test_a_frame_reaches_its_group_with_the_node_of_the_link_as_its_sender() -> None:
    shard = Shard()
    group = shard.groups[GROUP, REVISION] = Group()
    shard.frames.receive(2, frame(5))
    (message,) = group.messages
    assert (message.peer, message.header.commit) == (2, 5)


def test_what_does_not_verify_reaches_nobody() -> None:
    shard = Shard()
    group = shard.groups[GROUP, REVISION] = Group()
    damaged = bytearray(frame(5))
    damaged[150] ^= 1
    shard.frames.receive(2, bytes(damaged))
    shard.frames.receive(2, frame(5) + b"behind")
    assert group.messages == [] and shard.frames.refused == 2


def test_a_partition_that_is_being_made_gets_what_came_before_it() -> None:
    shard = Shard()
    for number in (1, 2):
        shard.frames.receive(2, frame(number))
    shard.frames.receive(2, frame(3, revision=8))
    group = shard.groups[GROUP, REVISION] = Group()
    shard.frames.made(GROUP, REVISION)
    assert [message.header.commit for message in group.messages] == [1, 2]
    shard.frames.made(GROUP, REVISION)
    assert len(group.messages) == 2


def test_frames_wait_for_a_bounded_time_and_number() -> None:
    shard = Shard()
    for number in range(PARKED_FRAMES + 5):
        shard.frames.receive(2, frame(number))
    assert shard.frames.homeless == 5
    for _ in range(PARKED_TICKS):
        shard.frames.tick()
    assert shard.frames.homeless == PARKED_FRAMES + 5
    group = shard.groups[GROUP, REVISION] = Group()
    shard.frames.made(GROUP, REVISION)
    assert group.messages == []


def test_shard_0_makes_no_partitions_and_keeps_nothing() -> None:
    shard = Shard(parks=False)
    shard.frames.receive(2, frame(1))
    assert shard.frames.homeless == 1


# --- the copy of the metadata ----------------------------------------------------------------------------------------


def plane() -> MetadataPlane:
    return MetadataPlane(MetadataState.initial("iggy", "hash"), TopicDefaults())


def entry(op: int) -> Prepare:
    name = f"stream {op}"
    body = bytes([len(name)]) + name.encode()
    return Prepare.build(
        cluster=bytes(16),
        view=0,
        replica=0,
        client=bytes(16),
        parent=0,
        request_checksum=0,
        op=op,
        commit=0,
        timestamp=op,
        request=0,
        operation=int(Operation.CREATE_STREAM),
        group=1 << 63,
        user_id=0,
        created_revision=0,
        durability=1,
        body=body,
        checksum_body=xxh3(body),
    )


class Copy:
    def __init__(self) -> None:
        self.plane = plane()
        self.told: list[Any] = []
        self.copy = MetadataCopy(
            self.plane,
            applied=lambda prepare: self.told.append(prepare.op),
            replaced=lambda: self.told.append(f"state of {self.plane.op}"),
        )

    def commits(self, *entries: Prepare) -> None:
        for item in entries:
            self.copy.committed(memoryview(bytes(item.header)), memoryview(bytes(item.body)))

    def announce(self) -> None:
        self.copy.announced(memoryview(b""), memoryview(b""))


@pytest.fixture
def entries() -> list[Prepare]:
    return [entry(op) for op in range(1, 7)]


def state_after(entries: list[Prepare]) -> bytes:
    made = plane()
    for item in entries:
        made.apply(item)
    return snapshot.encode(made.state, op=made.op, checksum=0, timestamp=made.timestamp, created_at=0, client_table=[])


@pytest.mark.parametrize("first", ["announcement", "state"])
def test_entries_behind_a_state_wait_for_it(entries: list[Prepare], first: str) -> None:
    copy = Copy()
    copy.commits(entries[0])
    payload = state_after(entries[:4])
    if first == "announcement":
        copy.announce()
        copy.commits(*entries[3:5])
        assert copy.told == [1]
        copy.copy.came(payload)
    else:
        copy.copy.came(payload)
        copy.commits(entries[1])
        copy.announce()
        copy.commits(*entries[3:5])
    copy.commits(entries[5])
    assert copy.told == [1, *([2] if first == "state" else []), "state of 4", 5, 6]
    assert [stream.name for stream in copy.plane.state.streams.values()] == [f"stream {op}" for op in range(1, 7)]
