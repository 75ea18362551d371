"""The receiving side of a state transfer: one session, its stage, and the budgets that outlive it.

Invariants:

* stage and session are one value (no session is stage Idle), every step goes along an edge of `transfer_stage`, and
  `transferring` is the one guard: while it is true the member acknowledges nothing and walks no commit;
* every session is made by `arm`, with a nonce that was never used; a frame counts only for the nonce and peer of the
  session, a chunk only after a descriptor, a second descriptor never;
* the budgets live here and not in the session, or arming anew would reset them: rounds without progress are counted in
  a row and reset by contiguous bytes or a finished install; fetches that do not decode are counted a generation and
  reset by another generation, an install, or a long rest. Both end in repair, which may arm a transfer elsewhere;
* a peer that has just ended a session is not armed again within one retry interval, so that repair and transfer do not
  chase each other at the speed of the link;
* nothing is changed by an install before all of it was checked; see `transfer_install` for the order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardsrv.errors import DecodeError
from shardsrv.vsr import transfer_notes as notes
from shardsrv.vsr.policy import METADATA
from shardsrv.vsr.transfer_effects import (
    CheckStaged,
    CloseStaging,
    InstallSnapshot,
    Note,
    OpenStaging,
    RebaseLog,
    Restored,
    StageChunk,
)
from shardsrv.vsr.transfer_events import ChunkStaged, Installed, LogRebased, StagedChecked, StagingOpened
from shardsrv.vsr.transfer_faults import TransferRefused
from shardsrv.vsr.transfer_host import TransferHost
from shardsrv.vsr.transfer_install import INSTALL, check_content, examine, plan_install
from shardsrv.vsr.transfer_limits import TransferLimits
from shardsrv.vsr.transfer_session import ANY_PEER, Session, ask_chunks, ask_target
from shardsrv.vsr.transfer_stage import AWAITING_TARGET, FETCHING, IDLE, INSTALLING, STAGE_NAMES, is_edge
from shardsrv.vsr.transfer_window import PullWindow
from shardsrv.wire.manifest import decode_manifest
from shardsrv.wire.replica_headers import StateChunkHeader, StateTransferTargetHeader


class TransferReceiver:
    """Fetches the state of one group. ``draw`` gives nonces (u128, never 0)."""

    __slots__ = (
        "_draw",
        "_host",
        "_limits",
        "_pair_durable",
        "_pair_op",
        "_rest",
        "_session",
        "_ticks",
        "_token",
        "decode_failures",
        "failed_at",
        "failed_generation",
        "stall_rounds",
    )

    def __init__(self, host: TransferHost, limits: TransferLimits, draw: Callable[[], int]) -> None:
        self._host = host
        self._limits = limits
        self._draw = draw
        self._session: Session | None = None
        self._token = 0
        self._ticks = 0
        self._rest: tuple[int, int] = (ANY_PEER, 0)  # peer that is left alone, until which tick
        self._pair_op = 0
        self._pair_durable = False
        self.stall_rounds = 0
        self.decode_failures = 0
        self.failed_generation = 0
        self.failed_at = 0

    # --- what the replica asks ----------------------------------------------------------------------------------------

    @property
    def transferring(self) -> bool:
        """Whether a transfer is under way, in whatever stage."""
        return self._session is not None

    @property
    def awaited_pair(self) -> int:
        """Op of the pair that an install waits for; 0 for none."""
        return self._pair_op

    @property
    def stage(self) -> int:
        """Of `transfer_stage`."""
        return IDLE if self._session is None else self._session.stage

    @property
    def peer(self) -> int:
        """Whom the session asks; -1 without one."""
        return ANY_PEER if self._session is None else self._session.peer

    # --- the beginning and the end of sessions ------------------------------------------------------------------------

    def range_evicted(self, peer: int, first_retained: int, out: list[Any]) -> bool:
        """``peer`` says that repair cannot close the gap. From Idle a transfer begins; in any other stage it is
        noted."""
        facts = {
            "peer": peer,
            "first_retained": first_retained,
            "local_commit": self._host.commit_min,
            "attempts": self.stall_rounds,
        }
        if self._session is not None:
            out.append(Note(notes.EVICTED_NOTED, "debug", facts | {"stage": STAGE_NAMES[self.stage]}))
            return False
        if not self.arm(peer, out):
            return False
        out.append(Note(notes.CONVERTED, "info", facts))
        return True

    def arm(self, peer: int, out: list[Any]) -> bool:
        """Begin a session with ``peer`` and ask for its descriptor: the one place where sessions are made. False when
        the stage forbids it, the peer is this member, or it is to be left alone for now."""
        identity = self._host.identity
        if not 0 <= peer < identity.replica_count or peer == identity.replica:
            return False
        if not (self.stage == AWAITING_TARGET or is_edge(self.stage, AWAITING_TARGET)):
            return False
        resting, until = self._rest
        if self._session is None and peer == resting and self._ticks < until:
            return False
        if self._session is not None and self._session.target is not None:
            out.append(CloseStaging(keep=True))
        self._session = Session(peer, self._draw())
        out.append(Note(notes.ARMED, "info", {"peer": peer, "attempts": self.stall_rounds}))
        ask_target(self._host, self._session, out)
        return True

    def abandon(self, out: list[Any]) -> bool:
        """An election takes over: a waiting or fetching session ends. False while installing, or when Idle."""
        session = self._session
        if session is None or session.stage == INSTALLING:
            return False
        facts = {"stage": STAGE_NAMES[session.stage], "peer": session.peer}
        self._end(out, keep=True)
        out.append(Note(notes.ORPHAN_DROPPED, "info", facts))
        return True

    def _end(self, out: list[Any], keep: bool) -> None:
        """The stage is Idle. Nothing is left of the session."""
        session = self._session
        assert session is not None and is_edge(session.stage, IDLE)
        if session.target is not None:
            out.append(CloseStaging(keep))
        self._host.snapshots.leave(INSTALL)
        self._session = None
        self._pair_op = 0

    def _fall_back(self, out: list[Any], rest: bool, keep: bool = True) -> None:
        """The session ends without an install: walk what can be walked, and repair."""
        session = self._session
        assert session is not None
        peer = session.peer
        self._end(out, keep)
        if rest:
            self._rest = (peer, self._ticks + self._limits.retry_ticks)
        self._host.transfer_ended(peer, out)

    # --- frames -------------------------------------------------------------------------------------------------------

    def _session_of(self, header: Any) -> Session | None:
        """The session that a frame is for: its nonce and its peer, and not those of an earlier one."""
        session = self._session
        if session is None:
            return None
        return session if header.nonce == session.nonce and header.replica == session.peer else None

    def target(self, header: StateTransferTargetHeader, body: Any, out: list[Any]) -> None:
        """A descriptor came."""
        session = self._session_of(header)
        if session is None or session.stage not in (AWAITING_TARGET, FETCHING):
            return
        if not header.available:
            facts = {"peer": session.peer, "stage": STAGE_NAMES[session.stage]}
            out.append(Note(notes.UNAVAILABLE, "info", facts))
            # A server that lost the offer in the middle can make another at once; one that has none cannot.
            self._fall_back(out, rest=session.stage == AWAITING_TARGET)
            return
        if session.stage != AWAITING_TARGET:
            return
        try:
            artifacts = decode_manifest(body)
        except DecodeError as error:
            # Not progress: the round goes on until it stalls, and stalls are bounded.
            out.append(Note(notes.DAMAGED, "warning", {"peer": session.peer, "reason": str(error)}))
            return
        session.stage = FETCHING
        session.idle_ticks = 0
        try:
            plane = self._host.policy.plane
            session.target = examine(plane, artifacts, header.commit_op, header.commit_max, self._limits)
        except TransferRefused as refusal:
            self._damaged(refusal, self._budget_key(artifacts[0].frontier if artifacts else 0), out)
            return
        if self._given_up(self._budget_key(session.target.generation)):
            session.target = None
            self._give_up(session, self.decode_failures, out)
            return
        session.token = self._next_token()
        out.append(OpenStaging(session.token, session.target.artifacts))

    def _budget_key(self, generation: int) -> int:
        """What fetches that do not decode are counted by: the snapshot's generation. A partition's offer is of another
        op each time, so all of them count as one."""
        return generation if self._host.policy.plane == METADATA else 0

    def _given_up(self, key: int) -> bool:
        """Whether ``key`` is not to be fetched now. Another one begins with a fresh budget, and so does the same one
        after a rest: what could not be decoded may have been healed."""
        rested = self._ticks >= self.failed_at + self._limits.cooldown_intervals * self._limits.retry_ticks
        exhausted = self.decode_failures > self._limits.rounds_max
        if key != self.failed_generation or (exhausted and rested):
            self.failed_generation = key
            self.decode_failures = 0
            return False
        return exhausted

    def chunk(self, header: StateChunkHeader, body: Any, out: list[Any]) -> None:
        """Bytes of an artifact came. What answers no open request leaves no trace."""
        session = self._session_of(header)
        if session is None or session.stage != FETCHING or session.window is None:
            return
        window = session.window
        before = window.contiguous
        rest = window.accept(header.artifact, header.offset, len(body))
        if rest is None:
            return
        token = self._next_token()
        session.staging[token] = len(body)
        out.append(StageChunk(token, header.artifact, header.offset, body))
        if window.contiguous > before:
            session.idle_ticks = 0
            self.stall_rounds = 0
        ask_chunks(self._host, session, rest + window.ask(len(session.staging)), out)

    # --- answers of the driver ----------------------------------------------------------------------------------------

    def _next_token(self) -> int:
        self._token += 1
        return self._token

    def staging_opened(self, event: StagingOpened, out: list[Any]) -> None:
        """The staging is open: fetch what is not there from an earlier session."""
        session = self._answered(event)
        if session is None or session.target is None:
            return
        if event.fault is not None:
            self._own_fault(event.fault, out)
            return
        lengths = [artifact.length for artifact in session.target.artifacts]
        session.window = PullWindow(lengths, event.held, self._limits.chunk_max, self._limits.window_chunks)
        self._go_on(session, out)

    def chunk_staged(self, event: ChunkStaged, out: list[Any]) -> None:
        """A chunk is in its file: room for the next."""
        session = self._session
        if session is None or event.token not in session.staging:
            return
        del session.staging[event.token]
        if event.fault is not None:
            self._own_fault(event.fault, out)
        else:
            self._go_on(session, out)

    def _go_on(self, session: Session, out: list[Any]) -> None:
        """Ask for more, or have it checked when nothing is missing (an offer of empty artifacts at once)."""
        window, target = session.window, session.target
        assert window is not None and target is not None
        ask_chunks(self._host, session, window.ask(len(session.staging)), out)
        if window.complete and not session.staging and not session.token:
            session.token = self._next_token()
            out.append(CheckStaged(session.token, target.artifacts, self._host.clients_max))

    def staged_checked(self, event: StagedChecked, out: list[Any]) -> None:
        """Everything was verified and decoded, or something does not hold."""
        session = self._answered(event)
        if session is None or session.target is None:
            return
        if event.fault is not None:
            if event.own:
                self._own_fault(event.fault, out)
            else:
                self._damaged(event.fault, self._budget_key(session.target.generation), out)
            return
        try:
            check_content(session.target, event.content, self._host.purge_generation)
        except TransferRefused as refusal:
            self._damaged(refusal, self._budget_key(session.target.generation), out)
            return
        session.content = event.content
        self._begin_install(session, out)

    def _answered(self, event: Any) -> Session | None:
        """The session that waits for the answer ``event``."""
        session = self._session
        if session is None or not event.token or event.token != session.token:
            return None
        session.token = 0
        return session

    def _own_fault(self, fault: Exception, out: list[Any]) -> None:
        """This member's disk: another fetch would not help."""
        out.append(Note(notes.STAGING_FAILED, "error", {"reason": str(fault)}))
        self._fall_back(out, rest=True, keep=False)

    def _damaged(self, reason: Exception, key: int, out: list[Any]) -> None:
        """What came does not hold. Usually it was damaged on its way and another fetch helps; one that never helps is
        bounded a generation, since frames flow and nothing ever stalls."""
        session = self._session
        assert session is not None and is_edge(session.stage, AWAITING_TARGET)
        if key != self.failed_generation:
            self.failed_generation = key
            self.decode_failures = 0
        self.decode_failures += 1
        facts = {"peer": session.peer, "reason": str(reason), "failures": self.decode_failures}
        facts["capacity"] = self._host.clients_max
        out.append(Note(notes.DAMAGED, "warning", facts))
        if self.decode_failures > self._limits.rounds_max:
            self.failed_at = self._ticks
            self._give_up(session, self.decode_failures, out)
            return
        if session.target is not None:
            out.append(CloseStaging(keep=False))
            session.target = None
        self.arm(session.peer, out)

    def _give_up(self, session: Session, attempts: int, out: list[Any]) -> None:
        out.append(Note(notes.ABANDONED, "warning", {"peer": session.peer, "attempts": attempts}))
        self._fall_back(out, rest=True)

    # --- installing ---------------------------------------------------------------------------------------------------

    def _begin_install(self, session: Session, out: list[Any]) -> None:
        """Decide, in the step that starts the writes, whether the snapshot is ahead. While a checkpoint writes, or a
        cut is under way, the next tick tries again."""
        content = session.content
        assert content is not None and session.stage == FETCHING
        if not self._host.may_install(content.op, content.checksum, out):
            return
        if not self._host.snapshots.take(INSTALL):
            return
        session.stage = INSTALLING
        applied = self._host.commit_min
        session.plan = plan_install(applied, self._host.holds(content.op, content.checksum), content)
        if not session.plan.restores:
            self._finish(session, 0, out)
            return
        session.token = self._next_token()
        out.append(InstallSnapshot(session.token, content))

    def installed(self, event: Installed, out: list[Any]) -> None:
        """The state is durable: record its pair. A failure has changed nothing."""
        session = self._answered(event)
        if session is None or session.content is None:
            return
        if event.fault is not None:
            out.append(Note(notes.INSTALL_FAILED, "error", {"reason": str(event.fault)}))
            self._fall_back(out, rest=True, keep=False)
            return
        self._pair_op = session.content.op
        self._pair_durable = False
        self._host.record_transferred(session.content.op, event.checksum, out)

    def pair_recorded(self, checkpoint_op: int, out: list[Any]) -> None:
        """A superblock record with this checkpoint op is durable."""
        if self._pair_op and checkpoint_op >= self._pair_op:
            out.append(Note(notes.PAIR_RECORDED, "info", {"checkpoint_op": checkpoint_op}))
            self._pair_done(True, out)

    def pair_failed(self, out: list[Any]) -> None:
        """A superblock write failed. Nothing is taken back: the replica remembers the pair and the next record has
        it."""
        if self._pair_op:
            self._pair_done(False, out)

    def _pair_done(self, durable: bool, out: list[Any]) -> None:
        session = self._session
        assert session is not None and session.content is not None
        self._pair_op = 0
        self._pair_durable = durable
        session.token = self._next_token()
        out.append(RebaseLog(session.token, session.content))

    def log_rebased(self, event: LogRebased, out: list[Any]) -> None:
        """The log goes on behind the installed state."""
        session = self._answered(event)
        if session is None:
            return
        if event.fault is not None:
            self._end(out, keep=False)
            self._host.transfer_broke(event.fault, out)
            return
        self._finish(session, event.first_op, out)

    def _finish(self, session: Session, first_op: int, out: list[Any]) -> None:
        """Change memory, then go back to ordinary life: walk, and repair the tail from the same peer."""
        content, plan, target, peer = session.content, session.plan, session.target, session.peer
        assert content is not None and plan is not None and target is not None
        durable = self._pair_durable or not plan.restores
        self._host.take_transferred(content, plan, target.commit_op, first_op, out)
        if plan.restores:
            out.append(Restored(content.op, content.checksum))
        self._end(out, keep=False)
        self.stall_rounds = 0
        self.decode_failures = 0
        self.failed_generation = 0
        facts = {
            "applied_frontier": plan.applied_frontier,
            "commit_op": target.commit_op,
            "table_frontier": content.table_frontier,
            "restored": plan.restores,
        }
        if not plan.restores:
            # It was of no use to what sent this member here: do not come back at once.
            self._rest = (peer, self._ticks + self._limits.retry_ticks)
        if durable:
            out.append(Note(notes.INSTALLED, "info", facts))
        else:
            out.append(Note(notes.INSTALLED_DEGRADED, "warning", facts))
        self._host.transfer_ended(peer, out)

    # --- time ---------------------------------------------------------------------------------------------------------

    def tick(self, out: list[Any], count: int = 1) -> None:
        """One tick passed, or ``count`` without a session: what is missing is asked for again after a silent interval,
        a bounded number of times."""
        self._ticks += count
        session = self._session
        if session is None:
            return
        if session.content is not None and session.stage == FETCHING:
            self._begin_install(session, out)
            return
        waits = session.stage == AWAITING_TARGET or (session.window is not None and session.window.waits)
        if session.stage == INSTALLING or not waits:
            return
        session.idle_ticks += 1
        if session.idle_ticks < self._limits.retry_ticks:
            return
        session.idle_ticks = 0
        self.stall_rounds += 1
        facts = {"peer": session.peer, "attempts": self.stall_rounds, "stage": STAGE_NAMES[session.stage]}
        if self.stall_rounds > self._limits.rounds_max:
            # The retry picks no other peer; repair does, and may arm a transfer there.
            self._give_up(session, self.stall_rounds, out)
            return
        out.append(Note(notes.STALLED, "info", facts))
        if session.window is None:
            ask_target(self._host, session, out)
        else:
            ask_chunks(self._host, session, session.window.open_pieces(), out)
