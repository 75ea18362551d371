"""What a member may do while a state comes to it, and what it may send while it gives one away (seed 002).

Invariants: the oracle follows sessions by the effects and notes of the replica; of its memory it reads the session, how
far its window has come, and which generation its budget is about; of the disk the snapshot. It changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from shardsrv._core import xxh3
from shardsrv.sim.clock import MILLISECOND
from shardsrv.sim.violation import Violation
from shardsrv.store.group_key import METADATA, GroupKey
from shardsrv.store.snapshot import TRAILER
from shardsrv.vsr import transfer_notes as notes
from shardsrv.vsr.effects import Committed, Send
from shardsrv.vsr.transfer_effects import CheckStaged, Note, Restored, StageChunk
from shardsrv.vsr.transfer_limits import TransferLimits
from shardsrv.vsr.transfer_stage import INSTALLING
from shardsrv.wire.constants import HEADER_SIZE
from shardsrv.wire.replica_headers import PrepareOkHeader, StateChunkHeader, StateTransferTargetHeader

if TYPE_CHECKING:
    from shardsrv.sim.groups import SimGroup
    from shardsrv.sim.node import Node

ROUNDS_MAX: Final = TransferLimits().rounds_max
COOLDOWN: Final = TransferLimits().cooldown_intervals
_INSTALLED: Final = (notes.INSTALLED, notes.INSTALLED_DEGRADED)


@attrs.define(slots=True)
class _Receiver:
    """What is known of one group on one member in one life. ``session`` began in ``view``; its window came as far as
    ``contiguous``. ``stalls`` since it came further, ``defects`` in a row of fetches of one generation that did not
    hold, the last of a spent budget ``gave_up_at``; ``snapshot``: digest of the file when the fetch was checked."""

    life: int
    session: Any = None
    view: int = 0
    contiguous: int = 0
    stalls: int = 0
    defects: int = 0
    generation: int = -1
    gave_up_at: int = 0
    snapshot: int = 0


class Transfers:
    """Sessions of both ends."""

    def __init__(self) -> None:
        self._receivers: dict[tuple[int, GroupKey], _Receiver] = {}
        self._offers: dict[tuple[int, int, GroupKey, int], tuple[int, tuple[int, int]]] = {}
        self._own: dict[int, set[int]] = {}
        """By member the digests of the metadata snapshots that it made itself."""

    # --- receiving ----------------------------------------------------------------------------------------------------

    def stepped(self, node: Node, group: SimGroup, effects: list[Any]) -> None:
        """Look at a step before its effects are carried out."""
        member = group.replica.member
        if member is None:
            return
        receiver = member.transfer.transfer.receiver
        session = receiver._session
        known = self._known(node, group)
        if session is not None:
            if session is known.session:
                self._quiet(node, group, effects)
                if group.replica.view != known.view and session.stage != INSTALLING:
                    raise Violation("transfers", f"{node.name} {group.key} fetches on what it began in another view")
            else:
                known.view = group.replica.view
            if group.replica.leads:
                raise Violation("transfers", f"{node.name} {group.key} leads a view and fetches a state")
            window = session.window
            if window is not None:
                if session is known.session and window.contiguous > known.contiguous:
                    known.stalls = 0
                known.contiguous = window.contiguous
            if any(type(effect) is CheckStaged for effect in effects) and group.key == METADATA:
                known.snapshot = _snapshot_digest(node)
        known.session = session

    def _known(self, node: Node, group: SimGroup) -> _Receiver:
        place = node.index, group.key
        known = self._receivers.get(place)
        if known is None or known.life != node.life:
            known = self._receivers[place] = _Receiver(node.life)
        return known

    def _quiet(self, node: Node, group: SimGroup, effects: list[Any]) -> None:
        """A session goes on: nothing is committed and nothing acknowledged (S2-34, S2-45)."""
        for effect in effects:
            kind = type(effect)
            if kind is Restored:
                return
            if kind is Committed:
                raise Violation("transfers", f"{node.name} {group.key} commits op {effect.prepare.op} in a transfer")
            if kind is Send and type(effect.header) is PrepareOkHeader:
                op = effect.header.op
                raise Violation("transfers", f"{node.name} {group.key} acknowledges op {op} in a transfer")
            if kind is StageChunk and not len(effect.data):
                raise Violation("transfers", f"{node.name} {group.key} takes a chunk without bytes")

    def noted(self, node: Node, group: SimGroup, note: Note) -> None:
        """What a transfer tells."""
        known, name = self._known(node, group), note.name
        if name == notes.CONVERTED:
            self._begun(node, group, note)
        elif name == notes.STALLED:
            known.stalls += 1
            if known.stalls > ROUNDS_MAX:
                raise Violation("transfers", f"{node.name} {group.key} waits for the {known.stalls}th silent interval")
        elif name == notes.DAMAGED:
            self._damaged(node, group, known, "failures" in note.facts)
        elif name == notes.ABANDONED:
            if known.stalls < ROUNDS_MAX and known.defects <= ROUNDS_MAX:
                text = f"{known.stalls} silent intervals and {known.defects} defects in a row"
                raise Violation("transfers", f"{node.name} {group.key} gives up after {text}")
        elif name in _INSTALLED:
            known.stalls = known.defects = 0
        elif name == notes.OFFER_EXPIRED:
            self._offers.pop((node.index, node.life, group.key, note.facts["requester"]), None)
        elif name == notes.READ_FAILED:
            for place in [place for place in self._offers if place[:3] == (node.index, node.life, group.key)]:
                del self._offers[place]

    def _begun(self, node: Node, group: SimGroup, note: Note) -> None:
        """A transfer begins only when a peer no longer has what is missing, or when everything is (S2-43, S2-48)."""
        member, first = group.replica.member, note.facts["first_retained"]
        if not member.lost and first <= member.log.verified_op + 1:
            has = f"holds op {member.log.verified_op}, the peer's log begins at {first}"
            raise Violation("transfers", f"{node.name} {group.key} begins a transfer: {has}")

    def _damaged(self, node: Node, group: SimGroup, known: _Receiver, fetched: bool) -> None:
        """What does not hold is fetched again a bounded number of times (S2-93), and leaves no trace (S2-120)."""
        receiver = group.replica.member.transfer.transfer.receiver
        rest = COOLDOWN * receiver._limits.retry_ticks * node.options.tick - MILLISECOND
        rested = known.gave_up_at and node.world.schedule.now - known.gave_up_at >= rest
        if receiver.failed_generation != known.generation or rested:
            known.generation, known.defects, known.gave_up_at = receiver.failed_generation, 0, 0
        known.defects += fetched
        if known.defects > ROUNDS_MAX:
            known.gave_up_at = node.world.schedule.now
        if known.defects > ROUNDS_MAX + 1:
            raise Violation("transfers", f"{node.name} {group.key} fetches {known.defects} times what does not hold")
        if group.key == METADATA and fetched and known.snapshot:
            found = _snapshot_digest(node)
            if found != known.snapshot and found not in self._own.get(node.index, ()) and not node.world.spoiled(node):
                raise Violation("transfers", f"{node.name} has written a snapshot that it refuses")

    def snapshot(self, node: Node, payload: bytes) -> None:
        """A member is about to write a snapshot of its own."""
        self._own.setdefault(node.index, set()).add(xxh3(payload))

    # --- serving ------------------------------------------------------------------------------------------------------

    def sent(self, node: Node, group: SimGroup, target: int, header: Any) -> None:
        """A frame leaves: one offer for each requester and nonce (S2-69), and no chunk without bytes (S2-75)."""
        if type(header) is StateChunkHeader and header.size == HEADER_SIZE and not node.world.lies.kind(node):
            raise Violation("transfers", f"{node.name} {group.key} sends a chunk without bytes")
        if type(header) is not StateTransferTargetHeader or not header.available:
            return
        place = node.index, node.life, group.key, target
        offer = header.commit_op, header.checksum_body
        nonce, before = self._offers.get(place, (0, offer))
        if nonce == header.nonce and before != offer:
            raise Violation("transfers", f"{node.name} {group.key} offers n{target} another state under one nonce")
        self._offers[place] = header.nonce, offer


def _snapshot_digest(node: Node) -> int:
    """Of the payload as it lies on the disk, past the calls of the member; 0 without a snapshot."""
    path = node.directory.snapshot
    return xxh3(node.disk.read(path)[:-TRAILER]) if node.disk.exists(path) else 0
