"""What enters the log of a member that does not lead: entries of the present view's log, live or repaired, in op order.

An entry that comes here is one of the view's log: its sender leads the view, or served it as committed, or its identity
is the one that the view was started with. Invariants:

* an entry is appended only at the head, and only if it names the head as its parent; one above a hole waits aside;
* an own entry is cut away only above the commit point and only when it is proved not to be the view's: another entry
  of the view's log stands at its op, or the entry after it names another parent;
* between a cut and its `Truncated` nothing is appended;
* an entry is applied when it is known to be committed, known to be the view's, and written to the own log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardsrv.errors import LogIncoherent
from shardsrv.vsr.effects import Append, Committed, TruncateFrom
from shardsrv.vsr.head import held, refreshed
from shardsrv.vsr.policy import PERSISTED
from shardsrv.vsr.sending import next_token
from shardsrv.vsr.status import RECOVERING


def offer(replica: Any, prepare: Any, out: list[Any]) -> None:
    """Take one entry of the view's log."""
    m = replica.member
    log = m.log
    op = prepare.op
    if op <= replica.commit_min:
        return
    expected = m.canonical.get(op)
    if expected is not None and expected.checksum != prepare.checksum:
        m.drop("not the entry that the view was started with")
    elif m.cut_token or op > replica.head_op + 1:
        if not m.side.put(prepare, replica.head_op):
            m.drop("no room above the hole")
    elif op == replica.head_op + 1:
        if append(replica, prepare, out):
            drain(replica, out)
    elif log.checksum(op) == prepare.checksum:
        log.verified_op = max(log.verified_op, op)
    elif op <= log.verified_op:
        m.drop("another entry of the same view")
    else:
        m.side.put(prepare, op)
        cut(replica, op, out)


def append(replica: Any, prepare: Any, out: list[Any]) -> bool:
    """Write the entry after the head; False when it does not continue the log."""
    m = replica.member
    log = m.log
    op = prepare.op
    if prepare.parent != replica.head_checksum:
        if log.verified_op >= replica.head_op:
            m.drop("does not chain")
        else:
            # The own entry at the head was never the view's: another stands there.
            m.side.put(prepare, op)
            cut(replica, replica.head_op, out)
        return False
    if prepare.timestamp <= replica.last_timestamp:
        m.drop("time does not rise")
        return False
    stored = prepare if prepare.view == prepare.born_view else prepare.with_view(prepare.born_view)
    try:
        replica.plane.advance(stored)
    except LogIncoherent:
        m.drop("does not continue the state")
        return False
    token = next_token(replica)
    log.add(stored, token)
    # The pair is read from the log, never from the frame that came last (S1-08, S1-16).
    head = refreshed(held(replica.head_op, replica.head_checksum), replica.commit_min, log.checksum)
    replica.head_op, replica.head_checksum = head.op, head.checksum
    replica.last_timestamp = log.timestamp(head.op)
    log.verified_op = head.op
    replica.commit_max = max(replica.commit_max, min(stored.commit, op))
    out.append(Append(token, stored, stored.durability == PERSISTED))
    return True


def drain(replica: Any, out: list[Any]) -> None:
    """Append what waited aside and now continues the log."""
    m = replica.member
    if m.cut_token:
        return
    while True:
        prepare = m.side.pop(replica.head_op + 1)
        if prepare is None or not append(replica, prepare, out):
            break
    if len(m.side):
        m.side.forget_below(replica.head_op + 1)


def cut(replica: Any, op: int, out: list[Any]) -> None:
    """Remove the entries from ``op`` on: they are not of the view's log."""
    m = replica.member
    log = m.log
    assert op > replica.commit_min, "a committed entry is never cut"
    kept = [log.entries[held] for held in range(replica.commit_min + 1, op)]
    log.cut(op)
    replica.head_op = op - 1
    replica.head_checksum = log.checksum(op - 1)
    replica.last_timestamp = log.timestamp(op - 1)
    replica.plane.rewind(replica.commit_min)
    for prepare in kept:
        replica.plane.advance(prepare)
    m.cut_token = next_token(replica)
    out.append(TruncateFrom(m.cut_token, op))


def reconcile(replica: Any, headers: Mapping[int, Any], head: int, out: list[Any]) -> bool:
    """Make the own log a prefix of the one that a view is started with: ``headers`` by op, without a hole, up to
    ``head``. False, and nothing changed, when a committed entry of ours is not in it."""
    m = replica.member
    log = m.log
    committed = replica.commit_min
    if head < committed or (committed in headers and headers[committed].checksum != log.checksum(committed)):
        m.drop("a committed entry is not in the view")
        return False
    low = min(headers, default=head + 1)
    top = min(replica.head_op, head)
    first_wrong = head + 1
    for op in range(max(low, committed + 1), top + 1):
        if log.checksum(op) != headers[op].checksum:
            first_wrong, top = op, op - 1
            break
    verified = committed
    if committed < top:
        if top >= low:
            verified = top
        elif top == low - 1 and low in headers:
            if log.checksum(top) == headers[low].parent:
                verified = top
            else:
                first_wrong = top
    if replica.head_op >= first_wrong:
        cut(replica, first_wrong, out)
    log.verified_op = max(verified, committed)
    m.canonical = dict(headers)
    m.canonical_low = low
    m.target_op = head
    return True


def commit(replica: Any, out: list[Any]) -> None:
    """Apply what is committed, from the own log; one guard for every trigger (S2-45)."""
    m = replica.member
    if replica.leads or m.transfer.active or replica.status == RECOVERING:
        return
    log = m.log
    limit = min(replica.commit_max, log.appended_op, log.verified_op)
    while replica.commit_min < limit:
        prepare = log.entries[replica.commit_min + 1]
        out.append(Committed(prepare, None, replica.commit_entry(prepare)))
