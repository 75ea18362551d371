"""Compiled primitives: hashes, cursor, prepares, batches, log scan. Interface; the implementation is ``_core.pyx``.

Checksums are u64 as Python ints. A client id and a cluster id are 16-byte ``bytes`` (little-endian as on the wire).
Every function that reads a buffer checks bounds before it reads; none allocates by a length that it has not checked.
"""

from collections.abc import Buffer
from typing import Final

HEADER_SIZE: Final = 256

# Verdicts of `Prepare.verify` and `scan_log`.
VALID: Final = 0
SHORT: Final = 1            # fewer bytes than the header, or than `size` says: a torn tail looks like this
BAD_HEADER: Final = 2       # stored seal does not match, or a field is out of bounds (command, size, reserved bytes, op >= 2**62)
BAD_BODY: Final = 3         # the body does not match checksum_body
BAD_IDENTITY: Final = 4     # identity checksum does not match
BAD_CHAIN: Final = 5        # parent is not the predecessor's identity, or op is not predecessor + 1
ZERO: Final = 6             # 256 zero bytes where a header should be (preallocated space)

def xxh3(data: Buffer) -> int:
    """XXH3-64, seed 0, of the whole buffer."""

def xxh32(data: Buffer) -> int:
    """XXH32, seed 0."""

class Truncated(Exception):
    """The one failure of `Cursor`: fewer bytes left than asked for. Nothing was consumed."""

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

    The header is kept as 256 raw bytes inside the object; attributes read it. ``body`` is any buffer (a view of the arena, of a
    file that was read, or bytes); the object keeps it alive. ``header`` is a read-only view of the 256 bytes. Layout:
    docs/architecture.md, "The stored entry".
    """

    op: int
    view: int                # as stored: the view it was born in
    born_view: int
    commit: int
    timestamp: int           # microseconds
    client: bytes
    request: int
    request_checksum: int    # low 64 bits: the digest of the request
    request_checksum_high: int   # high 64 bits: the session of the request's client
    operation: int
    user_id: int
    group: int
    created_revision: int
    durability: int          # 0 replicated, 1 persisted
    size: int                # header and body
    checksum: int            # identity, low 64 bits
    parent: int              # identity of op - 1, low 64 bits
    checksum_body: int
    replica: int
    cluster: bytes
    header: memoryview
    body: memoryview

    @staticmethod
    def build(
        *, cluster: bytes, view: int, replica: int, client: bytes, parent: int, request_checksum: int, op: int, commit: int,
        timestamp: int, request: int, operation: int, group: int, user_id: int, created_revision: int, durability: int,
        body: Buffer, checksum_body: int, request_checksum_high: int = 0,
    ) -> Prepare:
        """Make and seal a prepare. ``checksum_body`` is given, not computed: for a batch it is the batch checksum."""

    @staticmethod
    def load(data: Buffer, position: int = 0) -> Prepare:
        """Read a prepare at ``position`` without copying the body. Raises `shardsrv.errors.Damaged` unless VALID (header, identity, body)."""

    @staticmethod
    def verify(data: Buffer, position: int = 0, check_body: bool = True) -> int:
        """The verdict for the bytes at ``position``, without making an object. A partition batch (operation 160) is checked
        through its batch checksum and every frame checksum; any other body by XXH3-64."""

    def restamped(self, view: int) -> bytes:
        """The header as sent in ``view``: identity unchanged, stored seal made again."""

class LogScan:
    """Result of `scan_log`, one chunk of a segment walked."""

    verdict: int             # VALID when the chunk ended exactly between entries, else why it stopped
    position: int            # where the walk stopped (start of the entry that is not VALID)
    first_op: int            # 0 if none
    last_op: int
    last_checksum: int
    last_timestamp: int
    count: int

def scan_log(
    data: Buffer, position: int, parent: int, next_op: int, on_prepare: object = None, check_body: bool = True
) -> LogScan:
    """Walk prepares back to back from ``position``; each must be VALID and chain on (``next_op`` - 1, ``parent``).

    ``on_prepare(prepare, position)`` is called for each valid entry when given. Stops at the first that is not VALID.
    """

# ---------------------------------------------------------------------------------------------------- batches

class BatchRefused(Exception):
    """A batch that is not stored. ``code`` is the Iggy code: 3 layout, 4027 checksum (see wire/error_codes), 4039 count."""

    code: int
    reason: str

class SendTarget:
    """The part of a send request before the batch, and what the batch check found. One per call of `parse_send`."""

    key: bytes               # the raw bytes of stream identifier, topic identifier, partitioning: the key of the target cache
    batch_offset: int        # where the batch begins in the body
    batch_length: int        # bytes
    message_count: int
    digest: int              # the batch checksum as sent: the deduplication digest
    origin_timestamp: int

def parse_send(body: Buffer) -> SendTarget:
    """Check a send body whole: metadata length, counts, reserved bytes, every frame checksum, the batch checksum as sent with the
    three server fields zero (wire-messages.md 2.4). Raises `BatchRefused`."""

def stamp_batch(batch: Buffer, partition_id: int, base_offset: int, base_timestamp: int) -> int:
    """Write the server's fields into a batch in place, recompute the batch checksum, return it. ``batch`` must be writable."""

def check_batch(batch: Buffer) -> int:
    """0 when every checksum and length of a stored batch holds, else the Iggy code."""

class PollSlice:
    """What `slice_prepares` selected: buffers to send in order (views of ``data``, and rewritten 256-byte headers as bytes)."""

    parts: list
    count: int               # messages selected
    bytes: int               # bytes selected, headers of batches included
    first_offset: int
    last_offset: int
    position: int            # where the walk ended in data (start of the first entry not fully looked at)
    needed: int              # bytes needed from `position` on to go on (0 when done); the caller reads more and calls again
    verdict: int             # VALID, or why a checksum refused

def slice_prepares(
    data: Buffer, position: int, end: int, offset: int, count: int, committed_op: int, by_time: bool = False, check: bool = True
) -> PollSlice:
    """Select up to ``count`` messages with offset >= ``offset`` (``by_time``: base_timestamp >= ``offset``) from prepares back to
    back in ``data[position:end]``, never beyond ``committed_op``. Entries that are not SendMessages are skipped. A batch that
    qualifies whole is one view of ``data``; a partial one gets a rewritten header (batch_length, message_count, batch_checksum) and a view of
    its frames (wire-messages.md 2.5). Adjacent views cannot be joined because prepare headers lie between."""

# ---------------------------------------------------------------------------------------------------- reply headers

def pack_reply(
    request_header: Buffer, *, status: int, body_length: int, op: int, commit: int, timestamp: int, operation: int, cluster: bytes,
    view: int = 0, replica: int = 0, client: bytes | None = None,
) -> bytes:
    """A 256-byte Reply header that echoes request_checksum and request of ``request_header`` (wire-protocol.md 2.3)."""

def pack_send_reply(request_header: Buffer, op: int, timestamp: int, stream: int, topic: int, partition: int, base_offset: int) -> bytes:
    """Header and 24-byte body of a successful send in one bytes object (280 bytes)."""

def dedup_key(client: bytes, session: int, operation: int, request: int, digest: int) -> bytes:
    """41 bytes: client 16, session 8, operation 1, request 8, digest 8. The exact key of the deduplication window."""
