"""The asking end of repair: one session at a time, driven by every event and by every tick, in every status.

A gap is what the log of the present view has and this member does not hold, or does not know to be the view's. A
follower asks the primary, whose log is the view's, and when that brings nothing (its copy may be damaged) another
member for what is committed. A candidate whose votes decided asks the holders that the votes
name for the entries above the commit point (their identities are known), and for the rest asks for committed entries
only.

Invariants: an entry counts only if it was sent in the present view, by the peer of the session, within its window
(S1-21); only such entries are signs of life; progress asks for the next chunk at once, silence asks again after the
interval, and turns to the next holder.
"""

from __future__ import annotations

from typing import Any

from shardsrv.vsr import ingest
from shardsrv.vsr.effects import Send
from shardsrv.vsr.sending import fields, primary
from shardsrv.vsr.status import NORMAL, VIEW_CHANGE
from shardsrv.wire.replica_headers import RequestPreparesHeader


class RepairSession:
    """What was asked of ``peer``: the entries ``first``..``last``; ``idle`` ticks without a sign of life."""

    __slots__ = ("attempts", "done", "first", "idle", "last", "nonce", "peer")

    def __init__(self, nonce: int, peer: int, first: int, last: int, attempts: int) -> None:
        self.nonce = nonce
        self.peer = peer
        self.first = first
        self.last = last
        self.idle = 0
        self.attempts = attempts
        self.done = False


def gap(replica: Any) -> tuple[int, int]:
    """(first, last) op that is missing or not known to be the view's; (1, 0) when nothing is."""
    m = replica.member
    if m.transfer.active or m.cut_token:
        return 1, 0
    if replica.status == NORMAL and not replica.leads:
        last = max(m.target_op, replica.commit_max, m.side.lowest() - 1)
    elif replica.status == VIEW_CHANGE and m.election.decided is not None:
        last = m.target_op
    else:
        return 1, 0
    return m.log.verified_op + 1, last


def pump(replica: Any, out: list[Any]) -> None:
    """Open, renew or end the session as the gap has it."""
    m = replica.member
    first, last = gap(replica)
    session = m.repair
    if first > last:
        m.repair = None
        return
    if session is None or first > session.last or (session.done and first > session.first):
        _ask(replica, first, last, 0, out)


def tick(replica: Any, out: list[Any]) -> None:
    """10 ms passed."""
    session = replica.member.repair
    if session is None:
        return
    session.idle += 1
    if session.idle >= replica.member.timeouts.repair:
        first, last = gap(replica)
        if first <= last:
            _ask(replica, first, last, session.attempts + 1, out)


def _ask(replica: Any, first: int, last: int, attempts: int, out: list[Any]) -> None:
    m = replica.member
    choose = _source_of_follower if replica.status == NORMAL else _source_of_candidate
    peer, last, committed_only = choose(replica, first, last, attempts)
    m.repair = RepairSession(m.nonces.draw(), peer, first, last, attempts)
    header = RequestPreparesHeader(
        **fields(replica, nonce=m.repair.nonce, from_op=first, to_op=last, committed_only=int(committed_only))
    )
    out.append(Send(peer, header, b""))


def _source_of_follower(replica: Any, first: int, last: int, attempts: int) -> tuple[int, int, bool]:
    """(peer, last op, committed entries only): the primary; every other time it brought nothing, another member, which
    knows for certain only what is committed."""
    m = replica.member
    leader = primary(replica)
    others = [peer for peer in m.others if peer != leader]
    if attempts % 2 == 0 or not others or first > replica.commit_max:
        return leader, last, False
    return others[attempts // 2 % len(others)], min(last, replica.commit_max), True


def _source_of_candidate(replica: Any, first: int, last: int, attempts: int) -> tuple[int, int, bool]:
    """(peer, last op, committed entries only) for a primary-elect whose votes decided: who holds the first entry."""
    m = replica.member
    decided = m.election.decided
    committed_only = first <= decided.commit
    if committed_only:
        last = min(last, decided.commit)
        best = sorted(decided.committed_by, key=lambda peer: (-decided.committed_by[peer], peer))
        holders = [peer for peer in best if decided.committed_by[peer] >= first]
    else:
        holders = [peer for peer in range(m.count) if decided.holders.get(first, 0) >> peer & 1]
    holders = [peer for peer in holders if peer != replica.identity.replica] or m.others
    return holders[attempts % len(holders)], last, committed_only


def on_repair_prepare(replica: Any, event: Any, out: list[Any]) -> None:
    """An entry that was asked for."""
    m = replica.member
    prepare = event.header.prepare
    session = m.repair
    if (
        session is None
        or prepare.view != replica.view
        or event.peer != session.peer
        or not session.first <= prepare.op <= session.last
        or m.transfer.active
    ):
        m.drop("not asked for")
        return
    session.idle = 0
    ingest.offer(replica, prepare, out)


def on_repair_done(replica: Any, event: Any, out: list[Any]) -> None:
    """The answer is complete; whether the gap is closed is judged by the own log."""
    session = replica.member.repair
    if session is None or session.nonce != event.header.nonce or session.peer != event.peer:
        replica.member.drop("not asked for")
        return
    session.done = True


def on_range_evicted(replica: Any, event: Any, out: list[Any]) -> None:
    """The peer's log no longer reaches down to what is missing: only a transfer closes the gap (S2-48)."""
    m = replica.member
    session = m.repair
    if session is None or session.nonce != event.header.nonce or session.peer != event.peer:
        m.drop("not asked for")
        return
    if replica.status == NORMAL and event.peer != primary(replica):
        session.done = True  # only who leads offers a transfer; the next question goes there
        return
    if event.header.op <= m.log.verified_op + 1:
        session.done = True  # what the peer has dropped came from elsewhere meanwhile
        return
    if not m.transfer.active:
        m.transfer.begin(replica, event.peer, out, event.header.op)
        if m.transfer.active:
            m.repair = None
