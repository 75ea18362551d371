"""The tree of errors: whose fault it is, which protocol code tells a client, and the facts as fields.

Branches: PeerFault (a client or a replica sent something bad), OurFault (a defect of this program), DiskFault (storage
lies, fails or is full), OperatorFault (configuration, data directory, environment) and Transient (try again: certainly
not accepted, or outcome unknown). Invariants: every class has a `code` of the protocol's table; the message is made
from the fields, so that a log line and a reply never disagree; empty is not unreadable, failed is not unknown.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from shardsrv.wire.error_codes import ErrorCode, error_name

Found = int | str | bytes | None
"""A value that was met or expected: a number, a text, raw bytes, or nothing at all."""


@attrs.define(slots=False)
class ShardsrvError(Exception):
    """Base of every error this program raises on purpose. `code` is the protocol's code for it."""

    code: ClassVar[int] = ErrorCode.ERROR
    summary: ClassVar[str] = "error"

    def facts(self) -> dict[str, object]:
        """The fields by name, in order: what a log line prints beside the message."""
        return {field.name: getattr(self, field.name) for field in attrs.fields(type(self))}

    def __str__(self) -> str:
        facts = ", ".join(f"{name}={value!r}" for name, value in self.facts().items() if value is not None)
        return f"{self.summary}: {facts}" if facts else self.summary


# --- branches --------------------------------------------------------------------------------------------------------


@attrs.define(slots=False)
class PeerFault(ShardsrvError):
    """A client or a replica sent something that is malformed, refused or not allowed."""

    code: ClassVar[int] = ErrorCode.INVALID_COMMAND
    summary: ClassVar[str] = "bad input"


@attrs.define(slots=False)
class OurFault(ShardsrvError):
    """An invariant of this program does not hold; `detail` says which."""

    summary: ClassVar[str] = "defect of this program"
    detail: str = ""


@attrs.define(slots=False)
class EncodeError(OurFault):
    """A value that its field cannot carry: `what` names the field. Callers check user input before they encode it."""

    summary: ClassVar[str] = "cannot be encoded"
    what: str = ""
    value: object = None


@attrs.define(slots=False)
class DiskFault(ShardsrvError):
    """Storage is full, failing, damaged or unreadable."""

    code: ClassVar[int] = ErrorCode.IO_ERROR
    summary: ClassVar[str] = "storage fault"


@attrs.define(slots=False)
class OperatorFault(ShardsrvError):
    """Something only the operator can put right: configuration, data directory, environment."""

    code: ClassVar[int] = ErrorCode.INVALID_CONFIGURATION
    summary: ClassVar[str] = "operator fault"


@attrs.define(slots=False)
class Transient(ShardsrvError):
    """Nothing is wrong with the request; `reason` says why it cannot be answered now."""

    code: ClassVar[int] = ErrorCode.TRANSIENT_NOT_COMMITTED
    summary: ClassVar[str] = "not now"
    reason: str = ""


@attrs.define(slots=False)
class NotAccepted(Transient):
    """Certainly not accepted: the request has no effect and may be sent again anywhere (code 58)."""

    code: ClassVar[int] = ErrorCode.TRANSIENT_NOT_ACCEPTED
    summary: ClassVar[str] = "not accepted"


@attrs.define(slots=False)
class OutcomeUnknown(Transient):
    """May or may not take effect: only the same request on the same session may be repeated (code 57)."""

    code: ClassVar[int] = ErrorCode.TRANSIENT_NOT_COMMITTED
    summary: ClassVar[str] = "outcome unknown"


# --- peers -----------------------------------------------------------------------------------------------------------


@attrs.define(slots=False)
class DecodeError(PeerFault):
    """Bytes that do not decode: `what` (field or structure) at byte `offset` of its buffer."""

    summary: ClassVar[str] = "does not decode"
    what: str = ""
    offset: int = 0
    expected: Found = None
    found: Found = None


@attrs.define(slots=False)
class Truncated(DecodeError):
    """A read past the end: `expected` bytes wanted at `offset`, `found` bytes left. Nothing was consumed."""

    summary: ClassVar[str] = "ends too early"


@attrs.define(slots=False)
class SealMismatch(DecodeError):
    """A checksum that does not match the bytes it covers: `expected` is the stored value, `found` the computed one."""

    code: ClassVar[int] = ErrorCode.INVALID_FORMAT
    summary: ClassVar[str] = "checksum does not match"


@attrs.define(slots=False)
class BatchError(PeerFault):
    """A message batch that is refused: `code` is 4027 (frame checksum), 4039 (batch checksum) or 3 (structure)."""

    summary: ClassVar[str] = "message batch refused"
    code: int = ErrorCode.INVALID_COMMAND  # type: ignore[misc]
    what: str = ""
    offset: int = 0
    expected: Found = None
    found: Found = None


class RequestRefused(PeerFault):
    """A well-formed request that is denied with `code`, in the status field or in the result section.

    Facts are free keyword fields: `RequestRefused(ErrorCode.STREAM_ID_NOT_FOUND, stream=7)`.
    """

    code: int  # type: ignore[misc]

    def __init__(self, code: int, **facts: object) -> None:
        super().__init__()
        self.args = (code, facts)
        self.code = code
        self._facts = facts

    def __reduce__(self) -> tuple[object, ...]:
        return _refused, (self.code, self._facts)

    def facts(self) -> dict[str, object]:
        return dict(self._facts)

    def __str__(self) -> str:
        facts = "".join(f", {name}={value!r}" for name, value in self._facts.items())
        return f"{error_name(self.code)} ({int(self.code)}){facts}"

    def __repr__(self) -> str:
        return f"RequestRefused({self})"


def _refused(code: int, facts: dict[str, object]) -> RequestRefused:
    return RequestRefused(code, **facts)


@attrs.define(slots=False)
class UnsupportedOptionKey(PeerFault):
    """An option key outside the catalogue, or one that cannot be changed by an update."""

    code: ClassVar[int] = ErrorCode.UNSUPPORTED_OPTION_KEY
    summary: ClassVar[str] = "unsupported option key"
    key: str = ""


@attrs.define(slots=False)
class InvalidOptionValue(PeerFault):
    """A known option key with a value of the wrong kind or outside its bounds."""

    code: ClassVar[int] = ErrorCode.INVALID_OPTION_VALUE
    summary: ClassVar[str] = "invalid option value"
    key: str = ""
    value: Found = None
    reason: str = ""


@attrs.define(slots=False)
class Evicted(PeerFault):
    """The answer is an eviction with the byte `reason` (wire.constants.EvictionReason)."""

    code: ClassVar[int] = ErrorCode.UNAUTHENTICATED
    summary: ClassVar[str] = "evicted"
    reason: int = 0


@attrs.define(slots=False)
class LinkRefused(PeerFault):
    """No link with another node: `reason` names what differs, `expected` is ours and `found` theirs. `told`: the other
    side said so, its values are in its own log."""

    code: ClassVar[int] = ErrorCode.UNAUTHENTICATED
    summary: ClassVar[str] = "link refused"
    reason: str = ""
    expected: Found = None
    found: Found = None
    told: bool = False


# --- storage ---------------------------------------------------------------------------------------------------------


@attrs.define(slots=False)
class DiskFull(DiskFault):
    """No space: `needed` and `available` in bytes on the file system of `path`."""

    summary: ClassVar[str] = "disk full"
    path: str = ""
    needed: int = 0
    available: int = 0


@attrs.define(slots=False)
class SyncFailed(DiskFault):
    """A sync failed; what was written since the last one must not be taken for durable. `errno` of the call."""

    summary: ClassVar[str] = "sync failed"
    path: str = ""
    errno: int = 0


@attrs.define(slots=False)
class Damaged(DiskFault):
    """Bytes on disk contradict their checksum or their neighbours: `op` where the place belongs to one."""

    summary: ClassVar[str] = "damaged"
    path: str = ""
    offset: int = 0
    op: int | None = None
    expected: Found = None
    found: Found = None


@attrs.define(slots=False)
class Unreadable(DiskFault):
    """Exists but cannot be read or understood. Never to be treated as empty."""

    summary: ClassVar[str] = "unreadable"
    path: str = ""
    reason: str = ""
    errno: int | None = None


@attrs.define(slots=False)
class UnsupportedVersion(DiskFault):
    """A format version outside lowest..highest of this release; `what` names the format."""

    code: ClassVar[int] = ErrorCode.INVALID_VERSION
    summary: ClassVar[str] = "unsupported format version"
    what: str = ""
    path: str = ""
    found: int = 0
    lowest: int = 0
    highest: int = 0


@attrs.define(slots=False)
class GroupFenced(DiskFault):
    """A write of consensus group `group` failed; the group takes no more writes until its log was read anew. `reason`
    of the driver."""

    summary: ClassVar[str] = "group is fenced"
    group: int = 0
    reason: str = ""


@attrs.define(slots=False)
class LogIncoherent(DiskFault):
    """An entry that is whole but does not belong where it stands in the log of `group`: `field` was `expected`, is
    `found`."""

    code: ClassVar[int] = ErrorCode.IO_ERROR
    summary: ClassVar[str] = "entry does not continue the log"
    group: int = 0
    op: int = 0
    field: str = ""
    expected: Found = None
    found: Found = None


@attrs.define(slots=False)
class ClientTableMalformed(DiskFault):
    """A client table in a snapshot of this node that holds something other than its rows; base of its other defects."""

    summary: ClassVar[str] = "client table is malformed"
    slot: int | None = None
    found: Found = None


@attrs.define(slots=False)
class ClientTableTooLarge(ClientTableMalformed):
    """More entries, or a higher slot, than any client table may have."""

    summary: ClassVar[str] = "client table is too large"
    maximum: int = 0


@attrs.define(slots=False)
class ClientTableRing(ClientTableMalformed):
    """An entry that keeps no reply, or more than `maximum`."""

    summary: ClassVar[str] = "client table entry keeps a wrong number of replies"
    maximum: int = 0


@attrs.define(slots=False)
class ClientTableDuplicate(ClientTableMalformed):
    """A client, or a slot, that occurs twice; `first` is the slot of the other occurrence."""

    summary: ClassVar[str] = "client table has one client twice"
    first: int = 0


@attrs.define(slots=False)
class ClientTableInvalidReply(ClientTableMalformed):
    """A cached reply that cannot be one."""

    summary: ClassVar[str] = "client table keeps an invalid reply"


# --- operators -------------------------------------------------------------------------------------------------------


@attrs.define(slots=False)
class ConfigurationError(OperatorFault):
    """A configuration key with a value that cannot be used."""

    summary: ClassVar[str] = "configuration"
    key: str = ""
    value: object = None
    reason: str = ""


@attrs.define(slots=False)
class DataDirectoryLocked(OperatorFault):
    """Another process holds the lock of the data directory; `pid` where it is known."""

    summary: ClassVar[str] = "data directory is in use"
    path: str = ""
    pid: int | None = None


@attrs.define(slots=False)
class DataDirectoryForeign(OperatorFault):
    """The data directory belongs to another cluster, node or program."""

    summary: ClassVar[str] = "data directory is not ours"
    path: str = ""
    expected: Found = None
    found: Found = None


@attrs.define(slots=False)
class PortInUse(OperatorFault):
    """A listener's address is taken."""

    code: ClassVar[int] = ErrorCode.CANNOT_BIND_TO_SOCKET
    summary: ClassVar[str] = "address in use"
    address: str = ""
    port: int = 0


@attrs.define(slots=False)
class TooFewDescriptors(OperatorFault):
    """The limit of open files is below what the configuration needs."""

    summary: ClassVar[str] = "too few file descriptors"
    needed: int = 0
    limit: int = 0


@attrs.define(slots=False)
class CrashLoop(OperatorFault):
    """The node died `deaths` times within `seconds` for one `cause` and is not started again."""

    summary: ClassVar[str] = "crash loop"
    cause: str = ""
    deaths: int = 0
    seconds: float = 0.0
