"""The serving side of a state transfer: who is offered what, and which bytes go out.

Invariants:

* the first offer to a (requester, nonce) stays the one: a request that comes again gets the same manifest, since a
  table that was read anew may be shorter and the requester's position would then lie at its end;
* an offer is made once a generation and shared, until a member that was sent all of it asks anew; it is registered
  before its descriptor is emitted;
* a chunk without bytes is never sent, and only bytes that go out count as life: they alone reset the idle clock and
  mark an offer as served;
* offers hold memory, files and pins, so every one ends: after 10 retry intervals without a served chunk, 3 once every
  byte was sent, and the shared one as soon as nobody holds it.
"""

from __future__ import annotations

from typing import Any

from shardsrv.vsr import transfer_notes as notes
from shardsrv.vsr.effects import Send
from shardsrv.vsr.frames import body_fields
from shardsrv.vsr.transfer_effects import LoadOffer, Note, ReadChunk, ReleaseOffer
from shardsrv.vsr.transfer_events import ChunkRead, OfferLoaded
from shardsrv.vsr.transfer_faults import NoCoordinator, NotCaughtUpPrimary, SnapshotUnreadable, TransferUnavailable
from shardsrv.vsr.transfer_host import TransferHost
from shardsrv.vsr.transfer_limits import TransferLimits
from shardsrv.vsr.transfer_offer import Offer, Served
from shardsrv.wire.replica_headers import (
    RequestStateChunkHeader,
    RequestStateTransferHeader,
    StateChunkHeader,
    StateTransferTargetHeader,
)


class TransferServer:
    """Serves the transfers of one group. See the module."""

    __slots__ = (
        "_cache",
        "_cache_key",
        "_host",
        "_limits",
        "_load_key",
        "_load_token",
        "_reads",
        "_served",
        "_token",
        "_waiting",
    )

    def __init__(self, host: TransferHost, limits: TransferLimits) -> None:
        self._host = host
        self._limits = limits
        self._served: dict[int, Served] = {}  # by requester
        self._waiting: dict[int, int] = {}  # requester -> nonce, while an offer is loaded
        self._reads: dict[int, tuple[Served, int, int, int]] = {}  # token -> whose, index, offset, length
        self._cache: Offer | None = None
        self._cache_key: int | None = None
        self._load_token = 0
        self._load_key: int | None = None
        self._token = 0

    @property
    def offers(self) -> int:
        """Requesters that hold an offer."""
        return len(self._served)

    @property
    def idle(self) -> bool:
        """Whether nothing is held and nothing is under way."""
        return not self._served and not self._waiting and self._cache is None and not self._load_token

    # --- descriptors --------------------------------------------------------------------------------------------------

    def request(self, header: RequestStateTransferHeader, out: list[Any]) -> None:
        """A member asks for a descriptor."""
        requester, nonce = header.replica, header.nonce
        identity = self._host.identity
        if requester >= identity.replica_count or requester == identity.replica:
            return
        served = self._served.get(requester)
        if served is not None and served.nonce == nonce:
            served.idle_ticks = 0
            out.append(Note(notes.SERVED_AGAIN, "debug", {"requester": requester}))
            self._describe(requester, nonce, served.offer, out)
            return
        if self._waiting.get(requester) == nonce:
            return
        refusal = self._refusal()
        if refusal is not None:
            self._refuse(requester, nonce, refusal, out)
            return
        if served is not None and served.offer is self._cache and served.sent.complete:
            # It had every byte and asks again: what it got did not hold. Others keep what they have begun to fetch.
            self._cache = None
        self._forget(requester, out)
        self._waiting[requester] = nonce
        if self._cache is not None and self._cache_key == self._host.offer_generation:
            self._grant(self._cache, out)
        elif not self._load_token:
            self._load(out)

    def _refusal(self) -> TransferUnavailable | None:
        if self._host.offer_generation is None:
            return NoCoordinator()
        return None if self._host.caught_up_primary else NotCaughtUpPrimary()

    def _load(self, out: list[Any]) -> None:
        """Capture what is live and have the rest loaded; commit op and captured part are of this one step."""
        self._token += 1
        self._load_token = self._token
        self._load_key = self._host.offer_generation
        out.append(LoadOffer(self._token, self._host.commit_min, self._host.capture_for_transfer()))

    def loaded(self, event: OfferLoaded, out: list[Any]) -> None:
        """The offer is there, or there is none."""
        if event.token != self._load_token or not event.token:
            if event.offer is not None:
                out.append(ReleaseOffer(event.offer))
            return
        self._load_token = 0
        if event.fault is not None:
            waiting, self._waiting = self._waiting, {}
            for requester, nonce in waiting.items():
                self._refuse(requester, nonce, event.fault, out)
            return
        before, self._cache, self._cache_key = self._cache, event.offer, self._load_key
        self._grant(event.offer, out)
        self._release_unused(before, out)

    def _grant(self, offer: Offer, out: list[Any]) -> None:
        """Register the offer for all who wait, then describe it."""
        waiting, self._waiting = self._waiting, {}
        for requester, nonce in waiting.items():
            self._served[requester] = Served(requester, nonce, offer)
            facts = {
                "requester": requester,
                "commit_op": offer.commit_op,
                "generation": offer.generation,
                "artifacts": len(offer.artifacts),
                "bytes": offer.total_length,
            }
            out.append(Note(notes.SERVING, "info", facts))
            self._describe(requester, nonce, offer, out)

    def _describe(self, requester: int, nonce: int, offer: Offer, out: list[Any]) -> None:
        body = offer.manifest()
        fields = self._frame(nonce) | body_fields(body)
        header = StateTransferTargetHeader(
            **fields, available=1, commit_op=offer.commit_op, commit_max=max(self._host.commit_max, offer.commit_op)
        )
        out.append(Send(requester, header, body))

    def _refuse(self, requester: int, nonce: int, reason: Exception, out: list[Any]) -> None:
        """Answer rather than stay silent: silence would cost the requester a stall round."""
        passing = isinstance(reason, TransferUnavailable) and reason.passing
        routine = isinstance(reason, TransferUnavailable) and not isinstance(reason, SnapshotUnreadable)
        facts = {"requester": requester, "reason": str(reason), "kind": type(reason).__name__}
        out.append(Note(notes.REFUSED, "info" if routine else "error", facts))
        self._unavailable(requester, nonce, passing, out)

    def _unavailable(self, requester: int, nonce: int, passing: bool, out: list[Any]) -> None:
        header = StateTransferTargetHeader(
            **self._frame(nonce), available=0, unavailable_transient=int(passing), commit_max=self._host.commit_max
        )
        out.append(Send(requester, header, b""))

    def _frame(self, nonce: int) -> dict[str, Any]:
        identity = self._host.identity
        return {
            "cluster": identity.cluster,
            "view": self._host.view,
            "replica": identity.replica,
            "group": identity.group,
            "created_revision": identity.created_revision,
            "nonce": nonce,
        }

    # --- chunks -------------------------------------------------------------------------------------------------------

    def chunk_request(self, header: RequestStateChunkHeader, out: list[Any]) -> None:
        """A member asks for bytes of an artifact. The numbers are a peer's: each is bounded before it is added."""
        requester = header.replica
        served = self._served.get(requester)
        if served is None or served.nonce != header.nonce:
            if requester < self._host.identity.replica_count and requester != self._host.identity.replica:
                out.append(Note(notes.UNKNOWN_OFFER, "debug", {"requester": requester}))
                self._unavailable(requester, header.nonce, True, out)
            return
        artifacts = served.offer.artifacts
        index, offset = header.artifact, header.offset
        if index >= len(artifacts) or offset >= artifacts[index][0].length:
            # Nothing is left to send there. An empty answer would be asked for again, by both ends taken for life.
            facts = {"requester": requester, "artifact": index, "offset": offset}
            out.append(Note(notes.OUT_OF_BOUNDS, "debug", facts))
            return
        if served.reads >= self._limits.reads_max:
            return
        length = min(header.length, self._limits.chunk_max, artifacts[index][0].length - offset)
        served.reads += 1
        self._token += 1
        self._reads[self._token] = (served, index, offset, length)
        out.append(ReadChunk(self._token, served.offer, index, offset, length))

    def chunk_read(self, event: ChunkRead, out: list[Any]) -> None:
        """Bytes to send."""
        read = self._reads.pop(event.token, None)
        if read is None:
            return
        served, index, offset, length = read
        served.reads -= 1
        requester = served.requester
        if self._served.get(requester) is not served:
            self._release_unused(served.offer, out)
            return
        if event.fault is not None or len(event.data) != length:
            self._unreadable(served, index, offset, event.fault, out)
            return
        served.idle_ticks = 0
        served.sent.add(index, offset, offset + length)
        fields = self._frame(served.nonce) | body_fields(event.data)
        out.append(Send(requester, StateChunkHeader(**fields, artifact=index, offset=offset), event.data))

    def _unreadable(self, served: Served, index: int, offset: int, fault: Exception | None, out: list[Any]) -> None:
        """What was offered cannot be read any more: the offer is void for everyone."""
        facts = {"artifact": index, "offset": offset, "reason": str(fault)}
        out.append(Note(notes.READ_FAILED, "error", facts))
        if self._cache is served.offer:
            self._cache = None
        for other in [other for other in self._served.values() if other.offer is served.offer]:
            del self._served[other.requester]
            self._unavailable(other.requester, other.nonce, True, out)
        self._release_unused(served.offer, out)

    # --- expiry -------------------------------------------------------------------------------------------------------

    def tick(self, out: list[Any]) -> None:
        """One tick passed: offers age."""
        if not self._served and self._cache is None:
            return
        limits = self._limits
        for served in list(self._served.values()):
            served.idle_ticks += 1
            intervals = limits.served_intervals if served.sent.complete else limits.idle_intervals
            if served.idle_ticks >= intervals * limits.retry_ticks:
                facts = {"requester": served.requester, "served": served.sent.complete}
                out.append(Note(notes.OFFER_EXPIRED, "debug", facts))
                self._forget(served.requester, out)
        if not self._served and not self._waiting and self._cache is not None:
            offer, self._cache = self._cache, None
            self._release_unused(offer, out)

    def _forget(self, requester: int, out: list[Any]) -> None:
        """The requester's offer and its place in the queue go."""
        self._waiting.pop(requester, None)
        served = self._served.pop(requester, None)
        if served is not None:
            self._release_unused(served.offer, out)

    def _release_unused(self, offer: Offer | None, out: list[Any]) -> None:
        """Let go of an offer that neither the cache, nor a requester, nor a running read refers to."""
        if offer is None or offer is self._cache:
            return
        if any(served.offer is offer for served in self._served.values()):
            return
        if any(read[0].offer is offer for read in self._reads.values()):
            return
        out.append(ReleaseOffer(offer))
