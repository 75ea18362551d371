"""Every decoder of bytes that a client or another node sends, with samples and the errors that it may raise.

What is accepted must be usable: messages encode again to what decodes to the same bytes; the compiled checks and the
plain ones agree; a command that is admitted resolves to a body that decodes where it is applied.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from shardsrv import _core
from shardsrv.errors import (
    BatchError,
    DecodeError,
    DiskFault,
    RequestRefused,
    UnsupportedVersion,
)
from shardsrv.plane.metadata import snapshot
from shardsrv.plane.metadata.admission import REQUESTS as ADMITTED
from shardsrv.plane.metadata.admission import TokenSecret
from shardsrv.plane.metadata.apply import COMMANDS
from shardsrv.plane.metadata.plane import MetadataPlane
from shardsrv.plane.metadata.queries import QUERIES
from shardsrv.plane.partition import checkpoint
from shardsrv.plane.partition import offsets as offset_bodies
from shardsrv.vsr import client_table_wire
from shardsrv.vsr.frames import decode_frame
from shardsrv.vsr.suffix import decode_view, decode_vote
from shardsrv.wire import batch, codes, gathered, replies, requests
from shardsrv.wire.constants import HEADER_SIZE, MAX_FRAME_SIZE
from shardsrv.wire.gathered import GatheredHeader
from shardsrv.wire.headers import HEADERS, frame_size, parse_header
from shardsrv.wire.layout import RESERVED
from shardsrv.wire.login import LoginWithToken, decode_login
from shardsrv.wire.manifest import decode_manifest
from shardsrv.wire.message import Message
from shardsrv.wire.messages import SendMessages
from shardsrv.wire.replica_bodies import decode_not_served
from shardsrv.wire.replica_headers import DoViewChangeHeader, StartViewHeader
from tests.fuzz import corpus, seals
from tests.support.metadata import passwords_for, zero_counters
from tests.unit.test_metadata_snapshot import populated


def header_fields(sample: bytes) -> list[tuple[int, int]]:
    """The named fields of a frame's header."""
    kind = HEADERS.get(sample[60]) if len(sample) > 60 else None
    return [] if kind is None else [(at.offset, at.size) for at in kind.layout.fields if at.kind != RESERVED]


def suffix_fields(sample: bytes) -> list[tuple[int, int]]:
    """The named fields of every header of a suffix."""
    starts = range(0, len(sample), HEADER_SIZE)
    return [(start + at, size) for start in starts for at, size in header_fields(sample[start : start + HEADER_SIZE])]


@dataclass(frozen=True)
class Target:
    """One decoder.

    ``seal`` makes the checksums of a mutated sample right again; ``fields`` names the places (offset, size) of its
    header's fields, so that a mutation meets fields and not the reserved bytes between them. Both serve most samples.
    """

    name: str
    samples: list[bytes]
    run: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]
    seal: Callable[[bytearray], None] | None = None
    fields: Callable[[bytes], list[tuple[int, int]]] | None = None


# --- requests of clients ----------------------------------------------------------------------------------------------


def decode_message(kind: type[Message], data: bytes) -> None:
    """Decode, and encode what was decoded until it no longer changes."""
    encoded = kind.decode(data).encode()
    assert kind.decode(encoded).encode() == encoded, "what was decoded encodes to something else"


def decode_client_header(data: bytes) -> None:
    frame_size(data)
    parse_header(data)


def check_send(data: bytes) -> None:
    """The compiled check of a send and the plain one agree, and find the same batch."""
    try:
        found = _core.parse_send(data)
    except _core.BatchRefused:
        found = None
    try:
        send = SendMessages.decode(data)
        header = batch.verify_batch(send.batch)
        accepted = 0 < header.message_count == send.messages_count
    except (DecodeError, BatchError):
        accepted = False
    assert accepted is (found is not None), f"the plain check says {accepted}"
    if found is not None:
        assert data[found.batch_offset :] == send.batch
        stamped = bytearray(send.batch)
        _core.stamp_batch(stamped, 3, 1000, 2000)
        assert _core.check_batch(stamped) == 0


class Admission:
    """Commands of clients at the door of a populated copy of the metadata: nothing is changed by them."""

    def __init__(self) -> None:
        self.plane: MetadataPlane = populated().plane

    def admit(self, operation: int, data: bytes) -> None:
        """Admit and resolve; what enters the log decodes where it is applied."""
        refusal = self.plane.refusal(operation, data)
        if refusal is not None:
            raise refusal
        secrets = passwords_for(self.plane.password_task(operation, data)) or TokenSecret("digest")
        resolved, body = self.plane.resolve(operation, data, 0, secrets)
        COMMANDS[resolved].body.decode(body)

    def query(self, code: int, data: bytes) -> None:
        """A read is answered or refused."""
        assert isinstance(self.plane.query(code, data, 0, zero_counters), bytes)


def _client_targets() -> Iterator[Target]:
    refusals = (DecodeError,)
    frames = [one.header + one.body for one in corpus.recorded()]
    yield Target("client header", frames, decode_client_header, refusals, seals.seal_size, header_fields)
    logins = corpus.logins()
    yield Target("login", logins, decode_login, refusals)
    for code, kind in sorted(requests.REQUESTS.items()):
        samples = logins if issubclass(kind, LoginWithToken) else corpus.bodies_by_code().get(code, [b""])
        seal = seals.seal_send if kind is SendMessages else None
        yield Target(f"request {kind.__name__}", samples, partial(decode_message, kind), refusals, seal)
    for code, reply in sorted(replies.REPLIES.items()):
        samples = corpus.payloads_by_code().get(code, [])
        if samples:
            yield Target(f"reply {code} {reply.__name__}", samples, partial(replies.decode_reply, code), refusals)
    yield Target("send", corpus.sends(), check_send, (), seals.seal_send)
    admission = Admission()
    for operation in sorted(ADMITTED):
        samples = corpus.bodies_by_code()[codes.CODE_OF_OPERATION[operation]] + corpus.known_names()
        yield Target(f"admission {operation}", samples, partial(admission.admit, operation), (RequestRefused,))
    for code in sorted(QUERIES):
        samples = corpus.bodies_by_code().get(code, []) + corpus.known_names()
        yield Target(f"query {code}", samples, partial(admission.query, code), (RequestRefused,))


# --- frames and artifacts of other nodes ------------------------------------------------------------------------------


def decode_replica_frame(data: bytes) -> None:
    """Take a frame apart as far as a member does before its group looks at it."""
    header, body = decode_frame(data, MAX_FRAME_SIZE)
    if isinstance(header, DoViewChangeHeader):
        decode_vote(header, 1, body)
    elif isinstance(header, StartViewHeader):
        decode_view(header.op, body)
    elif isinstance(header, GatheredHeader):
        gathered.encode(gathered.read(header, body))
    elif data[60] in corpus.PREPARE_COMMANDS:
        entry = getattr(header, "prepare", header)
        decode_entry_body(entry.operation, entry.body)
        assert _core.Prepare.verify_header(entry.with_view(entry.born_view).header) == _core.VALID


ENTRY_BODIES: dict[int, Callable[[Any], object]] = {
    161: offset_bodies.decode_stores,
    162: offset_bodies.decode_keys,
    192: offset_bodies.decode_purge,
    193: offset_bodies.decode_truncate,
}


def decode_entry_body(operation: int, body: Any) -> None:
    """The body of an entry of a partition."""
    decode = ENTRY_BODIES.get(operation)
    if decode is not None:
        decode(body)


def decode_suffix_body(data: bytes) -> None:
    """A log suffix that ends at op 6, as a view and as a vote with three incarnations."""
    decode_view(6, data)


def scan(data: bytes) -> None:
    """Walk a chunk of a log, and select messages from it: what stops the walk is a verdict, never an error."""
    walked = _core.scan_log(data, 0, 0, 1)
    assert 0 <= walked.position <= len(data)
    found = _core.slice_prepares(data, 0, len(data), 1, 100, 1 << 61)
    assert 0 <= found.position <= len(data) and sum(map(len, found.parts)) == found.bytes


def decode_table(data: bytes) -> None:
    table = client_table_wire.decode(data, 16)
    client_table_wire.encode(client_table_wire.view_of(table, 50))


def decode_snapshot(data: bytes) -> None:
    assert snapshot.reencode(snapshot.decode(data)) == data


def decode_checkpoint(data: bytes) -> None:
    checkpoint.encode(checkpoint.decode(data))


def seal_log(data: bytearray) -> None:
    """The entries of a chunk of a log that still follow each other, each with its seals and its parent."""
    position, parent = 0, bytes(16)
    while position + 256 <= len(data):
        end = position + int.from_bytes(data[position + 48 : position + 52], "little")
        if not position + 256 <= end <= len(data):
            return
        entry = data[position:end]
        entry[144:160] = parent
        seals.seal_prepare(entry)
        data[position:end] = entry
        position, parent = end, bytes(entry[:16])


def _node_targets() -> Iterator[Target]:
    wire = (DecodeError, DiskFault)
    yield Target(
        "replica frame", corpus.replica_frames(), decode_replica_frame, wire, seals.seal_replica_frame, header_fields
    )
    yield Target(
        "link header", corpus.link_headers(), parse_header, (DecodeError,), seals.seal_link_header, header_fields
    )
    yield Target(
        "suffix",
        [corpus.suffix(), corpus.blank_suffix()],
        decode_suffix_body,
        (DecodeError,),
        seals.seal_suffix,
        suffix_fields,
    )
    yield Target("not served", [bytes(16), bytes(range(64))], decode_not_served, (DecodeError,))
    chunk = b"".join(bytes(entry.header) + bytes(entry.body) for entry in corpus.log())
    yield Target("log chunk", [chunk, chunk + bytes(512)], scan, (), seal_log)
    yield Target("manifest", corpus.manifests(), decode_manifest, (DecodeError,), seals.seal_trailer)
    yield Target("client table", corpus.client_tables(), decode_table, (DecodeError, DiskFault), seals.seal_trailer)
    yield Target("snapshot", corpus.snapshots(), decode_snapshot, (DecodeError, UnsupportedVersion))
    yield Target("checkpoint", corpus.checkpoints(), decode_checkpoint, (DecodeError,))
    for operation, decode in ENTRY_BODIES.items():
        samples = [bytes(entry.body) for entry in corpus.log() if entry.operation == operation]
        yield Target(f"entry body {operation}", samples, decode, (DecodeError,))


def all_targets() -> list[Target]:
    """Every target; samples are never empty lists."""
    return [*_client_targets(), *_node_targets()]
