"""The end of a log as it travels in DoViewChange and StartView: headers from the highest op down to the commit point.

Invariants: slot i describes op - i; a header is that of an entry that the sender's log holds, or blank; at most 128
slots; a body that decodes describes a chain.
"""

from __future__ import annotations

from typing import Any

from shardsrv.vsr.merge import SUFFIX_MAX, Vote
from shardsrv.wire.constants import HEADER_SIZE
from shardsrv.wire.prepare_header import PrepareHeader
from shardsrv.wire.replica_bodies import INCARNATION_SIZE, decode_suffix
from shardsrv.wire.replica_headers import DoViewChangeHeader


def known_commit(replica: Any) -> int:
    """The commit point that the own log can show: what lies above `verified_op` may be another entry."""
    return min(replica.commit_max, replica.member.log.verified_op, replica.head_op)


def low_op(head: int, commit: int) -> int:
    """The lowest op of a suffix."""
    return max(commit, 1, head - SUFFIX_MAX + 1)


def encode_headers(replica: Any, head: int, low: int) -> bytes:
    """Slots from ``head`` down to ``low``; an entry at or below the commit point whose header is not known is blank."""
    log = replica.member.log
    slots: list[bytes] = []
    for op in range(head, low - 1, -1):
        entry = log.header(op)
        slots.append(PrepareHeader.blank(op).pack() if entry is None else bytes(entry.header))
    return b"".join(slots)


def own_vote(replica: Any) -> Vote:
    """What this member says about its log, for a merge."""
    m = replica.member
    identity = replica.identity
    head, commit = replica.head_op, known_commit(replica)
    headers = {op: entry for op in range(low_op(head, commit), head + 1) if (entry := m.log.header(op)) is not None}
    return Vote(
        replica=identity.replica,
        log_view=replica.log_view,
        op=head,
        commit=commit,
        headers=headers,
        present=frozenset(headers),
        nacks=frozenset(),
        suspect=m.suspect or m.lost,
        incarnation=m.incarnations[identity.replica],
        incarnations=tuple(m.incarnations),
    )


def vote_frame(replica: Any) -> tuple[dict[str, Any], bytes]:
    """(fields, body) of the DoViewChange with `own_vote`."""
    m = replica.member
    vote = own_vote(replica)
    body = encode_headers(replica, vote.op, low_op(vote.op, vote.commit)) if vote.op else b""
    slots = len(body) // HEADER_SIZE
    present = sum(1 << vote.op - op for op in vote.present)
    known = b"".join(incarnation.to_bytes(INCARNATION_SIZE, "little") for incarnation in m.incarnations)
    assert slots <= SUFFIX_MAX, "a log has more entries above its commit point than a vote can carry"
    return {
        "op": vote.op,
        "commit": vote.commit,
        "log_view": vote.log_view,
        "incarnations": m.count,
        "suspect": int(vote.suspect),
        "incarnation": vote.incarnation,
        "nack_bitset": 0,
        "present_bitset": present,
    }, body + known


def decode_vote(header: DoViewChangeHeader, peer: int, body: Any) -> Vote:
    """The vote of ``peer``. Raises `DecodeError` for a body that is no suffix."""
    slots, incarnations = decode_suffix(body, header.op, header.incarnations)
    headers: dict[int, Any] = {}
    present: list[int] = []
    nacks: list[int] = []
    for index, slot in enumerate(slots):
        op = header.op - index
        if not slot.is_blank:
            headers[op] = slot
            if header.present_bitset >> index & 1:
                present.append(op)
        if header.nack_bitset >> index & 1 and op > header.commit:
            nacks.append(op)
    return Vote(
        replica=peer,
        log_view=header.log_view,
        op=header.op,
        commit=header.commit,
        headers=headers,
        present=frozenset(present),
        nacks=frozenset(nacks),
        suspect=bool(header.suspect),
        incarnation=header.incarnation,
        incarnations=incarnations,
    )


def decode_view(op: int, body: Any) -> dict[int, Any]:
    """The headers of a StartView by op, without a hole from the head down. Raises `DecodeError`."""
    slots, _ = decode_suffix(body, op)
    headers: dict[int, Any] = {}
    for slot in slots:
        if slot.is_blank:
            break
        headers[slot.op] = slot
    return headers
