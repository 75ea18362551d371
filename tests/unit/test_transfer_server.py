"""The serving side: who gets which offer, what goes out, and when an offer ends."""

from __future__ import annotations

from typing import Any

import pytest

from shardsrv.errors import DiskFault
from shardsrv.vsr import client_table_wire
from shardsrv.vsr import transfer_notes as notes
from shardsrv.vsr.transfer_effects import LoadOffer, Note, ReadChunk, ReleaseOffer
from shardsrv.vsr.transfer_faults import NoCoordinator, NoSnapshot, NotCaughtUpPrimary, SnapshotUnreadable
from shardsrv.vsr.transfer_limits import TransferLimitInvalid, TransferLimits, chunk_payload_max
from shardsrv.vsr.transfer_offer import Offer, Sent
from shardsrv.wire.manifest import Artifact, decode_manifest
from shardsrv.wire.replica_headers import (
    RequestStateChunkHeader,
    RequestStateTransferHeader,
    StateChunkHeader,
    StateTransferTargetHeader,
)
from tests.support.transfers import CLUSTER, Link, Member, client_id, serving, snapshot_bytes


def fields(member: Member, requester: int, nonce: int) -> dict[str, Any]:
    return {"cluster": CLUSTER, "replica": requester, "group": member.host.identity.group, "nonce": nonce}


def feed(member: Member, header: Any) -> None:
    out: list[Any] = []
    member.transfer.message(header, b"", out)
    member.run(out)


def request(member: Member, requester: int = 1, nonce: int = 77) -> None:
    feed(member, RequestStateTransferHeader(**fields(member, requester, nonce)))


def ask(member: Member, artifact: int, offset: int, length: int = 64, requester: int = 1, nonce: int = 77) -> None:
    wanted = {"artifact": artifact, "offset": offset, "length": length}
    feed(member, RequestStateChunkHeader(**fields(member, requester, nonce), **wanted))


def targets(member: Member) -> list[StateTransferTargetHeader]:
    return member.sent(StateTransferTargetHeader)


def chunks(member: Member) -> list[StateChunkHeader]:
    return member.sent(StateChunkHeader)


def fetch_all(member: Member, requester: int = 1, nonce: int = 77) -> None:
    """Ask for every byte once."""
    offer = member.transfer.server._served[requester].offer
    for index, (artifact, _) in enumerate(offer.artifacts):
        for offset in range(0, artifact.length, 64):
            ask(member, index, offset, 64, requester, nonce)


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame_max", "payload"),
    [(0, 1), (256, 1), (257, 1), (1024, 768), (256 + 262_144, 262_144), (64 << 20, 262_144), (1 << 70, 262_144)],
)
def test_chunk_payload(frame_max: int, payload: int) -> None:
    assert chunk_payload_max(frame_max) == payload


def test_an_interval_has_at_least_one_tick() -> None:
    assert TransferLimits(retry_ticks=0).retry_ticks == 1
    member = serving(limits=TransferLimits(frame_max=320, retry_ticks=0))
    request(member)
    member.tick()
    assert member.transfer.server.offers == 1, "an offer does not go on the tick after it was made"


@pytest.mark.parametrize(("window", "queue", "fits"), [(8, 16, True), (9, 16, False), (0, 16, False), (1, 2, True)])
def test_a_window_leaves_room_in_the_queue(window: int, queue: int, fits: bool) -> None:
    limits = TransferLimits(window_chunks=window)
    if fits:
        limits.check_queue(queue)
    else:
        with pytest.raises(TransferLimitInvalid) as refusal:
            limits.check_queue(queue)
        assert refusal.value.key == "window_chunks" and refusal.value.other == "peer_queue_capacity"


# --- offers -----------------------------------------------------------------------------------------------------------


def test_an_offer_lists_snapshot_then_table() -> None:
    member = serving(op=40, commit=50)
    request(member)
    (header,) = targets(member)
    assert (header.available, header.commit_op, header.commit_max, header.nonce) == (1, 50, 50, 77)
    kinds = [(artifact.kind, artifact.frontier) for artifact, _ in member.transfer.server._cache.artifacts]
    assert kinds == [(0, 40), (1, 50)]


@pytest.mark.parametrize(
    ("change", "kind", "level", "passing"),
    [
        (lambda member: setattr(member.host, "caught_up_primary", False), NotCaughtUpPrimary, "info", 1),
        (lambda member: setattr(member.host, "offer_generation", None), NoCoordinator, "info", 0),
        (lambda member: setattr(member, "snapshot", None), NoSnapshot, "info", 0),
        (lambda member: setattr(member, "unreadable", True), SnapshotUnreadable, "error", 0),
    ],
    ids=["not caught up", "no coordinator", "no snapshot", "unreadable"],
)
def test_refusals_stay_apart(change: Any, kind: type, level: str, passing: int) -> None:
    member = serving()
    change(member)
    request(member)
    (header,) = targets(member)
    assert (header.available, header.size, header.unavailable_transient) == (0, 256, passing)
    (note,) = [effect for effect in member.log if type(effect) is Note]
    assert (note.name, note.level, note.facts["kind"]) == (notes.REFUSED, level, kind.__name__)
    assert kind.summary in note.facts["reason"]
    assert (getattr(kind(), "cause", None) is None) and member.transfer.server.offers == 0


def test_the_texts_of_the_refusals_differ() -> None:
    assert len({str(kind()) for kind in (NotCaughtUpPrimary, NoCoordinator, NoSnapshot, SnapshotUnreadable)}) == 4


def test_the_first_offer_to_a_nonce_stays() -> None:
    """Planted: made again, the table may be shorter and the requester's position lies at its end for ever."""
    member = serving(clients={1: 1, 2: 2, 3: 3})
    request(member)
    member.host.table.remove(client_id(3))
    member.host.commit_min = member.host.commit_max = 60
    member.host.offer_generation = 55
    member.snapshot = snapshot_bytes(55)
    request(member)
    first, second = targets(member)
    assert member.loads == 1 and (first.commit_op, first.size) == (second.commit_op, second.size)
    assert first.checksum_body == second.checksum_body, "the same manifest"
    assert notes.SERVED_AGAIN in member.notes()


def test_offers_of_a_generation_are_shared() -> None:
    member = serving()
    request(member, 1, 77)
    request(member, 2, 88)
    served = member.transfer.server._served
    assert served[1].offer is served[2].offer and member.loads == 1
    member.host.offer_generation = 45
    member.snapshot = snapshot_bytes(45)
    request(member, 2, 99)
    assert served[1].offer is not served[2].offer and member.loads == 2
    assert served[2].offer.generation == 45 and served[1].nonce == 77


def test_an_offer_that_was_sent_whole_and_is_asked_for_anew_is_made_anew() -> None:
    """What did not hold on the other side would be fetched again and again; others go on with what they have."""
    member = serving()
    request(member, 1, 77)
    request(member, 2, 88)
    first = member.transfer.server._served[2].offer
    request(member, 1, 78)
    assert member.loads == 1, "it may have lost its descriptor"
    fetch_all(member, 1, 78)
    request(member, 1, 79)
    served = member.transfer.server._served
    assert member.loads == 2 and served[1].offer is not first and served[2].offer is first


def test_the_live_part_is_of_one_instant() -> None:
    member = serving(commit=50)
    member.hold = {LoadOffer}
    request(member)
    (load,) = member.asked(LoadOffer)
    assert load.commit_op == load.captured.frontier == 50
    member.host.commit_min = member.host.commit_max = 58  # commits go on while the file is read
    member.host.table.commit_register(client_id(12), 1, 55, 1, b"")
    member.release()
    (header,) = targets(member)
    assert header.commit_op == 50
    table = client_table_wire.decode(member.transfer.server._cache.artifacts[1][1], 16)
    assert table.get(client_id(12)) is None, "what came later comes by repair"


def test_requests_while_an_offer_is_loaded_wait_for_it() -> None:
    member = serving()
    member.hold = {LoadOffer}
    for _ in range(3):
        request(member, 1, 77)
    request(member, 2, 88)
    assert member.loads == 0 and not targets(member)
    member.release()
    assert member.loads == 1 and [header.nonce for header in targets(member)] == [77, 88]


def test_a_requester_that_started_again_gets_a_new_offer_record() -> None:
    member = serving()
    request(member, 1, 77)
    request(member, 1, 78)
    ask(member, 0, 0, nonce=77)
    assert member.transfer.server._served[1].nonce == 78
    assert targets(member)[-1].available == 0 and not chunks(member)


@pytest.mark.parametrize("requester", [0, 3, 31])
def test_nobody_is_served_that_is_no_other_member(requester: int) -> None:
    member = serving()
    request(member, requester)
    ask(member, 0, 0, requester=requester)
    assert not member.outbox and not member.loads


# --- chunks -----------------------------------------------------------------------------------------------------------


def test_an_unknown_nonce_is_answered_at_once() -> None:
    member = serving()
    ask(member, 0, 0)
    (header,) = targets(member)
    assert (header.available, header.nonce, header.unavailable_transient) == (0, 77, 1)


@pytest.mark.parametrize(
    ("artifact", "offset"),
    [(2, 0), (2**32 - 1, 0), (0, 1016), (0, 1017), (1, 2**62 - 1)],
    ids=["no such artifact", "far away", "at the end", "behind the end", "largest"],
)
def test_what_is_out_of_bounds_is_not_answered(artifact: int, offset: int) -> None:
    """Planted: an empty answer is asked for again without end, while the rejoiner acknowledges nothing."""
    member = serving()
    request(member)
    assert member.transfer.server._served[1].offer.artifacts[0][0].length == 1016
    sent = len(member.outbox)
    member.tick(5)
    ask(member, artifact, offset)
    assert len(member.outbox) == sent and not member.asked(ReadChunk)
    assert member.transfer.server._served[1].idle_ticks == 5, "what serves nothing keeps nothing alive"
    assert notes.OUT_OF_BOUNDS in member.notes()


@pytest.mark.parametrize(
    ("offset", "length", "served"), [(0, 2**32 - 1, 64), (0, 10, 10), (1000, 64, 16), (1015, 1, 1)]
)
def test_a_chunk_is_the_smallest_of_asked_limit_and_left(offset: int, length: int, served: int) -> None:
    member = serving()
    request(member)
    ask(member, 0, offset, length)
    (header,) = chunks(member)
    assert (header.size - 256, header.offset, header.artifact, header.nonce) == (served, offset, 0, 77)


def test_a_requester_has_a_bounded_number_of_reads() -> None:
    member = serving(limits=TransferLimits(frame_max=257, retry_ticks=10, reads_max=4))
    member.hold = {ReadChunk}
    request(member)
    for offset in range(50):
        ask(member, 0, offset)
    assert len(member.asked(ReadChunk)) == 4
    member.release()
    assert len(chunks(member)) == 4


def test_a_read_of_an_offer_that_was_replaced_sends_nothing() -> None:
    member = serving()
    member.hold = {ReadChunk}
    request(member, 1, 77)
    ask(member, 0, 0)
    request(member, 1, 78)
    member.release()
    assert not chunks(member)


def test_an_artifact_that_cannot_be_read_voids_the_offer() -> None:
    member = serving()
    request(member, 1, 77)
    request(member, 2, 88)
    member.read_fault = DiskFault()
    ask(member, 0, 0)
    assert [(header.available, header.nonce) for header in targets(member)[2:]] == [(0, 77), (0, 88)]
    assert member.transfer.server.idle and len(member.released) == 1


# --- expiry -----------------------------------------------------------------------------------------------------------


def test_an_offer_without_chunks_lives_ten_intervals() -> None:
    member = serving()
    request(member)
    member.tick(99)
    assert member.transfer.server.offers == 1
    member.tick()
    assert member.transfer.server.offers == 0 and member.transfer.server.idle
    assert len(member.asked(ReleaseOffer)) == 1


def test_an_offer_served_whole_lives_three_intervals() -> None:
    """Planted: with one interval the receiver's own retry for a lost last chunk would come too late."""
    member = serving()
    request(member)
    fetch_all(member)
    member.tick(29)
    assert member.transfer.server.offers == 1
    ask(member, 1, 0)
    member.tick(29)
    assert member.transfer.server.offers == 1, "a chunk that goes out again is life"
    member.tick()
    assert member.transfer.server.idle


def test_a_lost_last_chunk_is_served_again() -> None:
    server, receiver = serving(), Member(1)
    link = Link((server, receiver))
    last: list[bytes] = []

    def the_last(frame: bytes) -> bool:
        if frame[60] != 25 or last:
            return False
        header = StateChunkHeader.unpack(frame)
        table = server.transfer.server._served[1].offer.artifacts[1][0].length
        if header.artifact == 1 and header.offset + header.size - 256 == table:
            last.append(frame)
        return bool(last)

    link.drop = the_last
    receiver.arm()
    link.run(15)
    assert last and receiver.host.commit_min == 40 and server.loads == 1


def test_a_repeated_request_is_life_and_keeps_the_served_mark() -> None:
    member = serving()
    request(member)
    fetch_all(member)
    member.tick(25)
    request(member)
    member.tick(29)
    assert member.transfer.server.offers == 1
    member.tick()
    assert member.transfer.server.offers == 0, "still the short clock"


def test_partly_served_is_not_served() -> None:
    member = serving()
    request(member)
    fetch_all_but_one = member.transfer.server._served[1].offer.artifacts[1][0].length
    fetch_all(member)
    served = member.transfer.server._served[1]
    served.sent = Sent(served.offer)
    ask(member, 1, fetch_all_but_one - 1)
    ask(member, 0, 1015)
    assert not served.sent.complete


def test_sent_counts_every_byte_once() -> None:
    offer = Offer(1, 1, ((Artifact(0, 1, 10, 0), b""), (Artifact(1, 1, 0, 0), b"")))
    sent = Sent(offer)
    for start, end in ((4, 6), (0, 2), (4, 5), (8, 10), (2, 4)):
        sent.add(0, start, end)
        assert not sent.complete
    sent.add(0, 6, 8)
    assert sent.complete
    assert Sent(Offer(1, 1, ((Artifact(1, 1, 0, 0), b""),))).complete


def test_scattered_requests_do_not_grow_the_record() -> None:
    offer = Offer(1, 1, ((Artifact(0, 1, 10_000, 0), b""),))
    sent = Sent(offer)
    for start in range(0, 10_000, 3):
        sent.add(0, start, start + 1)
    assert len(sent._ranges[0]) <= 64 and not sent.complete


def test_the_manifest_and_the_bytes_are_pairs() -> None:
    member = serving()
    request(member)
    offer = member.transfer.server._cache
    assert decode_manifest(offer.manifest()) == tuple(artifact for artifact, _ in offer.artifacts)
    assert all(artifact.length == len(data) for artifact, data in offer.artifacts)
    assert offer.total_length == sum(len(data) for _, data in offer.artifacts)
