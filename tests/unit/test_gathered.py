"""Frames of many groups: what they say is what frames of their own would have said, or nothing; who gathers them."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from shardsrv.errors import DecodeError
from shardsrv.shards.replica_frames import ReplicaFrames
from shardsrv.vsr.effects import Send
from shardsrv.vsr.frames import body_fields, decode_frame, encode_frame, split
from shardsrv.vsr.gathering import Gathering
from shardsrv.wire import gathered
from shardsrv.wire.constants import MAX_OP, AckedAs
from shardsrv.wire.gathered import ENTRIES_MAX, GatheredHeader
from shardsrv.wire.replica_bodies import GroupLife, encode_not_served
from shardsrv.wire.replica_headers import CommitHeader, PrepareOkHeader, StartViewChangeHeader

GROUP = 1 << 32 | 2 << 20
SENDER: dict[str, Any] = {"cluster": b"c" * 16, "replica": 2}


def beat(number: int, **changes: Any) -> CommitHeader:
    facts = {"group": GROUP | number, "created_revision": 7, "view": 5, "commit": 40 + number}
    return CommitHeader(**SENDER, **(facts | {"commit_checksum": 1 << 63, "timestamp_monotonic": 9} | changes))


def acknowledgement(number: int, **changes: Any) -> PrepareOkHeader:
    facts = {"group": GROUP | number, "created_revision": 8, "view": 6, "op": 3, "commit": 2, "parent": 11}
    more = {"prepare_checksum": 1 << 127, "timestamp": 13, "request": 14, "operation": 160, "acked_as": AckedAs.SYNCED}
    return PrepareOkHeader(**SENDER, **(facts | more | changes))


def frame(body: bytes) -> bytes:
    return encode_frame(GatheredHeader(**SENDER, **body_fields(body)), body)


def plain(header: Any) -> dict[str, Any]:
    """The fields of a header but those of its own frame."""
    return {name: value for name, value in attrs.asdict(header).items() if name not in ("checksum", "size")}


def test_what_is_gathered_comes_out_as_it_was() -> None:
    said = [beat(1), acknowledgement(2), beat(3), acknowledgement(4, acked_as=AckedAs.APPENDED)]
    header, body = decode_frame(frame(gathered.encode(said)))
    found = split(header, body)
    assert [type(each) for each in found] == [type(each) for each in said]
    assert [plain(each) for each in found] == [plain(each) for each in said]


def test_every_length_but_those_of_whole_entries_is_refused() -> None:
    body = gathered.encode([beat(1), acknowledgement(2)])
    whole = {len(gathered.encode([beat(1)])), len(body)}
    for length in range(len(body) + 1):
        header, found = decode_frame(frame(body[:length]))
        if length in whole:
            assert len(split(header, found)) == 1 + (length == len(body))
        else:
            with pytest.raises(DecodeError):
                split(header, found)


@pytest.mark.parametrize(
    "position, value", [(0, 0), (0, 3), (1, 1), (3, 1), (23, 0x80), (47, 0x80), (55, 0x80), (63, 0x80)]
)
def test_a_heartbeat_that_lies_takes_the_whole_frame_with_it(position: int, value: int) -> None:
    body = bytearray(gathered.encode([acknowledgement(1), beat(2)]))
    body[len(gathered.encode([acknowledgement(1)])) + position] = value
    header, found = decode_frame(frame(bytes(body)))
    with pytest.raises(DecodeError):
        split(header, found)


@pytest.mark.parametrize(
    "position, value", [(2, 3), (3, 1), (23, 0x80), (63, 0x80), (71, 0x80), (79, 0x80), (87, 0x80)]
)
def test_an_acknowledgement_that_lies_takes_the_whole_frame_with_it(position: int, value: int) -> None:
    body = bytearray(gathered.encode([acknowledgement(1)]))
    body[position] = value
    header, found = decode_frame(frame(bytes(body)))
    with pytest.raises(DecodeError):
        split(header, found)


def test_more_entries_than_a_frame_takes_are_refused() -> None:
    header, body = decode_frame(frame(gathered.encode([beat(1)]) * (ENTRIES_MAX + 1)))
    with pytest.raises(DecodeError, match=str(ENTRIES_MAX)):
        split(header, body)


def test_one_alone_leaves_as_it_is_and_many_in_one_frame_a_peer() -> None:
    gathering = Gathering()
    alone = Send(1, beat(1), b"")
    assert gathering.add(alone) and all(gathering.add(Send(2, beat(number), b"")) for number in range(5))
    first, second = gathering.take()
    assert first is alone
    assert second.replica == 2 and len(split(*decode_frame(encode_frame(second.header, second.body)))) == 5
    assert gathering.empty and list(gathering.take()) == []


def test_as_many_frames_as_it_takes() -> None:
    gathering = Gathering()
    for number in range(ENTRIES_MAX + 2):
        gathering.add(Send(1, acknowledgement(number % 100, op=number + 1), b""))
    counts = [len(split(*decode_frame(encode_frame(sent.header, sent.body)))) for sent in gathering.take()]
    assert counts == [ENTRIES_MAX, 2]


def test_what_has_a_body_or_is_something_else_leaves_at_once() -> None:
    gathering = Gathering()
    body = encode_not_served([GroupLife(GROUP, 7)])
    assert not gathering.add(Send(1, beat(1, **body_fields(body)), body))
    assert not gathering.add(Send(1, StartViewChangeHeader(**SENDER, group=GROUP), b""))
    assert not gathering.add(Send(1, b"a prepare" * 29, b""))
    assert gathering.empty


class Group:
    def __init__(self) -> None:
        self.messages: list[Any] = []

    def deliver(self, message: Any) -> None:
        self.messages.append(message)


def test_each_group_hears_what_is_about_it_and_what_has_no_group_yet_waits() -> None:
    groups: dict[tuple[int, int], Group] = {(GROUP | 1, 7): Group(), (GROUP | 2, 8): Group()}
    frames = ReplicaFrames(lambda *key: groups.get(key), frame_max=1 << 20, parks=True)  # type: ignore[arg-type, return-value]
    frames.receive(2, frame(gathered.encode([beat(1), acknowledgement(2), beat(3)])))
    assert [message.header.commit for message in groups[GROUP | 1, 7].messages] == [41]
    assert [(message.peer, message.header.op) for message in groups[GROUP | 2, 8].messages] == [(2, 3)]
    late = groups[GROUP | 3, 7] = Group()
    frames.made(GROUP | 3, 7)
    assert [message.header.commit for message in late.messages] == [43]


def test_a_frame_that_does_not_hold_reaches_nobody() -> None:
    groups = {(GROUP | 1, 7): Group()}
    frames = ReplicaFrames(lambda *key: groups.get(key), frame_max=1 << 20, parks=True)  # type: ignore[arg-type, return-value]
    frames.receive(2, frame(gathered.encode([beat(1)]) + b"\1"))
    assert groups[GROUP | 1, 7].messages == [] and frames.refused == 1


def test_numbers_are_bounded_like_those_of_a_frame_of_their_own() -> None:
    header, body = decode_frame(frame(gathered.encode([beat(1, commit=MAX_OP)])))
    assert split(header, body)[0].commit == MAX_OP
