"""Frames between members: what is encoded is decoded, and whatever else comes is a typed error."""

from __future__ import annotations

import random

import pytest

from shardsrv._core import Prepare, xxh3
from shardsrv.errors import DecodeError, DiskFault, ShardsrvError
from shardsrv.vsr.frames import RepairPrepare, body_fields, decode_frame, encode_frame
from shardsrv.vsr.nonce import Nonces
from shardsrv.wire.constants import MAX_VIEW
from shardsrv.wire.replica_headers import CommitHeader, DoViewChangeHeader, StartViewChangeHeader, StateChunkHeader
from tests.support.vsr_cluster import CLUSTER, GROUP, SEND


def prepare(body: bytes = b"12345678") -> Prepare:
    return Prepare.build(
        cluster=CLUSTER,
        view=2,
        replica=1,
        client=bytes(16),
        parent=5,
        request_checksum=0,
        op=9,
        commit=8,
        timestamp=77,
        request=0,
        operation=SEND,
        group=GROUP,
        user_id=0,
        created_revision=7,
        durability=0,
        body=body,
        checksum_body=xxh3(body),
    )


def test_a_prepare_travels_and_keeps_its_identity_in_a_later_view() -> None:
    made = prepare()
    header, body = decode_frame(encode_frame(made.restamped(5), made.body))
    assert isinstance(header, Prepare) and bytes(body) == b"12345678"
    assert (header.view, header.born_view, header.checksum) == (5, 2, made.checksum)
    assert header.with_view(header.born_view) == made


def test_a_repaired_prepare_is_told_from_a_live_one() -> None:
    made = prepare()
    header, _ = decode_frame(encode_frame(made.restamped(5, True), made.body))
    assert isinstance(header, RepairPrepare) and header.repair and header.prepare.checksum == made.checksum
    assert (header.group, header.created_revision, header.cluster) == (GROUP, 7, CLUSTER)


def test_a_control_frame_travels_with_its_body_hash() -> None:
    body = b"artifact bytes"
    sent = StateChunkHeader(cluster=CLUSTER, group=GROUP, nonce=3, **body_fields(body))
    header, got = decode_frame(encode_frame(sent, body))
    assert header.nonce == 3 and bytes(got) == body
    with pytest.raises(DecodeError):
        decode_frame(encode_frame(sent, b"artifact bytez"))


@pytest.mark.parametrize("frame", [prepare().restamped(2) + b"12345678", CommitHeader(group=GROUP).pack()])
def test_any_damaged_byte_and_any_other_length_is_refused(frame: bytes) -> None:
    decode_frame(frame)
    for at in range(len(frame)):
        damaged = bytearray(frame)
        damaged[at] ^= 1 << at % 8
        with pytest.raises((DecodeError, DiskFault)):
            decode_frame(bytes(damaged))
    for length in (0, 255, len(frame) - 1, len(frame) + 1):
        with pytest.raises((DecodeError, DiskFault)):
            decode_frame((frame + b"x")[:length])


def test_frames_of_clients_and_links_are_not_for_a_group() -> None:
    for command in (0, 1, 5, 8, 13, 14, 15, 16, 26, 29, 30, 255):
        frame = bytearray(CommitHeader(group=GROUP).pack())
        frame[60] = command
        with pytest.raises(DecodeError):
            decode_frame(bytes(frame))


def test_a_view_without_a_next_one_is_refused() -> None:
    """A member that took over the last view that fits the field could not write the next one any more."""
    for view in (0, MAX_VIEW):
        assert decode_frame(StartViewChangeHeader(group=GROUP, view=view).pack())[0].view == view
    for view in (MAX_VIEW + 1, 2**32 - 1):
        with pytest.raises(DecodeError):
            decode_frame(StartViewChangeHeader(group=GROUP, view=view).pack())


def test_noise_is_never_anything_but_a_typed_error() -> None:
    dice = random.Random(5)
    header = bytearray(DoViewChangeHeader(group=GROUP).pack())
    for _ in range(2000):
        noise = bytearray(header)
        for _ in range(dice.randint(1, 6)):
            noise[dice.randrange(256)] = dice.randrange(256)
        try:
            decode_frame(bytes(noise))
        except ShardsrvError:
            continue
        assert noise == header


def test_nonces_are_never_zero_never_again_and_the_same_for_a_seed() -> None:
    first, second = Nonces(7), Nonces(8)
    drawn = [first.draw() for _ in range(1000)]
    assert len({*drawn, *(second.draw() for _ in range(1000))}) == 2000 and all(drawn)
    again = Nonces(7)
    assert drawn == [again.draw() for _ in range(1000)]
    assert max(drawn) < 1 << 128
