"""The receiving side: stages, budgets, what counts as progress, and what changes when."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from shardsrv.errors import DiskFault
from shardsrv.vsr import transfer_notes as notes
from shardsrv.vsr import transfer_stage as stages
from shardsrv.vsr.frames import body_fields
from shardsrv.vsr.policy import PARTITION
from shardsrv.vsr.transfer_effects import (
    CheckStaged,
    InstallSnapshot,
    LoadOffer,
    Note,
    OpenStaging,
    RebaseLog,
    StageChunk,
)
from shardsrv.vsr.transfer_install import CHECKPOINT
from shardsrv.vsr.transfer_limits import TransferLimits
from shardsrv.wire.manifest import Artifact, ArtifactKind, encode_manifest
from shardsrv.wire.replica_headers import (
    RequestStateChunkHeader,
    RequestStateTransferHeader,
    StateChunkHeader,
    StateTransferTargetHeader,
)
from tests.support.transfers import CLUSTER, Link, Member, Nonces, client_id, serving, snapshot_bytes, table_of


def pair(**options: Any) -> tuple[Member, Member, Link]:
    server, receiver = serving(), Member(1, **options)
    return server, receiver, Link((server, receiver))


def frame_fields(member: Member, nonce: int, sender: int = 0) -> dict[str, Any]:
    identity = member.host.identity
    return {"cluster": CLUSTER, "replica": sender, "group": identity.group, "nonce": nonce}


def feed(member: Member, header: Any, body: bytes = b"") -> None:
    """Hand a frame to a member as the link would."""
    out: list[Any] = []
    member.transfer.message(header, body, out)
    member.run(out)


def chunk(member: Member, nonce: int, artifact: int, offset: int, body: bytes, sender: int = 0) -> None:
    fields = frame_fields(member, nonce, sender) | body_fields(body)
    feed(member, StateChunkHeader(**fields, artifact=artifact, offset=offset), body)


def target(member: Member, nonce: int, artifacts: list[Artifact], commit_op: int = 50, sender: int = 0) -> None:
    body = encode_manifest(artifacts)
    fields = frame_fields(member, nonce, sender) | body_fields(body)
    header = StateTransferTargetHeader(**fields, available=1, commit_op=commit_op, commit_max=commit_op)
    feed(member, header, body)


def nonce_of(member: Member) -> int:
    return member.sent(RequestStateTransferHeader)[-1].nonce


SNAPSHOT = Artifact(int(ArtifactKind.METADATA_SNAPSHOT), 40, 200, 1)
TABLE = Artifact(int(ArtifactKind.CLIENT_TABLE), 50, 100, 2)


# --- the whole way ----------------------------------------------------------------------------------------------------


def test_a_transfer_lands() -> None:
    server, receiver, link = pair()
    assert receiver.arm()
    assert receiver.transfer.transferring
    link.deliver()
    host = receiver.host
    assert host.state == server.snapshot and host.commit_min == 40 and host.commit_max == 50
    assert host.table.state() == server.host.table.state() and host.table_frontier == 50
    assert not receiver.transfer.transferring and host.ended == [0]
    assert notes.INSTALLED in receiver.notes() and notes.INSTALLED_DEGRADED not in receiver.notes()
    assert host.done == ["file 40", "pair 40", "log 40", "memory"]


def test_what_is_written_is_what_was_sent() -> None:
    """Three transfers in a row: no trailer grows on the file."""
    server, first, link = pair()
    first.arm()
    link.deliver()
    second = Member(2)
    first.snapshot = first.file
    first.host.commit_min = first.host.commit_max = 60
    first.host.offer_generation = 40
    second.arm(1)
    Link((first, second)).deliver()
    assert second.file == first.file == server.snapshot


@pytest.mark.parametrize("frame_max", [0, 256, 257, 300, 1024, 64 * 1024 * 1024])
def test_a_small_frame_limit_makes_chunks_small_and_not_impossible(frame_max: int) -> None:
    server = serving()
    receiver = Member(1, limits=TransferLimits(frame_max=frame_max, retry_ticks=10))
    server.transfer.server._limits = receiver.limits  # the same cluster, the same limit
    receiver.arm()
    Link((server, receiver)).deliver()
    assert receiver.host.commit_min == 40
    sizes = [header.size for header in server.sent(StateChunkHeader)]
    assert max(sizes) - 256 <= max(1, frame_max - 256)


def test_a_server_with_a_smaller_limit_is_asked_for_the_rest() -> None:
    server = serving(limits=TransferLimits(frame_max=256 + 7, retry_ticks=10))
    receiver = Member(1)
    receiver.arm()
    Link((server, receiver)).deliver()
    assert receiver.host.state == server.snapshot


# --- beginnings -------------------------------------------------------------------------------------------------------


def test_edges() -> None:
    expected = {(0, 1), (1, 2), (1, 0), (2, 3), (2, 1), (2, 0), (3, 0)}
    for before, after in product(stages.STAGES, stages.STAGES):
        assert stages.is_edge(before, after) == ((before, after) in expected)


def test_an_evicted_range_arms_from_idle_only() -> None:
    receiver = Member(1)
    out: list[Any] = []
    assert receiver.transfer.range_evicted(0, 100, out)
    before = receiver.transfer.receiver._session.nonce
    assert not receiver.transfer.range_evicted(2, 100, out)
    assert receiver.transfer.receiver._session.nonce == before and receiver.transfer.receiver.peer == 0


def test_a_session_begins_empty_with_a_fresh_nonce() -> None:
    receiver = Member(1)
    receiver.arm()
    session = receiver.transfer.receiver._session
    assert (session.target, session.window, session.idle_ticks, session.peer) == (None, None, 0, 0)
    first = session.nonce
    out: list[Any] = []
    receiver.transfer.abandon(out)
    receiver.arm()
    assert receiver.transfer.receiver._session.nonce not in (0, first)


@pytest.mark.parametrize("peer", [1, 3, 200, -1])
def test_no_session_with_nobody(peer: int) -> None:
    receiver = Member(1)
    assert not receiver.arm(peer) and not receiver.outbox


# --- frames that count ------------------------------------------------------------------------------------------------


def test_frames_count_for_their_nonce_and_peer_only() -> None:
    receiver = Member(1)
    receiver.arm()
    nonce = nonce_of(receiver)
    target(receiver, nonce + 2, [SNAPSHOT, TABLE])
    target(receiver, nonce, [SNAPSHOT, TABLE], sender=2)
    assert receiver.transfer.receiver.stage == stages.AWAITING_TARGET
    chunk(receiver, nonce, 0, 0, bytes(64))
    assert not receiver.asked(StageChunk), "a chunk counts after a descriptor only"
    target(receiver, nonce, [SNAPSHOT, TABLE])
    session = receiver.transfer.receiver._session
    target(receiver, nonce, [TABLE, SNAPSHOT])
    assert session.target.artifacts == (SNAPSHOT, TABLE), "a second descriptor is ignored"
    chunk(receiver, nonce + 2, 0, 0, bytes(64))
    chunk(receiver, nonce, 0, 0, bytes(64), sender=2)
    assert not receiver.asked(StageChunk)
    chunk(receiver, nonce, 0, 0, bytes(64))
    chunk(receiver, nonce, 0, 0, bytes(64))
    assert len(receiver.asked(StageChunk)) == 1, "twice the same is once"


@pytest.mark.parametrize(
    ("artifact", "offset", "length"), [(0, 0, 65), (0, 1, 10), (0, 200, 1), (2, 0, 1), (0, 0, 0), (1, 99, 2)]
)
def test_a_chunk_that_answers_nothing_leaves_no_trace(artifact: int, offset: int, length: int) -> None:
    receiver = Member(1)
    receiver.arm()
    nonce = nonce_of(receiver)
    target(receiver, nonce, [SNAPSHOT, TABLE])
    receiver.tick(5)
    sent = len(receiver.outbox)
    chunk(receiver, nonce, artifact, offset, bytes(length))
    assert not receiver.asked(StageChunk) and len(receiver.outbox) == sent
    assert receiver.transfer.receiver._session.idle_ticks == 5


def test_an_empty_chunk_is_no_progress_for_any_budget() -> None:
    """Planted: an empty chunk that counts would keep a transfer alive that gets nothing."""
    receiver = Member(1)
    receiver.arm()
    nonce = nonce_of(receiver)
    target(receiver, nonce, [SNAPSHOT, TABLE])
    for _ in range(80):
        receiver.tick()
        chunk(receiver, nonce, 0, 0, b"")
    assert not receiver.transfer.transferring and notes.ABANDONED in receiver.notes()


def test_the_window_is_bounded() -> None:
    receiver = Member(1, limits=TransferLimits(frame_max=256 + 1, window_chunks=3, retry_ticks=10))
    receiver.hold = {StageChunk}
    receiver.arm()
    nonce = nonce_of(receiver)
    target(receiver, nonce, [SNAPSHOT, TABLE])
    asked = receiver.sent(RequestStateChunkHeader)
    assert [(header.artifact, header.offset) for header in asked] == [(0, 0), (0, 1), (0, 2)]
    for offset in (2, 1, 0):
        chunk(receiver, nonce, 0, offset, b"x")
    assert len(receiver.sent(RequestStateChunkHeader)) == 3, "what is being written counts"
    receiver.release()
    assert len(receiver.sent(RequestStateChunkHeader)) == 6


def test_progress_is_counted_in_contiguous_bytes() -> None:
    receiver = Member(1, limits=TransferLimits(frame_max=256 + 64, window_chunks=3, retry_ticks=10))
    receiver.arm()
    nonce = nonce_of(receiver)
    target(receiver, nonce, [SNAPSHOT, TABLE])
    receiver.transfer.receiver.stall_rounds = 4
    receiver.tick(7)
    chunk(receiver, nonce, 0, 64, bytes(64))
    session = receiver.transfer.receiver._session
    assert (session.idle_ticks, receiver.transfer.receiver.stall_rounds) == (7, 4)
    chunk(receiver, nonce, 0, 0, bytes(64))
    assert (session.idle_ticks, receiver.transfer.receiver.stall_rounds) == (0, 0)
    assert session.window.contiguous == 128


# --- silence ----------------------------------------------------------------------------------------------------------


def test_five_rounds_then_repair() -> None:
    receiver = Member(1)
    receiver.arm()
    nonce = nonce_of(receiver)
    receiver.tick(10 * 5)
    asked = receiver.sent(RequestStateTransferHeader)
    assert len(asked) == 1 + 5 and {header.nonce for header in asked} == {nonce}
    assert receiver.transfer.transferring
    receiver.tick(10)
    assert not receiver.transfer.transferring and receiver.host.ended == [0]
    assert len(receiver.sent(RequestStateTransferHeader)) == 6


def test_a_missing_chunk_is_asked_for_again() -> None:
    _server, receiver, link = pair()
    receiver.arm()
    lost: list[bytes] = []

    def first_chunk(frame: bytes) -> bool:
        if frame[60] == 25 and not lost:
            lost.append(frame)
            return True
        return False

    link.drop = first_chunk
    link.run(12)
    assert lost and receiver.host.commit_min == 40
    again = [(header.artifact, header.offset) for header in receiver.sent(RequestStateChunkHeader)]
    assert again.count((0, 0)) == 2


def test_the_budget_outlives_the_session() -> None:
    """Planted: in the session it would be new with every arming and bound nothing."""
    receiver = Member(1)
    receiver.arm()
    receiver.tick(60)
    assert not receiver.transfer.transferring
    for _ in range(3):
        receiver.tick(10)
        assert receiver.arm()
        receiver.tick(10)
        assert not receiver.transfer.transferring, "a peer that was given up gets one round at a time"
    assert receiver.transfer.receiver.stall_rounds == 9


def test_progress_and_an_install_reset_the_budget() -> None:
    """Planted: never reset, a few stalls over a large transfer would end it when it is nearly done."""
    _server, receiver, link = pair()
    receiver.arm()
    receiver.tick(49)
    assert receiver.transfer.receiver.stall_rounds == 4
    link.deliver()
    assert receiver.transfer.receiver.stall_rounds == 0 and receiver.host.commit_min == 40


def test_a_slow_disk_is_no_silence_of_the_peer() -> None:
    _server, receiver, link = pair()
    receiver.hold = {StageChunk}
    receiver.arm()
    link.deliver()
    receiver.tick(500)
    assert receiver.transfer.transferring and receiver.transfer.receiver.stall_rounds == 0
    receiver.release()
    link.deliver()
    assert receiver.host.commit_min == 40


# --- damage -----------------------------------------------------------------------------------------------------------


def test_a_damaged_chunk_is_fetched_again_under_another_nonce() -> None:
    _server, receiver, link = pair()
    receiver.arm()
    first = nonce_of(receiver)
    damaged: list[int] = []
    plain = receiver.receive

    def receive(frame: bytes) -> None:
        if frame[60] == 25 and not damaged:
            damaged.append(1)
            body = bytearray(frame[256:])
            body[0] ^= 1
            header = StateChunkHeader.unpack(frame)
            out: list[Any] = []
            receiver.transfer.message(header, bytes(body), out)
            receiver.run(out)
        else:
            plain(frame)

    receiver.receive = receive  # type: ignore[method-assign]
    link.deliver()
    assert damaged and notes.DAMAGED in receiver.notes()
    assert nonce_of(receiver) != first and receiver.host.commit_min == 40
    assert receiver.transfer.receiver.decode_failures == 0


def test_a_peer_that_never_decodes_is_bounded() -> None:
    """Frames flow, so nothing stalls; planted: one budget for both, which every chunk resets."""
    _, receiver, _ = _undecodable()
    assert not receiver.transfer.transferring and receiver.host.state is None and receiver.host.ended == [0]
    assert len(receiver.asked(CheckStaged)) == 6, "the first fetch and five more"
    assert receiver.transfer.receiver.stall_rounds == 0


def _undecodable() -> tuple[Member, Member, Link]:
    """A snapshot that decodes nowhere although its checksum holds, fetched until the receiver has enough."""
    server, receiver, link = pair()
    server.snapshot = (40).to_bytes(8, "little") + b"x"
    receiver.arm()
    link.deliver()
    return server, receiver, link


def test_a_generation_that_was_given_up_is_not_fetched_again_soon() -> None:
    _server, receiver, link = _undecodable()
    assert not receiver.arm(), "not at the speed of the link"
    receiver.tick(10)
    assert receiver.arm()
    link.deliver()
    assert len(receiver.asked(CheckStaged)) == 6 and not receiver.transfer.transferring
    link.run(10 * 40)
    receiver.arm()
    link.deliver()
    assert len(receiver.asked(CheckStaged)) == 12, "after a rest it may have been healed"


def test_another_generation_begins_with_a_fresh_budget() -> None:
    server, receiver, link = _undecodable()
    receiver.tick(10)
    server.snapshot = snapshot_bytes(45)
    server.host.offer_generation = 45
    receiver.arm()
    link.deliver()
    assert receiver.host.commit_min == 45


@pytest.mark.parametrize(
    "artifacts",
    [
        [],
        [SNAPSHOT],
        [TABLE],
        [SNAPSHOT, SNAPSHOT, TABLE],
        [SNAPSHOT, TABLE, Artifact(9, 1, 1, 1)],
        [SNAPSHOT, TABLE, Artifact(2, 1, 1, 1)],
        [Artifact(0, 40, 2**40, 1), TABLE],
        [Artifact(0, 51, 10, 1), TABLE],
        [SNAPSHOT, Artifact(1, 51, 10, 1)],
    ],
    ids=["empty", "no table", "no snapshot", "two", "unknown", "foreign", "large", "snapshot ahead", "table ahead"],
)
def test_a_manifest_that_cannot_be_installed_is_refused_before_it_is_fetched(artifacts: list[Artifact]) -> None:
    receiver = Member(1)
    receiver.arm()
    for _ in range(6):
        assert receiver.transfer.transferring
        target(receiver, nonce_of(receiver), artifacts)
    assert not receiver.transfer.transferring and receiver.host.ended == [0]
    assert not receiver.asked(OpenStaging) and receiver.host.done == []


def test_a_manifest_that_does_not_decode_is_not_progress() -> None:
    receiver = Member(1)
    receiver.arm()
    receiver.tick(6)
    body = b"ISM1 and nothing else"
    fields = frame_fields(receiver, nonce_of(receiver)) | body_fields(body)
    feed(receiver, StateTransferTargetHeader(**fields, available=1, commit_op=1, commit_max=1), body)
    assert receiver.transfer.receiver.stage == stages.AWAITING_TARGET
    assert receiver.transfer.receiver._session.idle_ticks == 6


def test_artifacts_without_bytes_are_complete_at_once() -> None:
    receiver = Member(1, plane=PARTITION)
    receiver.arm()
    target(receiver, nonce_of(receiver), [Artifact(int(ArtifactKind.PARTITION_CHECKPOINT), 40, 0, 0)])
    assert len(receiver.asked(CheckStaged)) >= 1 and not receiver.sent(RequestStateChunkHeader)


# --- ends -------------------------------------------------------------------------------------------------------------


def test_unavailable_ends_the_session() -> None:
    server, receiver, link = pair()
    server.snapshot = None
    receiver.arm()
    link.deliver()
    assert not receiver.transfer.transferring and receiver.host.ended == [0]
    assert not receiver.arm() and receiver.arm(2), "another peer may be asked at once"


def test_a_server_that_lost_its_offer_may_be_asked_again_at_once() -> None:
    server, receiver, link = pair()
    receiver.hold = {StageChunk}
    receiver.arm()
    link.deliver()
    server.transfer.server._served.clear()  # it started again
    receiver.release()
    link.deliver()
    assert receiver.host.ended == [0] and receiver.host.commit_min == 0
    assert receiver.arm()
    link.deliver()
    assert receiver.host.commit_min == 40


def test_an_election_drops_a_session_whole() -> None:
    """Planted: a session that stays armed completes its download into an edge that does not exist."""
    _server, receiver, link = pair()
    receiver.hold = {StageChunk}
    receiver.arm()
    link.deliver()
    nonce = nonce_of(receiver)
    out: list[Any] = []
    assert receiver.transfer.abandon(out) and not receiver.transfer.transferring
    receiver.run(out)
    receiver.release()
    chunk(receiver, nonce, 0, 128, bytes(64))
    link.deliver()
    assert receiver.host.done == [] and not receiver.transfer.transferring


def test_an_election_does_not_interrupt_an_install() -> None:
    _server, receiver, link = pair()
    receiver.hold = {InstallSnapshot}
    receiver.arm()
    link.deliver()
    out: list[Any] = []
    assert receiver.transfer.receiver.stage == stages.INSTALLING
    assert not receiver.transfer.abandon(out) and not out
    receiver.release()
    assert receiver.host.commit_min == 40


@pytest.mark.parametrize("kind", [OpenStaging, StageChunk], ids=["open", "write"])
def test_an_own_disk_fault_ends_in_repair(kind: type) -> None:
    _server, receiver, link = pair()
    receiver.faults[kind] = DiskFault()
    receiver.arm()
    link.deliver()
    assert not receiver.transfer.transferring and receiver.host.ended == [0] and receiver.host.done == []


# --- installing -------------------------------------------------------------------------------------------------------


def test_an_install_error_has_changed_nothing() -> None:
    _server, receiver, link = pair()
    receiver.faults[InstallSnapshot] = DiskFault()
    receiver.arm()
    link.deliver()
    host = receiver.host
    assert (host.state, host.pair, host.commit_min, host.done) == (None, None, 0, [])
    assert host.ended == [0] and notes.INSTALL_FAILED in receiver.notes()
    assert host.snapshots.take(CHECKPOINT), "the writer is free again"


def test_a_pair_that_fails_is_a_degraded_success() -> None:
    _server, receiver, link = pair()
    receiver.pair_fails = True
    receiver.arm()
    link.deliver()
    assert receiver.host.done == ["file 40", "pair 40", "log 40", "memory"]
    assert receiver.host.commit_min == 40 and receiver.host.ended == [0]
    assert notes.INSTALLED_DEGRADED in receiver.notes() and notes.INSTALLED not in receiver.notes()


def test_the_log_waits_for_the_pair() -> None:
    _server, receiver, link = pair()
    receiver.hold = {"pair"}  # type: ignore[arg-type]
    receiver.arm()
    link.deliver()
    assert receiver.host.done == ["file 40", "pair 40"] and receiver.host.commit_min == 0
    out: list[Any] = []
    receiver.transfer.pair_recorded(39, out)
    assert not out, "the record of an earlier checkpoint says nothing of this pair"
    receiver.transfer.pair_recorded(40, out)
    receiver.run(out)
    assert receiver.host.done[-2:] == ["log 40", "memory"]


def test_a_log_that_breaks_fences() -> None:
    _server, receiver, link = pair()
    receiver.faults[RebaseLog] = DiskFault()
    receiver.arm()
    link.deliver()
    assert receiver.host.broken is not None and "memory" not in receiver.host.done


def test_an_install_waits_for_a_checkpoint_that_writes() -> None:
    """Planted: two writers over file and pair leave one of each."""
    _server, receiver, link = pair()
    assert receiver.host.snapshots.take(CHECKPOINT)
    receiver.arm()
    link.deliver()
    receiver.tick(3)
    assert receiver.host.done == [] and receiver.transfer.transferring
    receiver.host.snapshots.leave(CHECKPOINT)
    receiver.tick()
    assert receiver.host.commit_min == 40 and receiver.host.snapshots.holder == 0


def test_ahead_is_decided_in_the_step_that_starts_the_writes() -> None:
    _server, receiver, link = pair()
    receiver.host.snapshots.take(CHECKPOINT)
    receiver.arm()
    link.deliver()
    receiver.host.commit_min = 45  # what should not happen, and is not relied on
    receiver.host.snapshots.leave(CHECKPOINT)
    receiver.tick()
    assert receiver.host.commit_min == 45 and receiver.file is None and receiver.host.done == ["memory"]


def test_a_snapshot_behind_leaves_the_state_and_brings_the_table() -> None:
    """Planted: restoring it would take committed entries back."""
    _server, receiver, link = pair()
    receiver.host.commit_min = receiver.host.commit_max = 47
    receiver.arm()
    link.deliver()
    host = receiver.host
    assert host.state is None and host.commit_min == 47 and host.commit_max == 50
    assert host.done == ["memory"] and host.pair is None and host.table_frontier == 50


def test_a_table_that_is_older_than_what_is_applied_stays_away() -> None:
    """Planted: a cached offer comes with a table of an earlier time; its ops are not applied again."""
    _server, receiver, link = pair()
    receiver.host.commit_min = receiver.host.commit_max = 60
    receiver.host.table = table_of({7: 10, 9: 20, 11: 55})
    receiver.arm()
    link.deliver()
    assert receiver.host.table.get(client_id(11)) is not None and receiver.host.table_frontier == 0


def test_a_log_that_holds_the_entry_is_not_replaced() -> None:
    _server, receiver, link = pair()
    receiver.host.held[40] = 40 * 7 + 1
    receiver.arm()
    link.deliver()
    assert receiver.host.state is None and receiver.file is None
    assert receiver.host.commit_max == 50 and receiver.host.ended == [0]


def test_entries_that_contradict_the_snapshot_are_cut_before_anything_is_written() -> None:
    """Planted: a suffix that a view change has reassigned would be walked over by op alone."""
    _, receiver, link = pair()
    receiver.host.held[40] = 1
    receiver.arm()
    link.deliver()
    assert receiver.host.done == ["cut 40"] and receiver.transfer.receiver.stage == stages.FETCHING
    receiver.tick()
    assert receiver.host.done == ["cut 40", "file 40", "pair 40", "log 40", "memory"]


def test_a_purge_is_not_undone() -> None:
    server, receiver = serving(plane=PARTITION), Member(1, plane=PARTITION)
    server.snapshot = snapshot_bytes(40, purge=3)
    receiver.host.purge_generation = 4
    receiver.arm()
    Link((server, receiver)).deliver()
    assert receiver.host.state is None and receiver.host.done == []


def test_whole_artifacts_of_an_earlier_session_are_not_fetched_again() -> None:
    server, receiver, link = pair()
    receiver.arm()
    link.deliver()
    fetched = len(receiver.sent(RequestStateChunkHeader))
    other = Member(2)
    other.kept = dict(server.transfer.server._cache.artifacts)
    other.arm()
    Link((server, other)).deliver()
    assert fetched > 0 and not other.sent(RequestStateChunkHeader) and other.host.commit_min == 40


def test_the_state_that_travels_is_never_the_receivers() -> None:
    """A receiver does not serve: it is not caught up (its host says so), and does not load."""
    receiver = Member(1)
    receiver.host.caught_up_primary = False
    fields = frame_fields(receiver, Nonces(9).draw(), sender=2)
    feed(receiver, RequestStateTransferHeader(**fields))
    assert not receiver.asked(LoadOffer) and receiver.sent(StateTransferTargetHeader)[0].available == 0


def test_notes_carry_the_facts_that_operators_need() -> None:
    server, receiver, link = pair()
    receiver.host.commit_min = 3
    receiver.transfer.receiver.stall_rounds = 2
    out: list[Any] = []
    assert receiver.transfer.range_evicted(0, 31, out)
    receiver.run(out)
    link.deliver()
    facts = {effect.name: effect.facts for effect in receiver.log + server.log if type(effect) is Note}
    assert facts[notes.CONVERTED] == {"peer": 0, "first_retained": 31, "local_commit": 3, "attempts": 2}
    installed = facts[notes.INSTALLED]
    assert (installed["applied_frontier"], installed["commit_op"], installed["table_frontier"]) == (40, 50, 50)
    serving_facts = facts[notes.SERVING]
    assert (serving_facts["requester"], serving_facts["commit_op"], serving_facts["generation"]) == (1, 50, 40)
    assert serving_facts["artifacts"] == 2 and serving_facts["bytes"] > 1000
    assert facts[notes.PAIR_RECORDED] == {"checkpoint_op": 40}


def test_stalls_and_an_end_name_the_attempts_after_the_burn() -> None:
    receiver = Member(1)
    receiver.arm()
    receiver.tick(60)
    burned = [
        (effect.name, effect.facts["attempts"])
        for effect in receiver.log
        if type(effect) is Note and effect.name in (notes.STALLED, notes.ABANDONED)
    ]
    assert burned == [*((notes.STALLED, number) for number in range(1, 6)), (notes.ABANDONED, 6)]


def test_what_is_dropped_or_does_not_hold_leaves_a_line() -> None:
    """S2-143, S2-144: with the facts that tell a broken link from a broken peer."""
    server, receiver, link = pair()
    receiver.hold = {StageChunk}
    receiver.arm()
    link.deliver()
    out: list[Any] = []
    receiver.transfer.abandon(out)
    receiver.run(out)
    length = server.transfer.server._served[1].offer.artifacts[0][0].length
    unknown = frame_fields(server, 4711, sender=1)
    feed(server, RequestStateChunkHeader(**unknown, artifact=0, offset=0, length=1))
    beyond = frame_fields(server, nonce_of(receiver), sender=1)
    feed(server, RequestStateChunkHeader(**beyond, artifact=0, offset=length, length=1))
    facts = {effect.name: effect.facts for effect in receiver.log + server.log if type(effect) is Note}
    assert facts[notes.ORPHAN_DROPPED] == {"stage": "Fetching", "peer": 0}
    assert facts[notes.UNKNOWN_OFFER] == {"requester": 1}
    assert facts[notes.OUT_OF_BOUNDS] == {"requester": 1, "artifact": 0, "offset": length}
    _, receiver, _ = _undecodable()
    damaged = [effect.facts for effect in receiver.log if type(effect) is Note and effect.name == notes.DAMAGED]
    assert [facts["failures"] for facts in damaged] == [1, 2, 3, 4, 5, 6]
    assert {facts["capacity"] for facts in damaged} == {16}, "what the table of the peer was measured against"
