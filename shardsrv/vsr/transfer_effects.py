"""What a state transfer asks of the driver. Tokens are the transfer's own numbers, apart from those of log writes.

Every effect with a token is answered by one event of `shardsrv.vsr.transfer_events` with that token, also when the
work failed; the transfer ignores answers that it no longer waits for.
"""

from __future__ import annotations

from typing import Any

from shardsrv.vsr.record import Record


class LoadOffer(Record):
    """Make an offer of this member's state. Answered by `OfferLoaded`.

    ``commit_op`` is the op applied last when this left; ``captured`` what the plane gave of that very instant
    (metadata: a `client_table_wire.TableView`, partitions: the payload of a checkpoint). What is in files is verified,
    decoded and pinned until `ReleaseOffer`.
    """

    __slots__ = ("captured", "commit_op", "token")

    def __init__(self, token: int, commit_op: int, captured: Any) -> None:
        self.token = token
        self.commit_op = commit_op
        self.captured = captured


class ReleaseOffer(Record):
    """Nobody pulls from ``offer`` (`transfer_offer.Offer`) any more: let go of its files and pins. Not answered."""

    __slots__ = ("offer",)

    def __init__(self, offer: Any) -> None:
        self.offer = offer


class ReadChunk(Record):
    """Read ``length`` bytes (at least 1) from ``offset`` of artifact ``index`` of ``offer``. Answered by
    `ChunkRead`."""

    __slots__ = ("index", "length", "offer", "offset", "token")

    def __init__(self, token: int, offer: Any, index: int, offset: int, length: int) -> None:
        self.token = token
        self.offer = offer
        self.index = index
        self.offset = offset
        self.length = length


class OpenStaging(Record):
    """Make room for ``artifacts`` (`wire.manifest.Artifact`); say what is there of them from an earlier session.
    Answered by `StagingOpened`."""

    __slots__ = ("artifacts", "token")

    def __init__(self, token: int, artifacts: tuple[Any, ...]) -> None:
        self.token = token
        self.artifacts = artifacts


class StageChunk(Record):
    """Write ``data`` at ``offset`` of artifact ``index`` of the staging that is open. Answered by `ChunkStaged`."""

    __slots__ = ("data", "index", "offset", "token")

    def __init__(self, token: int, index: int, offset: int, data: Any) -> None:
        self.token = token
        self.index = index
        self.offset = offset
        self.data = data


class CloseStaging(Record):
    """The session is over: release the staging. ``keep`` says whether its whole artifacts may serve a later one. Not
    answered."""

    __slots__ = ("keep",)

    def __init__(self, keep: bool) -> None:
        self.keep = keep


class CheckStaged(Record):
    """Everything is staged: verify the checksum of each artifact, decode, and find out whether the plane could restore
    it. Nothing may change. Answered by `StagedChecked`.

    ``clients_max`` is the capacity of the live client table (0 without one), read now.
    """

    __slots__ = ("artifacts", "clients_max", "token")

    def __init__(self, token: int, artifacts: tuple[Any, ...], clients_max: int) -> None:
        self.token = token
        self.artifacts = artifacts
        self.clients_max = clients_max


class InstallSnapshot(Record):
    """Make ``content`` (`transfer_install.Checked`) durable as the state to recover from: the snapshot file of the
    metadata group, the commitment to swap of a partition. Answered by `Installed`."""

    __slots__ = ("content", "token")

    def __init__(self, token: int, content: Any) -> None:
        self.token = token
        self.content = content


class RebaseLog(Record):
    """The installed state is the floor now: what the log held leaves it (for a partition, what was fetched takes its
    place), and the next entry is the one behind ``content.op``. A barrier as `TruncateFrom`. Answered by
    `LogRebased`."""

    __slots__ = ("content", "token")

    def __init__(self, token: int, content: Any) -> None:
        self.token = token
        self.content = content


class Restored(Record):
    """The plane holds the state of entry ``op`` (identity ``checksum``) now, and the entries up to it were never
    `Committed` here: whoever follows the plane compares it whole. Not answered."""

    __slots__ = ("checksum", "op")

    def __init__(self, op: int, checksum: int) -> None:
        self.op = op
        self.checksum = checksum


class Note(Record):
    """Something that operators and tests want to see: log it under ``name`` with ``facts``, and count it.

    ``level`` is "debug", "info", "warning" or "error". Names are in `transfer_notes`.
    """

    __slots__ = ("facts", "level", "name")

    def __init__(self, name: str, level: str, facts: dict[str, Any]) -> None:
        self.name = name
        self.level = level
        self.facts = facts


TRANSFER_EFFECTS = (
    LoadOffer,
    ReleaseOffer,
    ReadChunk,
    OpenStaging,
    StageChunk,
    CloseStaging,
    CheckStaged,
    InstallSnapshot,
    RebaseLog,
    Restored,
    Note,
)
