"""Members that lie in state transfers, as one of another build might: frames that are whole and sealed, and untrue.

What a liar offers or asks must be refused by the others and change nothing with them. Invariants: a lie is told only
while `kind` says so; a liar lies in transfers alone; what it holds itself is true.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs
import msgpack

from shardsrv.shards.transfer_driver import Source
from shardsrv.vsr.effects import Send
from shardsrv.vsr.frames import body_fields
from shardsrv.vsr.transfer_effects import LoadOffer
from shardsrv.vsr.transfer_events import OfferLoaded
from shardsrv.vsr.transfer_offer import Offer
from shardsrv.wire.manifest import Artifact, ArtifactKind
from shardsrv.wire.replica_headers import RequestStateChunkHeader, StateChunkHeader
from shardsrv.wire.sealed_body import artifact_checksum

if TYPE_CHECKING:
    from shardsrv.sim.node import Node
    from shardsrv.sim.world import World

SILENT: Final = "chunks are not sent"
SLOW: Final = "few chunks are sent"
EMPTY: Final = "chunks are empty"
BEYOND: Final = "what is behind the end is asked for"
SHORT: Final = "a state lacks its end"
TWICE: Final = "a client stands twice"
OLD: Final = "a client table is older than its state"
KINDS: Final = (SILENT, SLOW, EMPTY, BEYOND, SHORT, TWICE, OLD)
SENT: Final = 0.2
"""Share of chunks that are sent by who sends few."""
_SECTION: Final = 7
"""Of the client table in a metadata snapshot."""


class Lies:
    """Who lies, and how. ``tell`` begins a lie, `end` all of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._told: dict[int, tuple[str, int]] = {}
        self._random = world.chance.stream("lies")
        self._tables: dict[int, tuple[Artifact, Source]] = {}
        """The first client table that each member has offered in this run."""

    def tell(self, node: Node, kind: str, until: int) -> None:
        """``node`` lies from now on."""
        self._told[node.index] = kind, until
        self._world.trace.line(node.name, "lies", kind)

    def end(self) -> None:
        """Everybody tells the truth again."""
        self._told.clear()

    def kind(self, node: Node) -> str:
        """What ``node`` lies about now; empty for nothing."""
        kind, until = self._told.get(node.index, ("", 0))
        return kind if self._world.schedule.now < until else ""

    def sends(self, node: Node, group: Any, effect: Send) -> list[Send]:
        """What a member sends in place of a frame."""
        kind, header = self.kind(node), effect.header
        if kind in (SILENT, SLOW) and type(header) is StateChunkHeader:
            self._world.reached(f"lie: {kind}")
            return [effect] if kind == SLOW and self._random.random() < SENT else []
        if kind == EMPTY and type(header) is StateChunkHeader:
            self._world.reached(f"lie: {kind}")
            return [Send(effect.replica, attrs.evolve(header, **body_fields(b"")), b"")]
        if kind == BEYOND and type(header) is RequestStateChunkHeader:
            self._world.reached(f"lie: {kind}")
            target = group.replica.member.transfer.transfer.receiver._session.target
            end = target.artifacts[header.artifact].length
            return [effect, Send(effect.replica, attrs.evolve(header, offset=end), b"")]
        return [effect]

    def loaded(self, node: Node, group: Any, effect: Any, event: Any) -> Any:
        """What a member has loaded to offer it."""
        kind = self.kind(node)
        if type(effect) is not LoadOffer or event.offer is None:
            return event
        for artifact, source in event.offer.artifacts:
            if artifact.kind == ArtifactKind.CLIENT_TABLE and node.index not in self._tables:
                self._tables[node.index] = artifact, source
        if kind not in (SHORT, TWICE, OLD):
            return event
        pairs = tuple(self._pair(node, kind, pair) for pair in event.offer.artifacts)
        if all(new is old for new, old in zip(pairs, event.offer.artifacts, strict=True)):
            return event
        self._world.reached(f"lie: {kind}")
        offer = Offer(event.offer.generation, event.offer.commit_op, pairs)
        held = group.transfer._offers
        held[held.index(event.offer)] = offer
        return OfferLoaded(event.token, offer)

    def _pair(self, node: Node, kind: str, pair: tuple[Artifact, Source]) -> tuple[Artifact, Source]:
        """An artifact of an offer and its bytes, or what a liar makes of them."""
        artifact, source = pair
        if kind == OLD:
            return self._tables[node.index] if artifact.kind == ArtifactKind.CLIENT_TABLE else pair
        states = (ArtifactKind.METADATA_SNAPSHOT, ArtifactKind.PARTITION_CHECKPOINT)
        payload = bytes(source.read(0, artifact.length)) if artifact.kind in states else b""
        if kind == SHORT and payload:
            payload = payload[:-1]
        elif kind == TWICE and artifact.kind == ArtifactKind.METADATA_SNAPSHOT:
            payload = _with_a_client_twice(payload)
        else:
            return pair
        changed = attrs.evolve(artifact, length=len(payload), checksum=artifact_checksum(payload))
        return changed, Source(node.disk, payload)


def _with_a_client_twice(payload: bytes) -> bytes:
    """A metadata snapshot whose table holds its last client once more, in the next slot."""
    sections = msgpack.unpackb(payload, raw=False, strict_map_key=True)
    rows = sections[_SECTION]
    if rows:
        rows.append([rows[-1][0] + 1, *rows[-1][1:]])
    return bytes(msgpack.packb(sections, use_bin_type=True))
