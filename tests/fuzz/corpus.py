"""What mutation starts from: recorded requests of clients, frames between members, and artifacts of state transfers."""

import json
import lzma
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import attrs

from shardsrv._core import Prepare, xxh3
from shardsrv.plane.metadata import snapshot
from shardsrv.plane.partition import checkpoint
from shardsrv.plane.partition import offsets as offset_bodies
from shardsrv.vsr import client_table_wire
from shardsrv.vsr.frames import REPLICA_COMMANDS, body_fields, encode_frame
from shardsrv.wire import gathered
from shardsrv.wire.gathered import GatheredHeader
from shardsrv.wire.headers import HEADERS
from shardsrv.wire.layout import Header
from shardsrv.wire.manifest import Artifact, encode_manifest
from shardsrv.wire.prepare_header import PrepareHeader
from shardsrv.wire.replica_bodies import encode_suffix
from shardsrv.wire.replica_headers import (
    CommitHeader,
    DoViewChangeHeader,
    PrepareOkHeader,
    StartViewHeader,
    StateTransferTargetHeader,
)
from tests.support.batches import encode_batch
from tests.support.frames import SEND_MESSAGES, identifier, send_body, text
from tests.support.transfers import client_id, table_of
from tests.unit.test_metadata_snapshot import encoded, populated

RECORDING = Path(__file__).parent.parent / "golden" / "tcp.jsonl.xz"
CLUSTER = b"cluster of tests"
GROUP = 1 << 32 | 2 << 20 | 3
PREPARE_COMMANDS = (6, 19)


@dataclass(frozen=True)
class Recorded:
    """One recorded exchange: the request's header and body, and the payload of its reply (``None``: there was none)."""

    operation: int
    code: int
    header: bytes
    body: bytes
    payload: bytes | None


@cache
def recorded() -> tuple[Recorded, ...]:
    """Every recorded exchange, without repetitions of the same request."""
    found: dict[tuple[int, int, bytes], Recorded] = {}
    with lzma.open(RECORDING, "rt") as lines:
        for line in lines:
            row = json.loads(line)
            header, body = bytes.fromhex(row["request_header"]), bytes.fromhex(row["request_body"])
            payload = None
            if row.get("reply_body") and not row.get("status") and not row.get("result"):
                payload = bytes.fromhex(row["reply_body"])[4 if "result" in row else 0 :]
            found.setdefault(
                (header[176], row["code"], body), Recorded(header[176], row["code"], header, body, payload)
            )
    return tuple(found.values())


@cache
def bodies_by_code() -> dict[int, list[bytes]]:
    """Request bodies by command code."""
    found: dict[int, list[bytes]] = defaultdict(list)
    for one in recorded():
        found[one.code].append(one.body)
    return found


@cache
def payloads_by_code() -> dict[int, list[bytes]]:
    """Reply payloads by command code."""
    found: dict[int, list[bytes]] = defaultdict(list)
    for one in recorded():
        if one.payload is not None:
            found[one.code].append(one.payload)
    return found


@cache
def logins() -> list[bytes]:
    """Register bodies, with a password as recorded and with a token."""
    prefix = (11264).to_bytes(4, "little") + text("sdk") + text("1.0")
    return [*bodies_by_code()[40], prefix + text("t" * 68) + bytes(4), prefix + text("t") + b"\3\0\0\0abc"]


@cache
def known_names() -> list[bytes]:
    """Bodies that begin with what `populated` has: a stream, a topic and a group; a user."""
    place = identifier("zeta") + identifier("events")
    return [
        place + identifier("workers"),
        place + (2).to_bytes(4, "little"),
        identifier("berta") + text("a") + text("b"),
    ]


@cache
def sends() -> list[bytes]:
    """Bodies of send_messages, recorded and of several sizes."""
    made = [
        send_body("s", 3, 1, count, encode_batch([b"x" * size] * count)) for count, size in ((1, 0), (3, 9), (40, 2))
    ]
    return [one.body for one in recorded() if one.operation == SEND_MESSAGES] + made


def prepare(op: int, parent: int, body: bytes, operation: int, group: int = GROUP) -> Prepare:
    """One log entry of a partition."""
    batch = operation == SEND_MESSAGES
    return Prepare.build(
        cluster=CLUSTER,
        view=2,
        replica=1,
        client=b"c" * 16,
        parent=parent,
        request_checksum=0,
        op=op,
        commit=op - 1,
        timestamp=1_700_000_000_000_000 + op,
        request=op,
        operation=operation,
        group=group,
        user_id=0,
        created_revision=7,
        durability=op % 2,
        body=body,
        checksum_body=int.from_bytes(body[40:48], "little") if batch else xxh3(body),
    )


@cache
def log() -> list[Prepare]:
    """A chain of entries of a partition."""
    stores = offset_bodies.encode_stores([(1, 1, 5, 9), (2, 0, 6, 3)])
    bodies = [
        (SEND_MESSAGES, encode_batch([b"one", b"two"])),
        (161, stores),
        (162, offset_bodies.encode_keys([(1, 5)])),
        (192, offset_bodies.encode_purge(9)),
        (193, offset_bodies.encode_truncate(4, 1000)),
        (SEND_MESSAGES, encode_batch([b"x" * 300] * 5)),
    ]
    made: list[Prepare] = []
    for operation, body in bodies:
        made.append(prepare(len(made) + 1, made[-1].checksum if made else 0, body, operation))
    return made


@cache
def suffix() -> bytes:
    """The headers of the log, newest first."""
    return b"".join(bytes(entry.header) for entry in reversed(log()))


def _bare(kind: type[Header]) -> bytes:
    """A header with what frames about a group and frames of a link name."""
    return _filled(kind).pack()


def _filled(kind: type[Any]) -> Any:
    fields = attrs.fields_dict(kind)
    known = {"cluster": CLUSTER, "group": GROUP, "created_revision": 7, "view": 3, "replica": 1, "length": 9}
    known["nonce"] = b"n" * 32 if "nonce" in fields and isinstance(fields["nonce"].default, bytes) else 5
    return kind(**{name: value for name, value in known.items() if name in fields})


@cache
def replica_frames() -> list[bytes]:
    """One frame of every command between members and more of those with bodies; prepares live and repaired."""
    bare = [_bare(HEADERS[command]) for command in sorted(REPLICA_COMMANDS - set(PREPARE_COMMANDS))]
    entries = [entry.restamped(5, repair) + bytes(entry.body) for entry in log() for repair in (False, True)]
    manifest = encode_manifest([Artifact(2, 1, 4096, 17), Artifact(4, 9, 300, 18)])
    common = {"cluster": CLUSTER, "group": GROUP, "created_revision": 7, "replica": 1, "view": 3}
    votes = suffix() + b"i" * 48
    said = gathered.encode([_filled(CommitHeader), _filled(PrepareOkHeader), _filled(CommitHeader)])
    headers = (
        (DoViewChangeHeader(op=6, commit=2, log_view=2, incarnations=3, **common, **body_fields(votes)), votes),
        (StartViewHeader(op=6, commit=2, incarnation=5, **common, **body_fields(suffix())), suffix()),
        (StateTransferTargetHeader(available=1, nonce=5, commit_op=9, **common, **body_fields(manifest)), manifest),
        (GatheredHeader(cluster=CLUSTER, replica=1, **body_fields(said)), said),
    )
    return bare + entries + [encode_frame(header, body) for header, body in headers]


@cache
def link_headers() -> list[bytes]:
    """Headers of handshakes and of sessions that are forwarded."""
    others = sorted(set(HEADERS) - REPLICA_COMMANDS - {5, 8})
    return [_bare(HEADERS[command]) for command in others]


@cache
def blank_suffix() -> bytes:
    """A suffix with an entry that its sender does not hold."""
    headers = [PrepareHeader.unpack(suffix()[at : at + 256]) for at in range(0, len(suffix()), 256)]
    headers[2] = PrepareHeader.blank(4)
    return encode_suffix(headers)


@cache
def manifests() -> list[bytes]:
    return [encode_manifest([]), encode_manifest([Artifact(kind, kind, 100, 7) for kind in range(5)])]


@cache
def client_tables() -> list[bytes]:
    table = table_of({7: 10, 9: 20})
    for number, op in ((1, 11), (2, 12), (3, 13)):
        table.commit_request(client_id(7), 10, number, number * 3, 128, op, op * 1000, b"reply" * number)
    return [client_table_wire.encode(client_table_wire.view_of(table, 50))]


@cache
def snapshots() -> list[bytes]:
    return [encoded(populated()), snapshot.reencode(snapshot.decode(encoded(populated())))]


@cache
def checkpoints() -> list[bytes]:
    window = [[bytes(41), 40, 7, 1000], [b"k" * 41, 41, 9, 1001]]
    state = checkpoint.PartitionCheckpoint(50, 3, 2000, 90, 10, 9000, 2, 5, {1: 20, 9: 30}, {0: 15}, window)
    return [checkpoint.encode(state)]
