"""What a replica of a group with several members has besides: its state, and where each event goes.

The parts: `normal` (prepares, acknowledgements, heartbeats), `ingest` (what enters the log of a member that does not
lead), `view_change` and `merge` (elections), `start_view` (adoption of a view), `repair` and `serving` (both ends of
repair), `restart` (probing). Each is functions over the replica and this state.

Invariants:

* a frame that speaks for a view leaves only when the superblock holds this view and log view (S0-21..S0-26): every
  place that sends one asks `view_durable`; a question (RequestStartView, repair, transfer) vouches for nothing and may
  always leave;
* ``log_view`` of the record is the last view whose whole log, as it was started, this member held and had synced;
* a frame that does not fit is dropped and counted, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from shardsrv._core import Prepare
from shardsrv.vsr import ingest, normal, repair, restart, serving, start_view, view_change
from shardsrv.vsr.effects import Committed
from shardsrv.vsr.election import Election
from shardsrv.vsr.events import SYNCED, PrepareRead, Truncated
from shardsrv.vsr.frames import RepairPrepare
from shardsrv.vsr.log_window import LogWindow
from shardsrv.vsr.nonce import Nonces
from shardsrv.vsr.quorum import primary_of
from shardsrv.vsr.repair import RepairSession
from shardsrv.vsr.serving import Serving
from shardsrv.vsr.side_buffer import SideBuffer
from shardsrv.vsr.status import FENCED, NORMAL, RECOVERING, VIEW_CHANGE
from shardsrv.vsr.transfer_port import TransferPort
from shardsrv.vsr.trust import SUSPECT, DiskFacts, judge
from shardsrv.wire.replica_headers import (
    CommitHeader,
    DoViewChangeHeader,
    PrepareOkHeader,
    RangeEvictedHeader,
    RepairDoneHeader,
    RequestPreparesHeader,
    RequestStartViewHeader,
    RequestStateChunkHeader,
    RequestStateTransferHeader,
    StartViewChangeHeader,
    StartViewHeader,
    StateChunkHeader,
    StateTransferTargetHeader,
)

FOLLOWER_RESTS: Final = 10
"""Parts of the heartbeat timeout in which a follower at rest counts it: it may call for a view that much early."""


class Member:
    """See the module; the fields are read and written by the parts."""

    __slots__ = (
        "acked_op",
        "asked",
        "asked_view",
        "born_view",
        "canonical",
        "canonical_low",
        "count",
        "cut_token",
        "dropped",
        "election",
        "fresh",
        "heard_heartbeat",
        "idle",
        "incarnations",
        "log",
        "lost",
        "nonce",
        "nonces",
        "others",
        "probes",
        "repair",
        "resend_after",
        "resend_shift",
        "sent_commit",
        "sent_heartbeat",
        "serving",
        "side",
        "suspect",
        "sync_token",
        "target_op",
        "ticks",
        "timeouts",
        "transfer",
        "trust_op",
    )

    def __init__(
        self,
        identity: Any,
        policy: Any,
        disk: DiskFacts | None,
        nonces: Nonces | None,
        transfer: TransferPort | None,
        op: int,
        checksum: int,
        timestamp: int,
    ) -> None:
        disk = disk or DiskFacts()
        self.count: int = identity.replica_count
        self.others = [replica for replica in range(self.count) if replica != identity.replica]
        self.timeouts = policy.timeouts
        self.dropped: dict[str, int] = {}
        # trust and restart
        self.suspect = judge(self.count, disk) == SUSPECT
        self.lost = disk.lost
        self.fresh = disk.fresh
        # Who lost what it held may have been in later views: it claims none.
        self.born_view = 0 if disk.lost else disk.born_view
        self.nonces = nonces or Nonces(identity.replica)
        self.nonce = self.nonces.draw()
        self.probes = 0
        self.trust_op = -1
        """Head that the primary named in the StartView that echoed our nonce; -1 until one did."""
        self.incarnations = [0] * self.count
        # the log
        self.log = LogWindow(op, checksum, timestamp)
        self.side = SideBuffer()
        self.cut_token = 0
        self.sync_token = 0
        # the view
        self.election = Election()
        self.canonical: dict[int, Any] = {}
        """Headers of the view's log as it was started, from ``canonical_low`` up, until the log holds them all."""
        self.canonical_low = 0
        self.target_op = 0
        """Head of the view's log as it was started."""
        self.acked_op = 0
        self.heard_heartbeat = 0
        self.sent_heartbeat = 0
        self.sent_commit = 0
        self.asked_view = (0, 0)
        self.asked: dict[int, tuple[int, int]] = {}
        """Who waits for a StartView: peer -> (nonce, head when it asked)."""
        # repair and transfer
        self.repair: RepairSession | None = None
        self.serving = Serving()
        self.transfer = transfer or TransferPort()
        # time, in ticks
        self.ticks = 0
        self.idle = 0
        self.resend_after = 0
        self.resend_shift = 0

    def drop(self, reason: str) -> None:
        """A frame was dropped."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1


# --- start ------------------------------------------------------------------------------------------------------------


def replayed(replica: Any, prepare: Any) -> list[Any]:
    """The log on disk holds ``prepare``; commit what it proves to be committed: entries name earlier commit points."""
    log = replica.member.log
    log.found(prepare)
    replica.commit_max = max(replica.commit_max, min(prepare.commit, prepare.op))
    return committed_so_far(replica)


def committed_so_far(replica: Any) -> list[Any]:
    """Commit what the log holds and is known to be committed."""
    log = replica.member.log
    out: list[Any] = []
    while replica.commit_min < replica.commit_max and replica.commit_min + 1 in log.entries:
        prepare = log.entries[replica.commit_min + 1]
        out.append(Committed(prepare, None, replica.commit_entry(prepare)))
    return out


def started(replica: Any, out: list[Any]) -> None:
    """Put a member into service: a group that was never anywhere starts in the view it was born in, any other asks for
    the view.

    A record of the superblock speaks of commits that were applied, so its lower bound holds for the own log.
    """
    m = replica.member
    state = replica.durable_state
    if state is None:
        m.fresh = replica.head_op == 0 and not m.lost
        m.incarnations[replica.identity.replica] = replica.wanted_state.incarnation
        replica.write_state(out)
    else:
        m.fresh = m.fresh and not m.lost and replica.head_op == 0 and state.view == m.born_view
        m.incarnations[replica.identity.replica] = state.incarnation
        _take_record(replica, state, out)
    if not m.fresh:
        restart.probe(replica, out)
    elif state is not None:
        _begin(replica)


def _take_record(replica: Any, state: Any, out: list[Any]) -> None:
    """Go by the superblock that an earlier life left, or the driver wrote just now."""
    m = replica.member
    replica.commit_max = max(replica.commit_max, min(state.commit_max, replica.head_op))
    out += committed_so_far(replica)
    if m.lost and replica.log_view:
        # The log that earned the log view is gone; the promise about the view itself stays.
        replica.log_view = 0
        replica.want_state(out, log_view=0)


def _begin(replica: Any) -> None:
    """Take part in the first view of a new group."""
    m = replica.member
    m.fresh = False
    replica.status = NORMAL
    replica.leads = replica.identity.replica == primary_of(replica.view, m.count)


# --- events -----------------------------------------------------------------------------------------------------------


def stranger(replica: Any, event: Any) -> str:
    """Why a frame is none of this group's, or an empty text."""
    header, peer, identity = event.header, event.peer, replica.identity
    kind = type(header)
    if kind not in HANDLERS:
        return "command"
    if header.cluster != identity.cluster:
        return "foreign cluster"
    if header.group != identity.group:
        return "another group"
    if header.created_revision != identity.created_revision:
        return "another life of the group"
    if not 0 <= peer < identity.replica_count or peer == identity.replica:
        return "no such member"
    if kind is not Prepare and kind is not RepairPrepare and header.replica != peer:
        return "sender is not the member of the link"
    return "fenced" if replica.status == FENCED else ""


def receive(replica: Any, event: Any, out: list[Any]) -> None:
    """A frame of another member."""
    reason = stranger(replica, event)
    if reason:
        replica.member.drop(reason)
        return
    HANDLERS[type(event.header)](replica, event, out)
    pump(replica, out)


def persisted(replica: Any, event: Any, out: list[Any]) -> None:
    """A write of the log is done."""
    m = replica.member
    if replica.status == FENCED:
        return
    m.log.persisted(event.token, event.level == SYNCED)
    if event.level == SYNCED and m.sync_token and event.token >= m.sync_token:
        m.sync_token = 0
    if replica.leads:
        replica.advance_commit(out)
    pump(replica, out)


def truncated(replica: Any, event: Any, out: list[Any]) -> None:
    """A cut of the log is done: the log may grow again."""
    m = replica.member
    if not m.cut_token or event.token != m.cut_token:
        return
    m.cut_token = 0
    m.log.settled(replica.head_op)
    ingest.drain(replica, out)
    pump(replica, out)


def state_persisted(replica: Any, out: list[Any]) -> None:
    """The superblock moved on: what waited for it may leave."""
    m = replica.member
    if m.fresh and replica.status == RECOVERING:
        _begin(replica)
    pump(replica, out)


def fenced(replica: Any, out: list[Any]) -> None:
    """A write failed: this member takes no part any more."""
    normal.give_up(replica, out)


def answered(replica: Any, event: Any, out: list[Any]) -> None:
    """Any other answer of the driver: to a cut, to a read for repair, or to an effect of a transfer."""
    if replica.status == FENCED:
        return
    kind = type(event)
    if kind is Truncated:
        truncated(replica, event, out)
    elif kind is PrepareRead:
        serving.read(replica, event, out)
    else:
        replica.member.transfer.answered(replica, event, out)
        pump(replica, out)


def prepared(replica: Any, token: int, prepare: Any, out: list[Any]) -> None:
    """The primary made an entry: it goes to all others at once."""
    replica.member.log.add(prepare, token)
    replica.member.log.verified_op = prepare.op
    normal.fan_out(replica, prepare, out)


def tick(replica: Any, count: int, out: list[Any]) -> None:
    """``count`` times 10 ms passed, in whatever status."""
    m = replica.member
    m.ticks += count
    m.idle += count
    status = replica.status
    if status == NORMAL:
        normal.tick(replica, out)
    elif status == VIEW_CHANGE:
        view_change.tick(replica, out)
    restart.tick(replica, out)
    repair.tick(replica, out)
    m.transfer.tick(replica, count, out)
    pump(replica, out)


def rest(replica: Any) -> int:
    """How many ticks may pass before the next is told, as long as nothing else is: 1 when anything but heartbeats is
    due. A leader is told when its heartbeat is due; a follower a few times until then, and when the silence is too
    long."""
    m = replica.member
    busy = (
        replica.status != NORMAL
        or replica.log_view != replica.view
        or len(replica.pipeline)
        or m.repair is not None
        or m.asked
        or m.cut_token
        or not m.transfer.idle
        or m.suspect
        or m.lost
        or (replica.leads and m.sent_commit < replica.commit_min)
    )
    if busy:
        return 1
    if replica.leads:
        return max(1, m.timeouts.commit - m.idle)
    return max(1, min(m.timeouts.heartbeat // FOLLOWER_RESTS, m.timeouts.heartbeat - m.idle))


def pump(replica: Any, out: list[Any]) -> None:
    """Whatever changed, do what has become possible by it."""
    if replica.status == VIEW_CHANGE:
        view_change.pump(replica, out)
    elif replica.leads:
        start_view.tell(replica, out)
    elif replica.status == NORMAL:
        start_view.pump(replica, out)
    ingest.commit(replica, out)
    normal.acknowledge(replica, out)
    repair.pump(replica, out)


def installed(replica: Any, op: int, checksum: int, timestamp: int, commit_max: int, out: list[Any]) -> None:
    """A transfer put the state of committed entry ``op`` in place; the log on disk is empty above it.

    The plane and the client table were replaced by then; entries above come by repair.
    """
    m = replica.member
    m.log.reset(op, checksum, timestamp)
    m.side.forget_below(op + 1)
    m.lost = False
    m.repair = None
    replica.head_op, replica.head_checksum, replica.last_timestamp = op, checksum, timestamp
    replica.commit_min = op
    replica.commit_max = max(replica.commit_max, commit_max, op)
    ingest.drain(replica, out)
    pump(replica, out)


def _transfer(replica: Any, event: Any, out: list[Any]) -> None:
    replica.member.transfer.message(replica, event, out)


HANDLERS: Final[dict[type, Callable[[Any, Any, list[Any]], None]]] = {
    Prepare: normal.on_prepare,
    PrepareOkHeader: normal.on_prepare_ok,
    CommitHeader: normal.on_commit,
    StartViewChangeHeader: view_change.on_start_view_change,
    DoViewChangeHeader: view_change.on_do_view_change,
    StartViewHeader: start_view.on_start_view,
    RequestStartViewHeader: restart.on_request_start_view,
    RequestPreparesHeader: serving.on_request_prepares,
    RepairPrepare: repair.on_repair_prepare,
    RepairDoneHeader: repair.on_repair_done,
    RangeEvictedHeader: repair.on_range_evicted,
    RequestStateTransferHeader: _transfer,
    StateTransferTargetHeader: _transfer,
    RequestStateChunkHeader: _transfer,
    StateChunkHeader: _transfer,
}
