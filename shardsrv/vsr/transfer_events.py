"""Answers of the driver to the effects of a state transfer (`shardsrv.vsr.transfer_effects`).

``fault`` is None, or the error (of `shardsrv.errors`) for which the work was not done; then nothing else in the event
counts.
"""

from __future__ import annotations

from typing import Any

from shardsrv.vsr.record import Record


class OfferLoaded(Record):
    """``offer`` is a `transfer_offer.Offer`; ``fault`` a `transfer_faults.TransferUnavailable` or another error."""

    __slots__ = ("fault", "offer", "token")

    def __init__(self, token: int, offer: Any, fault: Exception | None = None) -> None:
        self.token = token
        self.offer = offer
        self.fault = fault


class ChunkRead(Record):
    """``data`` as it is in the artifact: as long as it was asked for, since the artifact holds that much."""

    __slots__ = ("data", "fault", "token")

    def __init__(self, token: int, data: Any, fault: Exception | None = None) -> None:
        self.token = token
        self.data = data
        self.fault = fault


class StagingOpened(Record):
    """``held``: bytes from the beginning of each artifact that need not be fetched again, in manifest order."""

    __slots__ = ("fault", "held", "token")

    def __init__(self, token: int, held: tuple[int, ...], fault: Exception | None = None) -> None:
        self.token = token
        self.held = held
        self.fault = fault


class ChunkStaged(Record):
    """The chunk is in the staging file."""

    __slots__ = ("fault", "token")

    def __init__(self, token: int, fault: Exception | None = None) -> None:
        self.token = token
        self.fault = fault


class StagedChecked(Record):
    """``content`` is a `transfer_install.Checked`. ``fault`` says what is wrong with what was fetched; ``own`` that the
    fault is this member's disk and not the artifacts."""

    __slots__ = ("content", "fault", "own", "token")

    def __init__(self, token: int, content: Any, fault: Exception | None = None, own: bool = False) -> None:
        self.token = token
        self.content = content
        self.fault = fault
        self.own = own


class Installed(Record):
    """``checksum`` is the hash of the durable payload: the checkpoint checksum of the pair. With a ``fault`` the state
    on disk is what it was before."""

    __slots__ = ("checksum", "fault", "token")

    def __init__(self, token: int, checksum: int, fault: Exception | None = None) -> None:
        self.token = token
        self.checksum = checksum
        self.fault = fault


class LogRebased(Record):
    """The log ends at the op of the installed state; ``first_op`` is the oldest entry that it holds (the op behind the
    state when it holds none)."""

    __slots__ = ("fault", "first_op", "token")

    def __init__(self, token: int, first_op: int, fault: Exception | None = None) -> None:
        self.token = token
        self.first_op = first_op
        self.fault = fault


TRANSFER_EVENTS = (OfferLoaded, ChunkRead, StagingOpened, ChunkStaged, StagedChecked, Installed, LogRebased)
