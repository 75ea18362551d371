"""A member that came back asks for the present view instead of resuming the one it remembers.

Invariants: while it probes it votes for nothing and acknowledges nothing; it never resumes primaryship of the view it
recovered; a probe is a question, sent whatever the superblock does (S0-26); after so many unanswered probes it calls
for the next view with the log it has, which is how a whole cluster comes back; a suspect that follows a view already
goes on asking until an answer echoes its nonce.
"""

from __future__ import annotations

from typing import Any

from shardsrv.vsr import start_view, view_change
from shardsrv.vsr.effects import Send
from shardsrv.vsr.quorum import primary_of
from shardsrv.vsr.sending import broadcast, fields, primary
from shardsrv.vsr.status import NORMAL, RECOVERING
from shardsrv.wire.replica_headers import RequestStartViewHeader


def _question(replica: Any) -> RequestStartViewHeader:
    m = replica.member
    return RequestStartViewHeader(
        **fields(replica, incarnation=m.nonce, member=m.incarnations[replica.identity.replica])
    )


def probe(replica: Any, out: list[Any]) -> None:
    """Ask everybody for the present view."""
    m = replica.member
    m.probes += 1
    m.idle = 0
    broadcast(replica, _question(replica), b"", out)


def tick(replica: Any, out: list[Any]) -> None:
    """10 ms passed: probe again, or stop waiting for an answer."""
    m = replica.member
    if replica.status == RECOVERING:
        if m.fresh or m.idle < m.timeouts.probe:
            return
        if m.probes >= m.timeouts.probe_attempts:
            m.probes = 0
            view_change.begin(replica, replica.view + 1, "nobody leads", out)
        else:
            probe(replica, out)
    elif _doubtful_follower(replica) and m.ticks % m.timeouts.probe == 0:
        out.append(Send(primary(replica), _question(replica), b""))


def _doubtful_follower(replica: Any) -> bool:
    """Whether a follower still waits for the StartView that tells how far it must hold the log to be trusted."""
    m = replica.member
    return replica.status == NORMAL and not replica.leads and (m.suspect or m.lost) and m.trust_op < 0


def newer_view(replica: Any, view: int, out: list[Any]) -> None:
    """Somebody is in a later view: ask who leads it, once a probe interval for each view."""
    m = replica.member
    stamp = view, m.ticks // m.timeouts.probe
    if replica.status == RECOVERING or m.asked_view == stamp:
        return
    m.asked_view = stamp
    leader = primary_of(view, m.count)
    if leader != replica.identity.replica:
        out.append(Send(leader, _question(replica), b""))


def on_request_start_view(replica: Any, event: Any, out: list[Any]) -> None:
    """A member asks for the view. Only who leads answers; when our own primary asks, it has restarted and leads no
    more."""
    m = replica.member
    header = event.header
    m.incarnations[event.peer] = max(m.incarnations[event.peer], header.member)
    if replica.leads:
        start_view.announce(replica, [event.peer], header.incarnation, out)
    elif replica.status == NORMAL and header.view == replica.view and event.peer == primary(replica):
        view_change.begin(replica, replica.view + 1, "the primary restarted", out)
