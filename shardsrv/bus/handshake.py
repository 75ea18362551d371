"""The handshake of a link between two nodes: what is said, what must be alike, and how each side proves the secret.

    dialer -> acceptor  ReplicaHello(nonce, facts)
    acceptor -> dialer  ReplicaChallenge(nonce, facts, mac)    or status: refused
    dialer -> acceptor  ReplicaFinish(mac)                     or status: refused
    acceptor -> dialer  ReplicaChallenge(status)               0: the link stands, frames may follow

Facts are cluster, replica id, range of protocol versions, shard count and shard, digests of roster and genesis, and
whether proof is asked for. The key is BLAKE2b of the secret; a code is keyed BLAKE2b over the whole hello, the whole
challenge without its code, and the side that speaks: nothing that was said can be changed or played again.

A node that lost its data directory has forgotten what it acknowledged and promised: each directory has a number from
its birth, and a node is known by the one that it was met with (`Births`). A greater one that its operator began anew
takes the place of it, for good: the directory before is refused from then on.

Invariants: the lower replica id dials; a side that refuses says why before it closes; codes are compared in constant
time; the previous secret only verifies. No input or output happens here.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from shardsrv.errors import DecodeError, LinkRefused
from shardsrv.wire.headers import parse_header
from shardsrv.wire.session_headers import (
    REPLICA_PROTOCOL_VERSION,
    HandshakeStatus,
    ReplicaChallengeHeader,
    ReplicaFinishHeader,
    ReplicaHelloHeader,
)

PERSON: Final = b"shardsrv link 1"
DIALER: Final = b"\1"
ACCEPTOR: Final = b"\2"
_MAC_AT: Final = slice(160, 192)

ANEW: Final = 1 << 63
"""Bit of the number of a data directory that its operator began anew (`shards.rejoin`); below it lies the time,
microseconds. The number of any other directory is smaller."""

REASONS: Final = {
    HandshakeStatus.UNKNOWN_COMMAND: "it does not speak this handshake",
    HandshakeStatus.CLUSTER_MISMATCH: "another cluster",
    HandshakeStatus.DIRECTIONAL_RULE: "a replica id that must not dial here",
    HandshakeStatus.AUTH_REQUIRED: "cluster.auth.enabled differs",
    HandshakeStatus.MAC_MISMATCH: "another cluster.auth.shared_secret",
    HandshakeStatus.VERSION_MISMATCH: "no protocol version in common",
    HandshakeStatus.SHARDS_MISMATCH: "another number of shards",
    HandshakeStatus.ROSTER_MISMATCH: "cluster.nodes differs",
    HandshakeStatus.GENESIS_MISMATCH: "the cluster began with another root user",
    HandshakeStatus.MALFORMED: "a frame that does not decode",
    HandshakeStatus.BIRTH_MISMATCH: "a node that comes back with another data directory than it had",
}


@attrs.frozen
class LinkIdentity:
    """What a node says of itself. ``secrets``: the present one first, then those that only verify; none without
    authentication."""

    cluster: bytes
    replica: int
    replicas: int
    shards: int
    roster: int
    genesis: int
    birth: int = 0
    secrets: tuple[str, ...] = attrs.field(default=(), repr=False)

    @property
    def keys(self) -> tuple[bytes, ...]:
        """Keys of the codes, the one to sign with first."""
        return tuple(
            hashlib.blake2b(secret.encode(), digest_size=32, person=PERSON).digest() for secret in self.secrets or ("",)
        )

    def facts(self) -> dict[str, Any]:
        """Header fields of a hello or challenge of this node."""
        return {
            "cluster": self.cluster,
            "replica": self.replica,
            "shards": self.shards,
            "roster": self.roster,
            "genesis": self.genesis,
            "birth": self.birth,
            "authenticated": int(bool(self.secrets)),
        }


class Refusal(LinkRefused):
    """A refusal with the ``status`` that tells the other side."""

    status = HandshakeStatus.MALFORMED


def refuse(status: HandshakeStatus, expected: Any = None, found: Any = None, *, told: bool = False) -> Refusal:
    """The error of a handshake that ends with ``status``."""
    refusal = Refusal(REASONS[status], expected, found, told)
    refusal.status = status
    return refusal


def hello(own: LinkIdentity, shard: int, nonce: bytes) -> bytes:
    """The dialer's first frame, for the link of ``shard``."""
    return ReplicaHelloHeader(nonce=nonce, shard=shard, **own.facts()).pack()


class Births:
    """The number of each other node's data directory, as far as it was met; ``keep`` makes all of them durable."""

    def __init__(self, known: Mapping[int, int], keep: Callable[[Mapping[int, int]], None] | None = None) -> None:
        self._known = dict(known)
        self._keep = keep

    def check(self, header: Any) -> None:
        """Raises `Refusal` for a node that was met with another directory, unless this one was begun anew later."""
        known = self._known.get(header.replica, header.birth)
        if known != header.birth and not (header.birth & ANEW and header.birth > known):
            raise refuse(HandshakeStatus.BIRTH_MISMATCH, f"{known:016x}", f"{header.birth:016x}")

    def learn(self, header: Any) -> None:
        """A link with the node is about to count: it is known by its directory from now on, durably. Raises what
        ``keep`` does."""
        if header.birth > self._known.get(header.replica, -1):
            known = self._known | {header.replica: header.birth}
            if self._keep is not None:
                self._keep(known)
            self._known = known


def take_hello(own: LinkIdentity, frame: bytes, births: Births) -> ReplicaHelloHeader:
    """The acceptor's look at a hello. Raises `Refusal`."""
    header = _parse(frame, ReplicaHelloHeader)
    _compare(own, header)
    if not header.replica < own.replica:
        raise refuse(HandshakeStatus.DIRECTIONAL_RULE, f"below {own.replica}", header.replica)
    if not header.shard < own.shards:
        raise refuse(HandshakeStatus.SHARDS_MISMATCH, f"below {own.shards}", header.shard)
    births.check(header)
    return header


def challenge(own: LinkIdentity, said: bytes, nonce: bytes) -> bytes:
    """The acceptor's answer to the hello ``said``."""
    shard = _parse(said, ReplicaHelloHeader).shard
    unsigned = ReplicaChallengeHeader(nonce=nonce, shard=shard, **own.facts()).pack()
    return _signed(unsigned, _code(own.keys[0], said, unsigned, ACCEPTOR))


def take_challenge(own: LinkIdentity, said: bytes, frame: bytes, peer: int, births: Births) -> ReplicaChallengeHeader:
    """The dialer's look at the answer of ``peer``. Raises `Refusal`."""
    header = _parse(frame, ReplicaChallengeHeader)
    _heed(header.status)
    _compare(own, header)
    if header.replica != peer:
        raise refuse(HandshakeStatus.DIRECTIONAL_RULE, peer, header.replica)
    _verify(own, said, frame, header.mac, ACCEPTOR)
    births.check(header)
    return header


def finish(own: LinkIdentity, said: bytes, answer: bytes) -> bytes:
    """The dialer's proof."""
    mac = _code(own.keys[0], said, answer, DIALER)
    return ReplicaFinishHeader(cluster=own.cluster, replica=own.replica, mac=mac).pack()


def take_finish(own: LinkIdentity, said: bytes, answer: bytes, frame: bytes) -> None:
    """The acceptor's look at the proof. Raises `Refusal`."""
    header = _parse(frame, ReplicaFinishHeader)
    _heed(header.status)
    _verify(own, said, answer, header.mac, DIALER)


def confirm(own: LinkIdentity, status: HandshakeStatus = HandshakeStatus.OK) -> bytes:
    """The acceptor's last frame, or its refusal at any earlier point."""
    return ReplicaChallengeHeader(status=status, **own.facts()).pack()


def take_confirm(frame: bytes) -> None:
    """The dialer's look at the last frame. Raises `Refusal`."""
    _heed(_parse(frame, ReplicaChallengeHeader).status)


def decline(own: LinkIdentity, status: HandshakeStatus) -> bytes:
    """The dialer's refusal."""
    return ReplicaFinishHeader(cluster=own.cluster, replica=own.replica, status=status).pack()


# --- parts -----------------------------------------------------------------------------------------------------------


def _parse(frame: bytes, kind: type[Any]) -> Any:
    try:
        header = parse_header(frame)
    except DecodeError as error:
        raise refuse(HandshakeStatus.MALFORMED, error.what, str(error.found)) from error
    if type(header) is not kind:
        raise refuse(HandshakeStatus.UNKNOWN_COMMAND, kind.layout.command.name, header.command.name)
    return header


def _heed(status: int) -> None:
    """Raises what the other side said."""
    if status:
        known = HandshakeStatus(status) if status in set(HandshakeStatus) else HandshakeStatus.UNKNOWN_COMMAND
        raise refuse(known, told=True)


def _compare(own: LinkIdentity, header: Any) -> None:
    """What must be alike, in the order in which a difference explains the next one."""
    version = REPLICA_PROTOCOL_VERSION
    for status, expected, found, alike in (
        (HandshakeStatus.CLUSTER_MISMATCH, own.cluster.hex(), header.cluster.hex(), header.cluster == own.cluster),
        (
            HandshakeStatus.VERSION_MISMATCH,
            version,
            f"{header.version_min}..{header.version_max}",
            header.version_min <= version <= header.version_max,
        ),
        (HandshakeStatus.AUTH_REQUIRED, bool(own.secrets), bool(header.authenticated), None),
        (HandshakeStatus.ROSTER_MISMATCH, f"{own.roster:016x}", f"{header.roster:016x}", None),
        (HandshakeStatus.DIRECTIONAL_RULE, f"below {own.replicas}", header.replica, header.replica < own.replicas),
        (HandshakeStatus.SHARDS_MISMATCH, own.shards, header.shards, None),
        (HandshakeStatus.GENESIS_MISMATCH, f"{own.genesis:016x}", f"{header.genesis:016x}", None),
    ):
        if not (expected == found if alike is None else alike):
            raise refuse(status, expected, found)


def _code(key: bytes, said: bytes, answer: bytes, side: bytes) -> bytes:
    code = hashlib.blake2b(key=key, digest_size=32, person=PERSON)
    code.update(said)
    code.update(_signed(answer, bytes(32)))
    code.update(side)
    return code.digest()


def _signed(frame: bytes, mac: bytes) -> bytes:
    return frame[: _MAC_AT.start] + mac + frame[_MAC_AT.stop :]


def _verify(own: LinkIdentity, said: bytes, answer: bytes, mac: bytes, side: bytes) -> None:
    if not any(hmac.compare_digest(_code(key, said, answer, side), mac) for key in own.keys):
        raise refuse(HandshakeStatus.MAC_MISMATCH)
