"""What carries out the effects of a state transfer on a disk: offers, chunks, staging, checks and installs.

One driver a group. `start` does at once what must see the group between two steps (which segments the log has, what is
staged) and returns a job for the rest; the job touches files of its own only, so a shard may run it in a thread, and
the simulator at a later moment. What the job returns is the event for `Replica.step`.

Invariants: nothing unverified is offered: a snapshot passes its trailer and its decoder, a segment its seals and its
chain; what is sent is the payload without a trailer; what was fetched is verified and decoded before anything is
written over; what is written is what was fetched. Files below ``incoming/`` are of no meaning but for a swap that was
committed (`store.incoming`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardsrv.errors import DiskFault, OurFault, ShardsrvError
from shardsrv.shards.staging import Staging
from shardsrv.store.disk import READ, Disk, disk_fault, read_exact
from shardsrv.vsr.transfer_effects import (
    CheckStaged,
    CloseStaging,
    InstallSnapshot,
    LoadOffer,
    Note,
    OpenStaging,
    ReadChunk,
    RebaseLog,
    ReleaseOffer,
    Restored,
    StageChunk,
)
from shardsrv.vsr.transfer_events import (
    ChunkRead,
    ChunkStaged,
    Installed,
    LogRebased,
    OfferLoaded,
    StagedChecked,
    StagingOpened,
)
from shardsrv.vsr.transfer_faults import TransferUnavailable
from shardsrv.vsr.transfer_install import Checked
from shardsrv.vsr.transfer_offer import Offer
from shardsrv.wire.manifest import Artifact

Job = Callable[[], Any]


class Source:
    """Where the bytes of an offered artifact are: in memory, or in an open file. A file that loses its name stays
    readable while it is open, which is how an offer pins what it offers."""

    __slots__ = ("_data", "_disk", "_handle", "path")

    def __init__(self, disk: Disk, data: bytes | None = None, path: str = "", handle: int = -1) -> None:
        self._disk = disk
        self._data = data
        self._handle = handle
        self.path = path

    def read(self, offset: int, length: int) -> Any:
        """The bytes; fewer when the file has become shorter. Raises `DiskFault`."""
        if self._data is not None:
            return memoryview(self._data)[offset : offset + length]
        buffer = bytearray(length)
        try:
            count = read_exact(self._disk, self._handle, memoryview(buffer), offset)
        except OSError as error:
            raise disk_fault(error, self.path, READ) from error
        return memoryview(buffer)[:count]

    def close(self) -> None:
        """Let go of the file."""
        if self._handle >= 0:
            self._disk.close(self._handle)
            self._handle = -1


Pair = tuple[Artifact, Source]


class TransferDriver:
    """The part that is the same for both planes; ``directory`` is that of the group's state files.

    A subclass says what an offer is made of (`load`), what staged artifacts are (`check`), how they become the state to
    recover from (`install`), and how the log follows (`rebase`).
    """

    def __init__(self, disk: Disk, directory: str, note: Callable[[Note], None] | None = None) -> None:
        self.disk = disk
        self.staging = Staging(disk, directory)
        self.directory = directory
        self._note = note
        self._offers: list[Offer] = []

    def start(self, effect: Any) -> Job | None:
        """Begin ``effect``. The job returns its event; None when there is nothing to answer. Raises for no fault of the
        disk: that is the event's."""
        kind = type(effect)
        if kind is Note:
            if self._note is not None:
                self._note(effect)
            return None
        if kind is Restored:
            return None
        if kind is ReleaseOffer:
            self._release(effect.offer)
            return None
        if kind is CloseStaging:
            self.staging.close(effect.keep)
            return None
        starter = _STARTERS.get(kind)
        if starter is None:
            raise OurFault(f"{kind.__name__} is no effect of a transfer")
        return starter(self, effect)

    # --- serving ------------------------------------------------------------------------------------------------------

    def load(self, commit_op: int, captured: Any) -> Callable[[], Offer]:
        """Begin an offer: capture what changes, and return what makes the rest. May raise what the result may:
        `TransferUnavailable`, `DiskFault`."""
        raise NotImplementedError

    def _start_load(self, effect: LoadOffer) -> Job:
        try:
            work = self.load(effect.commit_op, effect.captured)
        except (TransferUnavailable, DiskFault) as fault:
            failed = OfferLoaded(effect.token, None, fault)
            return lambda: failed

        def job() -> OfferLoaded:
            try:
                offer = work()
            except (TransferUnavailable, DiskFault) as fault:
                return OfferLoaded(effect.token, None, fault)
            self._offers.append(offer)
            return OfferLoaded(effect.token, offer)

        return job

    def _start_read(self, effect: ReadChunk) -> Job:
        source = effect.offer.artifacts[effect.index][1]

        def job() -> ChunkRead:
            try:
                return ChunkRead(effect.token, source.read(effect.offset, effect.length))
            except DiskFault as fault:
                return ChunkRead(effect.token, b"", fault)

        return job

    def _release(self, offer: Offer) -> None:
        for _, source in offer.artifacts:
            source.close()
        self._offers = [other for other in self._offers if other is not offer]

    def close(self) -> None:
        """The group ends: let go of every file. What is staged stays for a later life."""
        for offer in list(self._offers):
            self._release(offer)
        self.staging.close(keep=True)

    # --- receiving ----------------------------------------------------------------------------------------------------

    def check(self, artifacts: tuple[Artifact, ...], clients_max: int) -> Checked:
        """Verify and decode what is staged. Raises `ShardsrvError` for what does not hold, `OwnFault` for a disk."""
        raise NotImplementedError

    def _start_open(self, effect: OpenStaging) -> Job:
        def job() -> StagingOpened:
            try:
                return StagingOpened(effect.token, self.staging.open(effect.artifacts))
            except DiskFault as fault:
                return StagingOpened(effect.token, (), fault)

        return job

    def _start_stage(self, effect: StageChunk) -> Job:
        opening = self.staging.opening

        def job() -> ChunkStaged:
            try:
                self.staging.require(opening)
                self.staging.write(effect.index, effect.offset, effect.data)
            except DiskFault as fault:
                return ChunkStaged(effect.token, fault)
            return ChunkStaged(effect.token)

        return job

    def _start_check(self, effect: CheckStaged) -> Job:
        opening = self.staging.opening

        def job() -> StagedChecked:
            try:
                self.staging.require(opening)
            except DiskFault as fault:
                return StagedChecked(effect.token, None, fault, own=True)
            try:
                return StagedChecked(effect.token, self.check(effect.artifacts, effect.clients_max))
            except OwnFault as fault:
                return StagedChecked(effect.token, None, fault.fault, own=True)
            except ShardsrvError as fault:
                return StagedChecked(effect.token, None, fault)

        return job

    # --- installing ---------------------------------------------------------------------------------------------------

    def install(self, content: Checked) -> int:
        """Make ``content`` durable; returns its checkpoint checksum. Raises `DiskFault`, and then nothing counts."""
        raise NotImplementedError

    def rebase(self, content: Checked) -> int:
        """Bring the log behind ``content``; returns the first op that it holds. Raises `DiskFault`."""
        raise NotImplementedError

    def _start_install(self, effect: InstallSnapshot) -> Job:
        def job() -> Installed:
            try:
                return Installed(effect.token, self.install(effect.content))
            except DiskFault as fault:
                return Installed(effect.token, 0, fault)

        return job

    def _start_rebase(self, effect: RebaseLog) -> Job:
        """At once: the log belongs to the group, and nothing may come between."""
        try:
            event = LogRebased(effect.token, self.rebase(effect.content))
        except DiskFault as fault:
            event = LogRebased(effect.token, 0, fault)
        return lambda: event


class OwnFault(Exception):
    """A fault of this node's disk while staged artifacts were read: not the peer's."""

    def __init__(self, fault: DiskFault) -> None:
        super().__init__(str(fault))
        self.fault = fault


_STARTERS: dict[type, Callable[[TransferDriver, Any], Job]] = {
    LoadOffer: TransferDriver._start_load,
    ReadChunk: TransferDriver._start_read,
    OpenStaging: TransferDriver._start_open,
    StageChunk: TransferDriver._start_stage,
    CheckStaged: TransferDriver._start_check,
    InstallSnapshot: TransferDriver._start_install,
    RebaseLog: TransferDriver._start_rebase,
}

__all__ = ["Job", "OwnFault", "Pair", "Source", "TransferDriver"]
