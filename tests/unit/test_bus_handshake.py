"""The handshake between nodes: what stands, and each refusal by its name on both sides."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from shardsrv.bus import handshake as h
from shardsrv.bus.handshake import Births, LinkIdentity, Refusal
from shardsrv.errors import DiskFull
from shardsrv.wire.session_headers import (
    HandshakeStatus,
    ReplicaChallengeHeader,
    ReplicaFinishHeader,
    ReplicaHelloHeader,
)

CLUSTER = bytes(range(16))
SECRET = "the secret of these tests, long enough"
OLDER = "the secret of the time before, long too"
DIALER = LinkIdentity(CLUSTER, 0, 3, 2, roster=7, genesis=9, secrets=(SECRET,))
ACCEPTOR = attrs.evolve(DIALER, replica=1)
NONCES = bytes([1]) * 32, bytes([2]) * 32

Change = Callable[[bytes], bytes]


def meet(dialer: LinkIdentity, acceptor: LinkIdentity, tamper: dict[str, Change] | None = None) -> None:
    """A whole handshake for shard 1; ``tamper`` changes frames on their way, by name."""

    def way(name: str, frame: bytes) -> bytes:
        return (tamper or {}).get(name, lambda same: same)(frame)

    said = h.hello(dialer, 1, NONCES[0])
    heard = way("hello", said)
    assert h.take_hello(acceptor, heard, Births({})).shard == 1
    answer = h.challenge(acceptor, heard, NONCES[1])
    arrived = way("challenge", answer)
    h.take_challenge(dialer, said, arrived, acceptor.replica, Births({}))
    h.take_finish(acceptor, heard, answer, way("finish", h.finish(dialer, said, arrived)))
    h.take_confirm(h.confirm(acceptor))


def test_two_nodes_of_one_cluster_meet() -> None:
    meet(DIALER, ACCEPTOR)
    meet(attrs.evolve(DIALER, secrets=()), attrs.evolve(ACCEPTOR, secrets=()))


def test_a_secret_is_changed_in_three_steps() -> None:
    both = attrs.evolve(ACCEPTOR, secrets=(OLDER, SECRET))
    meet(attrs.evolve(DIALER, secrets=(OLDER,)), both)
    meet(DIALER, attrs.evolve(ACCEPTOR, secrets=(SECRET, OLDER)))
    with pytest.raises(Refusal, match="shared_secret"):
        meet(DIALER, attrs.evolve(ACCEPTOR, secrets=(OLDER,)))


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"cluster": bytes(16)}, HandshakeStatus.CLUSTER_MISMATCH),
        ({"roster": 8}, HandshakeStatus.ROSTER_MISMATCH),
        ({"genesis": 10}, HandshakeStatus.GENESIS_MISMATCH),
        ({"shards": 3}, HandshakeStatus.SHARDS_MISMATCH),
        ({"secrets": ()}, HandshakeStatus.AUTH_REQUIRED),
        ({"replica": 2}, HandshakeStatus.DIRECTIONAL_RULE),
        ({"replica": 1}, HandshakeStatus.DIRECTIONAL_RULE),
    ],
)
def test_what_differs_is_refused_by_name(change: dict[str, object], status: HandshakeStatus) -> None:
    with pytest.raises(Refusal) as refused:
        h.take_hello(ACCEPTOR, h.hello(attrs.evolve(DIALER, **change), 1, NONCES[0]), Births({}))
    assert refused.value.status == status and refused.value.reason == h.REASONS[status]
    with pytest.raises(Refusal) as told:
        h.take_challenge(DIALER, b"", h.confirm(ACCEPTOR, status), 1, Births({}))
    assert (told.value.reason, told.value.told) == (h.REASONS[status], True)


def test_versions_without_an_overlap_are_refused() -> None:
    later = ReplicaHelloHeader(nonce=NONCES[0], shard=1, version_min=3, version_max=4, **DIALER.facts()).pack()
    with pytest.raises(Refusal, match=r"3\.\.4"):
        h.take_hello(ACCEPTOR, later, Births({}))


def test_a_wrong_secret_is_refused_by_the_dialer_first_and_told() -> None:
    other = attrs.evolve(ACCEPTOR, secrets=(OLDER,))
    said = h.hello(DIALER, 1, NONCES[0])
    with pytest.raises(Refusal) as refused:
        h.take_challenge(DIALER, said, h.challenge(other, said, NONCES[1]), 1, Births({}))
    assert refused.value.status == HandshakeStatus.MAC_MISMATCH and SECRET not in str(refused.value)
    with pytest.raises(Refusal) as told:
        h.take_finish(other, said, b"", h.decline(DIALER, refused.value.status))
    assert told.value.told


def test_a_dialer_without_the_secret_is_refused_at_the_end() -> None:
    said = h.hello(DIALER, 1, NONCES[0])
    answer = h.challenge(ACCEPTOR, said, NONCES[1])
    with pytest.raises(Refusal, match="shared_secret"):
        h.take_finish(ACCEPTOR, said, answer, h.finish(attrs.evolve(DIALER, secrets=(OLDER,)), said, answer))


@pytest.mark.parametrize("name", ["hello", "challenge", "finish"])
@pytest.mark.parametrize("place", [140, 170, 200, 210, 224])
def test_a_changed_byte_never_makes_a_link(name: str, place: int) -> None:
    def flip(frame: bytes) -> bytes:
        return frame[:place] + bytes([frame[place] ^ 1]) + frame[place + 1 :]

    with pytest.raises(Refusal):
        meet(DIALER, ACCEPTOR, {name: flip})


def test_an_answer_is_no_proof_of_another_meeting() -> None:
    said = h.hello(DIALER, 1, NONCES[0])
    answer = h.challenge(ACCEPTOR, said, NONCES[1])
    again = h.challenge(ACCEPTOR, said, bytes([3]) * 32)
    with pytest.raises(Refusal):
        h.take_finish(ACCEPTOR, said, again, h.finish(DIALER, said, answer))


def test_the_acceptor_must_be_who_was_dialled() -> None:
    said = h.hello(DIALER, 1, NONCES[0])
    with pytest.raises(Refusal):
        h.take_challenge(DIALER, said, h.challenge(attrs.evolve(ACCEPTOR, replica=2), said, NONCES[1]), 1, Births({}))


@pytest.mark.parametrize("frame", [bytes(256), b"short", ReplicaChallengeHeader().pack()])
def test_what_is_no_hello_is_refused(frame: bytes) -> None:
    with pytest.raises(Refusal):
        h.take_hello(ACCEPTOR, frame, Births({}))


def test_the_acceptors_own_code_sent_back_proves_nothing() -> None:
    said = h.hello(DIALER, 1, NONCES[0])
    answer = h.challenge(ACCEPTOR, said, NONCES[1])
    echo = ReplicaFinishHeader(cluster=CLUSTER, mac=ReplicaChallengeHeader.unpack(answer).mac).pack()
    with pytest.raises(Refusal, match="shared_secret"):
        h.take_finish(ACCEPTOR, said, answer, echo)


def test_a_node_is_known_by_the_directory_it_was_met_with() -> None:
    kept: list[dict[int, int]] = []
    births = Births({}, lambda known: kept.append(dict(known)))
    first, wiped = (h.hello(attrs.evolve(DIALER, birth=birth), 1, NONCES[0]) for birth in (5, 6))
    births.learn(h.take_hello(ACCEPTOR, first, births))
    births.learn(h.take_hello(ACCEPTOR, first, births))
    assert kept == [{0: 5}]
    for knows in (births, Births({0: 5})):
        with pytest.raises(Refusal, match="another data directory"):
            h.take_hello(ACCEPTOR, wiped, knows)
    answer = h.challenge(attrs.evolve(ACCEPTOR, birth=6), first, NONCES[1])
    with pytest.raises(Refusal, match="another data directory"):
        h.take_challenge(attrs.evolve(DIALER, birth=5), first, answer, 1, Births({1: 5}))


def test_a_birth_that_cannot_be_kept_is_not_known() -> None:
    def full(known: object) -> None:
        raise DiskFull("births", 1, 0)

    births = Births({}, full)
    header = h.take_hello(ACCEPTOR, h.hello(attrs.evolve(DIALER, birth=5), 1, NONCES[0]), births)
    with pytest.raises(DiskFull):
        births.learn(header)
    births.check(h.take_hello(ACCEPTOR, h.hello(attrs.evolve(DIALER, birth=6), 1, NONCES[0]), births))


def test_a_directory_that_was_begun_anew_takes_the_place_of_the_one_before_for_good() -> None:
    kept: list[dict[int, int]] = []
    births = Births({0: 5}, lambda known: kept.append(dict(known)))
    old, later, latest = (
        h.hello(attrs.evolve(DIALER, birth=birth), 1, NONCES[0]) for birth in (5, h.ANEW | 7, h.ANEW | 8)
    )
    for said in (later, latest):
        births.learn(h.take_hello(ACCEPTOR, said, births))
    assert kept == [{0: h.ANEW | 7}, {0: h.ANEW | 8}]
    for said in (old, later):
        with pytest.raises(Refusal, match="another data directory"):
            h.take_hello(ACCEPTOR, said, births)
