"""The serving end of repair: entries out of the window or the log, in op order, a chunk a request.

How far a member may serve, by what was asked:

| asked | the own view | status | up to |
|---|---|---|---|
| committed entries only | the asker's | NORMAL or VIEW_CHANGE | what is applied |
| any | the asker's | NORMAL | what is known to be the view's |
| any | the asker's | VIEW_CHANGE | the head: the asker knows the identities |
| otherwise | | | nothing |

Who is asked in a later view than its own looks for that view first: an answer names the view, which this disk does not
hold yet. Invariants: one answer is under way per peer, a new request replaces it; an answer ends with RepairDone, and
begins with RangeEvicted when its front is no longer in the log.
"""

from __future__ import annotations

from typing import Any, Final

from shardsrv.vsr import restart
from shardsrv.vsr.effects import ReadPrepare, Send
from shardsrv.vsr.policy import REPAIR_BYTES
from shardsrv.vsr.sending import fields, next_token, view_durable
from shardsrv.vsr.status import NORMAL, VIEW_CHANGE
from shardsrv.wire.replica_headers import RangeEvictedHeader, RepairDoneHeader

READS_AT_ONCE: Final = 16


class Answer:
    """An answer under way: ``following`` is the next op to send, up to ``last``; ``room`` the bytes it may still
    take."""

    __slots__ = ("following", "last", "nonce", "peer", "reads", "room", "view")

    def __init__(self, peer: int, nonce: int, view: int, following: int, last: int) -> None:
        self.peer = peer
        self.nonce = nonce
        self.view = view
        self.following = following
        self.last = last
        self.room = REPAIR_BYTES
        self.reads = 0


class Serving:
    """Answers by peer, and by the token of the read that they wait for."""

    __slots__ = ("answers", "reads")

    def __init__(self) -> None:
        self.answers: dict[int, Answer] = {}
        self.reads: dict[int, tuple[Answer, int]] = {}

    def clear(self) -> None:
        """The view changed: what was asked in it is void."""
        self.answers.clear()
        self.reads.clear()


def ceiling(replica: Any, view: int, committed_only: bool) -> int:
    """The highest op that may be served; see the module."""
    if replica.status not in (NORMAL, VIEW_CHANGE) or view != replica.view or replica.member.transfer.active:
        return 0
    if not view_durable(replica):
        return 0  # an answer names the view; the question comes again
    if committed_only:
        return replica.commit_min
    return replica.member.log.verified_op if replica.status == NORMAL else replica.head_op


def on_request_prepares(replica: Any, event: Any, out: list[Any]) -> None:
    """A member asks for entries."""
    m = replica.member
    header = event.header
    if header.view > replica.view:
        restart.newer_view(replica, header.view, out)
    limit = ceiling(replica, header.view, bool(header.committed_only))
    if not limit:
        m.drop("nothing to serve in that view")
        return
    first = header.from_op
    last = min(header.to_op, limit)
    if first < m.log.retained_from:
        evicted = RangeEvictedHeader(**fields(replica, nonce=header.nonce, op=m.log.retained_from))
        out.append(Send(event.peer, evicted, b""))
        first = m.log.retained_from
    answer = Answer(event.peer, header.nonce, header.view, first, min(last, first + replica.policy.repair_chunk - 1))
    m.serving.answers[event.peer] = answer
    _go_on(replica, answer, out)


def _go_on(replica: Any, answer: Answer, out: list[Any]) -> None:
    """Send what lies in memory, ask the log for the rest, a few at a time."""
    m = replica.member
    while answer.following <= answer.last and answer.room > 0:
        entry = m.log.entries.get(answer.following)
        if entry is not None:
            if answer.reads:
                return
            _send(answer, entry, out)
        elif answer.reads < READS_AT_ONCE:
            token = next_token(replica)
            m.serving.reads[token] = (answer, answer.following)
            answer.reads += 1
            out.append(ReadPrepare(token, answer.following, 0))
        else:
            return
        answer.following += 1
    if not answer.reads:
        _finish(replica, answer, out)


def _send(answer: Answer, prepare: Any, out: list[Any]) -> None:
    answer.room -= prepare.size
    out.append(Send(answer.peer, prepare.restamped(answer.view, True), prepare.body))


def _finish(replica: Any, answer: Answer, out: list[Any]) -> None:
    m = replica.member
    if m.serving.answers.get(answer.peer) is answer:
        del m.serving.answers[answer.peer]
        done = RepairDoneHeader(**fields(replica, nonce=answer.nonce, op=answer.following - 1))
        out.append(Send(answer.peer, done, b""))


def read(replica: Any, event: Any, out: list[Any]) -> None:
    """An entry was read from the log, or is not there: dropped meanwhile, or damaged."""
    m = replica.member
    answer, op = m.serving.reads.pop(event.token, (None, 0))
    if answer is None or m.serving.answers.get(answer.peer) is not answer:
        return
    answer.reads -= 1
    prepare = event.prepare
    if prepare is None or prepare.op != op:
        answer.last = min(answer.last, op - 1)
        answer.following = min(answer.following, op)
    elif op <= answer.last and prepare.born_view <= answer.view:
        _send(answer, prepare, out)
    if answer.reads == 0:
        _go_on(replica, answer, out)
