"""Compiled primitives: hashes, cursor, prepares, batches, log scan. Interface; the implementation is ``_core.pyx``.

Checksums are u64 as Python ints. A client id and a cluster id are 16-byte ``bytes`` (little-endian as on the wire).
Every function that reads a buffer checks bounds before it reads; none allocates by a length that it has not checked.
A buffer is anything contiguous (bytes, bytearray, memoryview, arena buffer); views that are handed out are read-only.
Arguments that a caller must not pass (a negative or too large int, a position outside the buffer, an id that is not 16
bytes) raise `ValueError` or `OverflowError`; bytes that came from a peer or a disk never do.
"""

from collections.abc import Callable
from typing import Final

from typing_extensions import Buffer

HEADER_SIZE: Final = 256
FIELD_LIMIT: Final = 4611686018427387904
"""2**62: op, commit, timestamp, created_revision, offsets and base timestamps stay below it."""
PREPARE_SIZE_MAX: Final = 268435456
"""256 MiB: hard bound of one entry, header included. The configured limit of a frame is lower."""
HASH_BACKEND: Final[str]
"""Which XXH3 is in use: ``XXH3_64bits_dispatch``, ``XXH3_64bits`` (C, without the interpreter) or ``python``."""

# Verdicts of `Prepare.verify` and `scan_log`.
VALID: Final = 0
SHORT: Final = 1  # fewer bytes than the header, or than `size` says: a torn tail looks like this
BAD_HEADER: Final = 2  # stored seal does not match, or a field is out of bounds
BAD_BODY: Final = 3  # the body does not match checksum_body
BAD_IDENTITY: Final = 4  # identity checksum does not match
BAD_CHAIN: Final = 5  # parent is not the predecessor's identity, or op is not predecessor + 1
ZERO: Final = 6  # 256 zero bytes where a header should be (preallocated space)
VERDICT_NAMES: Final[tuple[str, ...]]
"""Names by verdict, for logs and reports."""

def xxh3(data: Buffer) -> int:
    """XXH3-64, seed 0, of the whole buffer."""

def xxh32(data: Buffer) -> int:
    """XXH32, seed 0."""

class Truncated(Exception):
    """The one failure of `Cursor`: fewer bytes left than asked for. Nothing was consumed."""

    position: int
    needed: int
    left: int
    def __init__(self, position: int, needed: int, left: int) -> None: ...

class Cursor:
    """Bounded little-endian reader over a buffer (S2-07)."""

    position: int
    def __init__(self, data: Buffer) -> None: ...
    def u8(self) -> int: ...
    def u16(self) -> int: ...
    def u32(self) -> int: ...
    def u64(self) -> int: ...
    def u128(self) -> int: ...
    def f32(self) -> float: ...
    def take(self, length: int) -> memoryview: ...
    def rest(self) -> memoryview: ...
    @property
    def remaining(self) -> int: ...

class Prepare:
    """One log entry: a 256-byte sealed header and a body that stays where it is.

    Immutable; equal when all header bytes are. The header is kept as 256 raw bytes inside the object; attributes read
    it. ``body`` is any buffer (a view of the arena, of a file that was read, or bytes); the object keeps it alive.
    Layout: docs/architecture.md, "The stored entry".
    """

    @property
    def op(self) -> int: ...
    @property
    def view(self) -> int:
        """The view it was born in when stored, the current one when sent again (`restamped`)."""
    @property
    def born_view(self) -> int: ...
    @property
    def commit(self) -> int: ...
    @property
    def timestamp(self) -> int:
        """Microseconds."""
    @property
    def client(self) -> bytes: ...
    @property
    def request(self) -> int: ...
    @property
    def request_checksum(self) -> int:
        """Low 64 bits: the digest of the request (a batch checksum as sent, else XXH3-64 of the body)."""
    @property
    def request_checksum_high(self) -> int:
        """High 64 bits: the session of the client that asked, below 2**62."""
    @property
    def operation(self) -> int: ...
    @property
    def user_id(self) -> int: ...
    @property
    def group(self) -> int:
        """u64: bit 63 is set for the metadata group."""
    @property
    def created_revision(self) -> int: ...
    @property
    def durability(self) -> int:
        """0 replicated, 1 persisted."""
    @property
    def size(self) -> int:
        """Header and body, bytes."""
    @property
    def checksum(self) -> int:
        """Identity, low 64 bits."""
    @property
    def parent(self) -> int:
        """Identity of op - 1, low 64 bits."""
    @property
    def checksum_body(self) -> int: ...
    @property
    def stored_seal(self) -> int: ...
    @property
    def replica(self) -> int: ...
    @property
    def cluster(self) -> bytes: ...
    @property
    def header(self) -> memoryview:
        """A read-only view of a copy of the 256 bytes."""
    @property
    def body(self) -> memoryview:
        """A read-only view of the body where it lies; empty when there is none."""
    @property
    def base_offset(self) -> int:
        """Offset of the first message of a SendMessages entry; 0 for another one, and without its body."""
    @property
    def message_count(self) -> int:
        """Messages of a SendMessages entry; 0 for another one, and without its body."""
    @property
    def has_body(self) -> bool:
        """False for the result of `load_header`: ``size`` then counts a body that is not here."""

    @staticmethod
    def build(
        *,
        cluster: bytes,
        view: int,
        replica: int,
        client: bytes,
        parent: int,
        request_checksum: int,
        op: int,
        commit: int,
        timestamp: int,
        request: int,
        operation: int,
        group: int,
        user_id: int,
        created_revision: int,
        durability: int,
        body: Buffer,
        checksum_body: int,
        request_checksum_high: int = 0,
    ) -> Prepare:
        """Make and seal a prepare, born in ``view``.

        ``checksum_body`` is given, not computed: the batch checksum for SendMessages, ``xxh3(body)`` for everything
        else, also for an empty body. ``request_checksum_high`` is the session. Raises `ValueError` for a field out of
        bounds."""

    @staticmethod
    def load(data: Buffer, position: int = 0) -> Prepare:
        """Read a prepare at ``position`` without copying the body.

        Raises `shardsrv.errors.Damaged` unless it is VALID (header, identity, body)."""

    @staticmethod
    def load_parts(header: Buffer, body: Buffer, check_body: bool = True) -> Prepare:
        """As `load`, for a header and a body that lie apart (a frame of the network).

        The header of a RepairPrepare (byte 60 = 19, seals those of the prepare) is taken too and becomes the
        prepare's."""

    @staticmethod
    def load_header(data: Buffer, position: int = 0) -> Prepare:
        """A header without its body (slots of DoViewChange and StartView).

        Raises `Damaged` unless header and identity hold."""

    @staticmethod
    def verify(data: Buffer, position: int = 0, check_body: bool = True) -> int:
        """The verdict for the bytes at ``position``, without making an object.

        A partition batch (operation 160) is checked through its batch checksum and every frame checksum; any other
        body by XXH3-64."""

    @staticmethod
    def verify_header(data: Buffer, position: int = 0) -> int:
        """The verdict for the 256 bytes at ``position``: VALID, SHORT, ZERO, BAD_HEADER or BAD_IDENTITY."""

    def restamped(self, view: int, repair: bool = False) -> bytes:
        """The header as sent in ``view``: identity unchanged, stored seal made again.

        ``repair`` gives it the command of a RepairPrepare (the seals stay those of the prepare). Raises `ValueError`
        for a view before the one it was born in."""

    def with_view(self, view: int) -> Prepare:
        """The same entry over the same body, its header as in ``view``. A receiver stores ``with_view(born_view)``."""

class PrepareMould:
    """What all entries have in common that one member makes for one group (``cluster`` 16 bytes)."""

    def __init__(self, cluster: bytes, replica: int, group: int, created_revision: int) -> None: ...
    def make(
        self,
        view: int,
        client: bytes,
        session: int,
        parent: int,
        request_checksum: int,
        op: int,
        commit: int,
        timestamp: int,
        request: int,
        operation: int,
        user_id: int,
        durability: int,
        body: Buffer,
        checksum_body: int,
        /,
    ) -> Prepare:
        """Make and seal a prepare, born in ``view``. Checks and raises as `Prepare.build` does."""

class LogScan:
    """One chunk of a segment walked by `scan_log`. Pass ``last_checksum`` and ``last_op + 1`` to go on with the next
    chunk."""

    verdict: int  # VALID when the chunk ended exactly between entries, else why it stopped
    position: int  # where the walk stopped (start of the entry that is not VALID)
    first_op: int  # 0 if none
    last_op: int  # next_op - 1 as given if none
    last_checksum: int  # parent as given if none
    last_timestamp: int  # 0 if none
    count: int
    needed: int  # with SHORT: bytes wanted from `position` on (256, or the size of the entry); else 0

def scan_log(
    data: Buffer,
    position: int,
    parent: int,
    next_op: int,
    on_prepare: Callable[[Prepare, int], object] | None = None,
    check_body: bool = True,
) -> LogScan:
    """Walk prepares back to back from ``position``; each must be VALID and chain on (``next_op`` - 1, ``parent``).

    ``on_prepare(prepare, position)`` is called for each valid entry when given. Stops at the first that is not VALID.
    """

# ---------------------------------------------------------------------------------------------------- batches

class BatchRefused(Exception):
    """A batch that is not stored. ``code`` of the protocol: 3 layout or count, 4027 frame checksum, 4039 batch
    checksum."""

    code: int
    reason: str
    offset: int  # the byte of the checked buffer where it was found
    def __init__(self, code: int, reason: str, offset: int = 0) -> None: ...

class SendTarget:
    """The part of a send request before the batch, and what the batch check found. One per call of `parse_send`."""

    key: bytes  # the raw bytes of stream identifier, topic identifier, partitioning: the key of the target cache
    batch_offset: int  # where the batch begins in the body
    batch_length: int  # bytes; the batch reaches to the end of the body
    message_count: int
    digest: int  # the batch checksum as sent: the deduplication digest
    origin_timestamp: int

def parse_send(body: Buffer) -> SendTarget:
    """Check a send body whole, identifiers and partitioning included.

    Metadata length, counts, reserved bytes, every frame checksum, the batch checksum over the header as sent. Raises
    `BatchRefused`."""

def stamp_batch(batch: Buffer, partition_id: int, base_offset: int, base_timestamp: int) -> int:
    """Write the server's fields into a writable batch in place, make the batch checksum again, return it.

    Lengths are checked, message checksums are not (`parse_send` did that). Raises `BatchRefused` (3) and then leaves
    the bytes alone."""

def batch_count(batch: Buffer) -> int:
    """The messages that a batch says it has. Raises `BatchRefused` (3) for fewer bytes than a batch header."""

def check_batch(batch: Buffer) -> int:
    """0 when every checksum and length of a stored batch holds, else the Iggy code."""

class PollSlice:
    """What `slice_prepares` selected: buffers to send in order (views of ``data``; rewritten 256-byte headers as
    bytes)."""

    parts: list[memoryview | bytes]
    count: int  # messages selected
    bytes: int  # bytes selected, headers of batches included
    first_offset: int
    last_offset: int
    position: int  # where the walk ended in data (start of the first entry not fully looked at)
    needed: int  # bytes needed from `position` on to go on (0 when done); the caller reads more and calls again
    verdict: int  # VALID, or why a checksum refused; what was selected before that is good

def slice_prepares(
    data: Buffer,
    position: int,
    end: int,
    offset: int,
    count: int,
    committed_op: int,
    by_time: bool = False,
    check: bool = True,
) -> PollSlice:
    """Select up to ``count`` messages with offset >= ``offset`` (``by_time``: base_timestamp >= ``offset``).

    From prepares back to back in ``data[position:end]``, never beyond ``committed_op``. Entries that are not
    SendMessages are skipped. A batch that qualifies whole is one view of ``data``; a partial one gets a rewritten
    header (batch_length, message_count, batch_checksum) and a view of its frames. Adjacent views cannot be joined:
    prepare headers lie between.

    The n-th frame of a batch has offset base_offset + n. With ``check`` the stored seal of every entry, the batch
    checksum of every batch (skipped ones too: their base offset decided that) and the frame checksums of what is
    selected are verified; without it, only what bounds need. To go on after ``needed``, call again with ``count -
    slice.count`` and data from ``position`` on."""

# ---------------------------------------------------------------------------------------------------- reply headers

def pack_reply(
    request_header: Buffer,
    *,
    status: int,
    body_length: int,
    op: int,
    commit: int,
    timestamp: int,
    operation: int,
    cluster: bytes,
    view: int = 0,
    replica: int = 0,
    client: bytes | None = None,
) -> bytes:
    """A 256-byte Reply header that echoes request_checksum and request of ``request_header``, and its client unless
    given."""

def send_reply_body(stream: int, topic: int, partition: int, base_offset: int) -> bytes:
    """The body of the reply to a send, 24 bytes: u32 1, the three ids u32, u64 ``base_offset``."""

def dedup_key(client: bytes, session: int, operation: int, request: int, digest: int) -> bytes:
    """41 bytes: client 16, session 8, operation 1, request 8, digest 8. The exact key of the deduplication window."""
