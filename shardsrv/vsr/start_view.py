"""How a member takes over a view that has started: which StartView counts, and when its log is the view's.

Whether a StartView is adopted is the verdict of one table (S2-42); a frame that is not adopted triggers nothing. The
first row whose facts hold decides:

| row | sender leads | older view | we lead it | answers an earlier life | head below our commits | verdict |
|---|---|---|---|---|---|---|
| stranger | no | | | | | drop |
| old | yes | yes | | | | drop |
| ours | yes | no | yes | | | drop |
| earlier life | yes | no | no | yes | | drop |
| behind our commits | yes | no | no | no | yes | drop |
| adopted | yes | no | no | no | no | adopt |

The last fact counts for a view whose log we have. An answer to an earlier life (S0-54): we probe, the frame echoes
another nonce than ours, its view is not later than ours and its head lies below ours. A frame without an echo makes no
claim and is judged by the other rules.

Invariant: ``log_view`` follows the view only when the log holds, synced, everything up to the head that the view was
started with. Until then this member acknowledges nothing, and would vote with its older log view: what it then holds
of the new view is a copy, never a denial.
"""

from __future__ import annotations

from typing import Any, Final

from shardsrv.errors import DecodeError
from shardsrv.vsr import ingest, view_change
from shardsrv.vsr.effects import Send
from shardsrv.vsr.frames import body_fields
from shardsrv.vsr.quorum import primary_of
from shardsrv.vsr.sending import fields, log_synced, primary, view_durable
from shardsrv.vsr.status import NORMAL, RECOVERING
from shardsrv.vsr.suffix import decode_view, encode_headers, known_commit, low_op
from shardsrv.wire.replica_headers import StartViewHeader

ADOPTED: Final = "adopted"

_Row = tuple[tuple[bool | None, ...], str]

START_VIEW_FACTS: Final = (
    "sender leads the view",
    "older view",
    "we lead it",
    "answers an earlier life",
    "head below our commits",
)
START_VIEW_TABLE: Final[tuple[_Row, ...]] = (
    # sender leads the view, older view, we lead it, answers an earlier life, behind our commits
    ((False, None, None, None, None), "sender does not lead the view"),
    ((True, True, None, None, None), "older view"),
    ((True, False, True, None, None), "own view"),
    ((True, False, False, True, None), "answers an earlier life"),
    ((True, False, False, False, True), "behind our commits"),
    ((True, False, False, False, False), ADOPTED),
)


def verdict(*facts: bool) -> str:
    """ADOPTED, or why a StartView with the five facts is dropped."""
    for row, label in START_VIEW_TABLE:
        if all(want is None or want == have for want, have in zip(row, facts, strict=True)):
            return label
    raise AssertionError(f"no row decides {facts}")


def announce(replica: Any, peers: list[int], nonce: int, out: list[Any]) -> None:
    """Tell ``peers`` that the view has started, with the end of its log; ``nonce`` is the echo of who asked.

    What is told is the log up to the present head, once that is synced: an entry that an asker acknowledged in an
    earlier life is at or below it.
    """
    if replica.leads and replica.status == NORMAL:
        for peer in peers:
            replica.member.asked[peer] = (nonce, replica.head_op)
        tell(replica, out)


def tell(replica: Any, out: list[Any]) -> None:
    """Answer those who wait for it and may be answered by now."""
    m = replica.member
    if not m.asked or not replica.leads or not view_durable(replica):
        return
    log_synced(replica, out)
    for peer, (nonce, head) in list(m.asked.items()):
        if m.log.synced_op < head:
            continue
        del m.asked[peer]
        commit = min(known_commit(replica), head)
        body = encode_headers(replica, head, low_op(head, commit)) if head else b""
        header = StartViewHeader(**fields(replica, op=head, commit=commit, incarnation=nonce, **body_fields(body)))
        out.append(Send(peer, header, body))


def on_start_view(replica: Any, event: Any, out: list[Any]) -> None:
    """A view has started, or is going on."""
    m = replica.member
    if m.transfer.installing:
        # The log is being replaced: what would be cut of it may be gone already. Whoever leads is asked again.
        m.drop("installing")
        return
    header = event.header
    view = header.view
    probing = replica.status == RECOVERING
    foreign_echo = header.incarnation not in (0, m.nonce)
    label = verdict(
        event.peer == primary_of(view, m.count),
        view < replica.view,
        view == replica.view and replica.leads,
        probing and foreign_echo and view <= replica.view and header.op < replica.head_op,
        view == replica.log_view and header.op < replica.commit_min,
    )
    if label != ADOPTED:
        m.drop(label)
        return
    try:
        headers = decode_view(header.op, event.body)
    except DecodeError:
        m.drop("suffix does not decode")
        return
    _adopt(replica, header, headers, out)


def _adopt(replica: Any, header: StartViewHeader, headers: dict[int, Any], out: list[Any]) -> None:
    m = replica.member
    later = header.view > replica.view
    if later or replica.status != NORMAL:
        if header.view != replica.log_view and not _fits(replica, header.op, headers):
            m.drop("a committed entry is not in the view")
            return
        replica.leave_pipeline("another member leads a later view", out)
        view_change.forget_view(replica, out)
        replica.leads = False
        replica.barrier = 0
        replica.view = header.view
        replica.status = NORMAL
        _take_log(replica, header, headers, out)
        m.acked_op = header.commit
        if later:
            replica.want_state(out, view=header.view)
    replica.commit_max = max(replica.commit_max, header.commit)
    m.idle = 0
    if header.incarnation == m.nonce:
        m.probes = 0
        m.trust_op = max(m.trust_op, header.op)
        if m.lost:
            m.transfer.begin(replica, primary(replica), out)


def _fits(replica: Any, head: int, headers: dict[int, Any]) -> bool:
    """Whether our committed entries are in the log of the view, as far as its headers show."""
    committed = replica.commit_min
    same = committed not in headers or headers[committed].checksum == replica.member.log.checksum(committed)
    return head >= committed and same


def _take_log(replica: Any, header: StartViewHeader, headers: dict[int, Any], out: list[Any]) -> None:
    """Make our log a prefix of the view's. A log of this very view is one already, and may be longer than the frame."""
    m = replica.member
    if header.view != replica.log_view:
        ingest.reconcile(replica, headers, header.op, out)
        return
    m.log.verified_op = replica.head_op
    m.canonical = dict(headers)
    m.canonical_low = min(headers, default=header.op + 1)
    m.target_op = header.op


def pump(replica: Any, out: list[Any]) -> None:
    """Once the log is the view's, say so in the record; trust comes back with everything up to the primary's head."""
    m = replica.member
    log = m.log
    if m.transfer.active:
        return
    if replica.log_view != replica.view:
        held = replica.head_op >= m.target_op and log.verified_op >= m.target_op
        if held and log_synced(replica, out):
            replica.log_view = replica.view
            replica.want_state(out, log_view=replica.view)
        return
    if (m.suspect or m.lost) and 0 <= m.trust_op <= log.verified_op and log_synced(replica, out):
        m.suspect = m.lost = False
    if m.canonical and m.acked_op >= m.target_op:
        m.canonical = {}
