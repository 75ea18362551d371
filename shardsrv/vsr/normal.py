"""Normal operation: prepares go from the primary to every other member directly, acknowledgements come back, heartbeats
carry the commit point.

Invariants:

* a member acknowledges an entry of the present view's log only, held at the level that its durability asks for, in op
  order, and only while its record holds this view and log view, while no transfer is under way and while it is trusted;
* a primary counts an acknowledgement once per member and level, for the entry in flight with that identity;
* heartbeats count up within a view; an older one is ignored;
* retransmission waits longer after each attempt that brought nothing, and starts again with each commit.
"""

from __future__ import annotations

from typing import Any, Final

from shardsrv.errors import DecodeError
from shardsrv.vsr import clock, ingest, restart, start_view, view_change
from shardsrv.vsr.effects import Send
from shardsrv.vsr.frames import body_fields
from shardsrv.vsr.policy import PERSISTED
from shardsrv.vsr.quorum import nack_quorum, primary_of
from shardsrv.vsr.sending import broadcast, fields, primary, view_durable
from shardsrv.vsr.status import NORMAL
from shardsrv.vsr.timeouts import BACKOFF_SHIFT_MAX
from shardsrv.wire.constants import AckedAs
from shardsrv.wire.replica_bodies import GroupLife, decode_not_served, encode_not_served
from shardsrv.wire.replica_headers import CommitHeader, PrepareOkHeader

RESEND_AT_ONCE: Final = 16
"""Prepares sent again with one expiry of the timer."""


# --- the primary ------------------------------------------------------------------------------------------------------


def fan_out(replica: Any, prepare: Any, out: list[Any]) -> None:
    """Send a prepare to all others, as it is: it was born in this view."""
    m = replica.member
    header = bytes(prepare.header)
    body = prepare.body
    for peer in m.others:
        out.append(Send(peer, header, body))
    if len(replica.pipeline) == 1:
        m.resend_after, m.resend_shift = m.timeouts.prepare, 0


def on_prepare_ok(replica: Any, event: Any, out: list[Any]) -> None:
    """An acknowledgement, or the refusal of an entry for its time."""
    m = replica.member
    header = event.header
    if header.view != replica.view:
        if header.view > replica.view:
            restart.newer_view(replica, header.view, out)
        m.drop("older view" if header.view < replica.view else "newer view")
        return
    if not replica.leads or replica.status != NORMAL:
        m.drop("not the primary")
        return
    if header.op <= replica.commit_min:
        return  # late, and no news: a quorum was there before
    entry = replica.pipeline.at(header.op)
    if entry is None or entry.prepare.checksum != header.prepare_checksum:
        m.drop("acknowledges nothing in flight")
        return
    if header.acked_as == AckedAs.CLOCK_REFUSED:
        entry.clock_refusals |= 1 << event.peer
        if entry.clock_refusals.bit_count() >= nack_quorum(m.count):
            view_change.begin(replica, replica.view + 1, "the primary's clock was refused", out)
        return
    before = replica.commit_min
    synced = header.acked_as == AckedAs.SYNCED
    if replica.pipeline.acknowledge(header.op, header.prepare_checksum, event.peer, synced):
        replica.advance_commit(out)
    if replica.commit_min > before:
        m.resend_after, m.resend_shift = m.timeouts.prepare, 0


def tick(replica: Any, out: list[Any]) -> None:
    """10 ms passed in a view that goes on."""
    m = replica.member
    if not replica.leads:
        if m.idle >= m.timeouts.heartbeat:
            view_change.begin(replica, replica.view + 1, "no heartbeat of the primary", out)
        return
    news = replica.commit_min > m.sent_commit and not len(replica.pipeline)
    if news or m.idle >= m.timeouts.commit:
        heartbeat(replica, out)
    if len(replica.pipeline):
        m.resend_after -= 1
        if m.resend_after <= 0:
            resend(replica, out)
            m.resend_shift = min(m.resend_shift + 1, BACKOFF_SHIFT_MAX)
            m.resend_after = m.timeouts.prepare << m.resend_shift


def give_up(replica: Any, out: list[Any]) -> None:
    """We cannot serve any more: if we lead, say so by name, so that the others need not wait for our silence."""
    if replica.leads:
        replica.leads = False
        identity = replica.identity
        heartbeat(replica, out, encode_not_served([GroupLife(identity.group, identity.created_revision)]))


def heartbeat(replica: Any, out: list[Any], not_served: bytes = b"") -> None:
    """Tell the others that the view goes on, and the commit point; ``not_served`` lists groups that we lead but cannot
    serve."""
    m = replica.member
    m.idle = 0
    if not view_durable(replica):
        return
    m.sent_heartbeat += 1
    m.sent_commit = replica.commit_min
    header = CommitHeader(
        **fields(
            replica,
            commit=replica.commit_min,
            commit_checksum=m.log.point_checksum,
            timestamp_monotonic=m.sent_heartbeat,
            **body_fields(not_served),
        )
    )
    broadcast(replica, header, not_served, out)


def resend(replica: Any, out: list[Any]) -> None:
    """Send the first prepares in flight again, to whom has not acknowledged them."""
    for entry in replica.pipeline.entries[:RESEND_AT_ONCE]:
        prepare = entry.prepare
        acks = entry.synced_acks if entry.synced else entry.appended_acks
        header = prepare.restamped(replica.view)
        for peer in replica.member.others:
            if not acks >> peer & 1:
                out.append(Send(peer, header, prepare.body))


# --- the others -------------------------------------------------------------------------------------------------------


def on_prepare(replica: Any, event: Any, out: list[Any]) -> None:
    """A live prepare."""
    m = replica.member
    prepare = event.header
    reason = _why_not(replica, prepare.view, event.peer, out)
    if not reason and m.transfer.active:
        reason = "transferring"
    if not reason and not _in_time(replica, prepare, event.now, out):
        reason = "clock"
    if reason:
        m.drop(reason)
        return
    op = prepare.op
    ingest.offer(replica, prepare, out)
    replica.commit_max = max(replica.commit_max, min(prepare.commit, op))
    if op <= m.acked_op or op <= replica.commit_min:
        _acknowledge_again(replica, prepare, out)


def _why_not(replica: Any, view: int, peer: int, out: list[Any]) -> str:
    """Why a frame of the primary of ``view`` is not taken, or an empty text."""
    if view > replica.view:
        restart.newer_view(replica, view, out)
        return "newer view"
    if view < replica.view:
        return "older view"
    if peer != primary_of(view, replica.member.count):
        return "sender does not lead the view"
    return "" if replica.status == NORMAL else "not in the view yet"


def _in_time(replica: Any, prepare: Any, now: int, out: list[Any]) -> bool:
    """Whether the time of a new entry is near enough to the own clock; the next one in order is refused by name."""
    m = replica.member
    if prepare.op <= replica.head_op:
        return True
    slack = m.timeouts.clock_slack
    if prepare.op > replica.head_op + 1:
        leap = clock.LEAP * (prepare.op - replica.head_op)
        return prepare.timestamp <= max(now + slack, replica.last_timestamp + leap)
    if prepare.timestamp <= max(now + slack, replica.last_timestamp + clock.LEAP):
        return True
    if view_durable(replica):
        # Also one that may have forgotten: its clock is as good as another's, and the refusal says nothing of its log.
        _send_ok(replica, prepare, AckedAs.CLOCK_REFUSED, out)
    return False


def on_commit(replica: Any, event: Any, out: list[Any]) -> None:
    """A heartbeat."""
    m = replica.member
    header = event.header
    if header.view < replica.view and replica.leads and event.peer == primary_of(header.view, m.count):
        start_view.announce(replica, [event.peer], 0, out)
    reason = _why_not(replica, header.view, event.peer, out)
    if not reason and header.timestamp_monotonic <= m.heard_heartbeat:
        reason = "older heartbeat"
    if reason:
        m.drop(reason)
        return
    m.heard_heartbeat = header.timestamp_monotonic
    m.idle = 0
    replica.commit_max = max(replica.commit_max, header.commit)
    if len(event.body) and _not_served(replica, event.body):
        view_change.begin(replica, replica.view + 1, "the primary cannot serve", out)


def _not_served(replica: Any, body: Any) -> bool:
    """Whether a heartbeat's list names this group in this life."""
    identity = replica.identity
    try:
        return GroupLife(identity.group, identity.created_revision) in decode_not_served(body)
    except DecodeError:
        replica.member.drop("list of groups does not decode")
        return False


def acknowledge(replica: Any, out: list[Any]) -> None:
    """Acknowledge what may be acknowledged by now. The only place that begins an acknowledgement (S2-34)."""
    m = replica.member
    if m.acked_op >= replica.head_op or replica.leads or not _may_acknowledge(replica):
        return
    log = m.log
    while m.acked_op < min(replica.head_op, log.verified_op):
        op = m.acked_op + 1
        # An entry that was applied is the group's own; the view was started with it.
        prepare = log.entries.get(op) or m.canonical.get(op)
        if prepare is not None:
            level = _level(log, prepare)
            if level is None:
                return
            _send_ok(replica, prepare, level, out)
        m.acked_op = op


def _may_acknowledge(replica: Any) -> bool:
    m = replica.member
    return (
        replica.status == NORMAL
        and replica.log_view == replica.view
        and view_durable(replica)
        and not m.suspect
        and not m.lost
        and not m.transfer.active
    )


def _level(log: Any, prepare: Any) -> int | None:
    """What the own log can vouch for, None while that is less than the entry asks for."""
    op = prepare.op
    if op <= log.synced_op:
        return AckedAs.SYNCED
    if prepare.durability == PERSISTED or op > log.appended_op:
        return None
    return AckedAs.APPENDED


def _acknowledge_again(replica: Any, prepare: Any, out: list[Any]) -> None:
    """The primary sent a prepare again: our acknowledgement may have been lost."""
    m = replica.member
    op = prepare.op
    if replica.leads or not _may_acknowledge(replica):
        return
    if op > replica.commit_min and m.log.checksum(op) != prepare.checksum:
        return
    level = _level(m.log, prepare)
    if level is not None:
        _send_ok(replica, prepare, level, out)


def _send_ok(replica: Any, prepare: Any, level: int, out: list[Any]) -> None:
    header = PrepareOkHeader(
        **fields(
            replica,
            parent=prepare.parent,
            prepare_checksum=prepare.checksum,
            op=prepare.op,
            commit=min(replica.commit_max, replica.head_op),
            timestamp=prepare.timestamp,
            request=prepare.request,
            operation=prepare.operation,
            acked_as=int(level),
        )
    )
    out.append(Send(primary(replica), header, b""))
