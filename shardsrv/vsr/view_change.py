"""A view change: the calls for it, the votes with the ends of the logs, and the start of the view by its primary.

Invariants:

* the view is in the superblock before the first frame of it leaves; a vote leaves only when the log that it describes
  is synced;
* a member votes once a quorum (itself included) has called for the view, and the first vote of a member counts;
* what the votes decide is decided by `merge` alone; the primary starts the view when its own log is the decided one,
  synced, and its record names the view as log view;
* nothing at or below the commit point is cut, and nothing is acknowledged or served meanwhile.
"""

from __future__ import annotations

from typing import Any

from shardsrv.errors import DecodeError
from shardsrv.vsr import ingest, start_view
from shardsrv.vsr.effects import Send
from shardsrv.vsr.frames import body_fields
from shardsrv.vsr.merge import Decided, merge
from shardsrv.vsr.policy import METADATA, PERSISTED
from shardsrv.vsr.quorum import view_change_quorum
from shardsrv.vsr.sending import broadcast, fields, log_synced, primary, view_durable
from shardsrv.vsr.status import NORMAL, RECOVERING, VIEW_CHANGE
from shardsrv.vsr.suffix import decode_vote, own_vote, vote_frame
from shardsrv.wire.replica_headers import DoViewChangeHeader, StartViewChangeHeader


def begin(replica: Any, view: int, reason: str, out: list[Any]) -> None:
    """Leave the present view for a later one."""
    m = replica.member
    replica.status = VIEW_CHANGE
    replica.leads = False
    replica.barrier = 0
    replica.view = view
    replica.leave_pipeline(reason, out)
    forget_view(replica, out)
    m.election.reset(reason, 1 << replica.identity.replica)
    replica.want_state(out, view=view)


def forget_view(replica: Any, out: list[Any]) -> None:
    """What belonged to the view that is left."""
    m = replica.member
    m.canonical = {}
    m.canonical_low = m.target_op = 0
    m.acked_op = 0
    m.heard_heartbeat = m.sent_heartbeat = m.sent_commit = 0
    m.idle = 0
    m.trust_op = -1
    m.side.clear()
    m.repair = None
    m.serving.clear()
    m.asked.clear()
    m.transfer.view_changed(replica, out)


def on_start_view_change(replica: Any, event: Any, out: list[Any]) -> None:
    """Another member calls for a view."""
    _called(replica, event.header.view, event.peer, out)


def _called(replica: Any, view: int, peer: int, out: list[Any]) -> bool:
    """A member is in the view change to ``view``; whether this one is in it too now."""
    m = replica.member
    if replica.status == RECOVERING:
        m.drop("recovering")
        return False
    if view > replica.view:
        begin(replica, view, "another member called for a later view", out)
    elif view < replica.view or replica.status == NORMAL:
        if replica.leads:
            start_view.announce(replica, [peer], 0, out)
        m.drop("older view" if view < replica.view else "the view has started")
        return False
    m.election.calls |= 1 << peer
    return True


def on_do_view_change(replica: Any, event: Any, out: list[Any]) -> None:
    """The vote of another member."""
    m = replica.member
    header = event.header
    if not _called(replica, header.view, event.peer, out):
        return
    if primary(replica) != replica.identity.replica:
        m.drop("not the candidate")
        return
    if event.peer in m.election.votes:
        return
    try:
        m.election.votes[event.peer] = decode_vote(header, event.peer, event.body)
    except DecodeError:
        m.drop("suffix does not decode")


def tick(replica: Any, out: list[Any]) -> None:
    """10 ms passed in a view change."""
    m = replica.member
    election = m.election
    election.elapsed += 1
    if election.elapsed >= m.timeouts.view_change_status:
        begin(replica, replica.view + 1, "the view did not start", out)
    elif election.elapsed % m.timeouts.view_change == 0:
        election.call_due = True
        election.vote_due = True


def pump(replica: Any, out: list[Any]) -> None:
    """Do what the view change allows by now."""
    m = replica.member
    election = m.election
    if not view_durable(replica):
        return
    if election.call_due:
        election.call_due = False
        broadcast(replica, StartViewChangeHeader(**fields(replica)), b"", out)
    if election.calls.bit_count() < view_change_quorum(m.count):
        return
    candidate = primary(replica) == replica.identity.replica
    if candidate and election.decided is not None:
        _pursue(replica, election.decided, out)
    elif election.vote_due and log_synced(replica, out):
        if candidate:
            _decide(replica, out)
        else:
            election.vote_due = False
            more, body = vote_frame(replica)
            header = DoViewChangeHeader(**fields(replica, **more, **body_fields(body)))
            out.append(Send(primary(replica), header, body))




def _decide(replica: Any, out: list[Any]) -> None:
    """The candidate looks whether the votes decide."""
    m = replica.member
    election = m.election
    heard = len(election.votes)
    if heard + 1 < view_change_quorum(m.count) or heard == election.merged:
        return
    election.merged = heard
    votes = [own_vote(replica), *(election.votes[peer] for peer in sorted(election.votes))]
    election.outcome = merge(votes, m.count, m.incarnations)
    decided = election.decided
    if decided is None:
        return
    if not ingest.reconcile(replica, decided.headers, decided.head, out):
        election.outcome = None
        return
    replica.commit_max = max(replica.commit_max, decided.commit)
    _pursue(replica, decided, out)


def _pursue(replica: Any, decided: Decided, out: list[Any]) -> None:
    """Bring the own log to the decided one, then the record, then start the view."""
    m = replica.member
    if m.transfer.active or replica.head_op != decided.head or m.log.verified_op < decided.head:
        return
    if not log_synced(replica, out):
        return
    if replica.log_view != replica.view:
        replica.log_view = replica.view
        m.suspect = m.lost = False
        replica.want_state(out, log_view=replica.view)
        return
    lead(replica, out)


def lead(replica: Any, out: list[Any]) -> None:
    """The view starts: what is not committed goes on as entries in flight."""
    m = replica.member
    replica.status = NORMAL
    ingest.commit(replica, out)
    replica.leads = True
    replica.pipeline.drain()
    for op in range(replica.commit_min + 1, replica.head_op + 1):
        prepare = m.log.entries[op]
        replica.pipeline.push(0, prepare, None, prepare.durability == PERSISTED)
        if replica.gate is not None:
            replica.gate.entered(prepare.client)
    if replica.policy.plane == METADATA:
        replica.barrier = replica.head_op
    m.idle = 0
    m.canonical = {}
    m.resend_after, m.resend_shift = m.timeouts.prepare, 0
    start_view.announce(replica, m.others, 0, out)
