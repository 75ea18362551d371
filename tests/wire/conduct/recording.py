"""The recorded exchanges: one line of ``tests/golden/tcp.jsonl.xz`` each, read only.

A *source* is one recording of one server that started empty; its lines are in order, but exchanges that had been seen
before in the same or another source are left out. Whoever replays a source puts back what a line needs.
"""

import json
import lzma
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "tcp.jsonl.xz"
SINGLE_NODE_SOURCES = ("cli-edge2", "cli-014a", "cli-014", "pya", "py", "raw2")
"""Sources of one server; the others need a cluster."""
EXPLICIT_LOGINS = frozenset({"raw2"})
"""Sources in which every login is a line of its own; in the others most logins are left out."""
ONE_AT_A_TIME = frozenset({"cli-edge2", "cli-014a", "cli-014"})
"""Sources of command lines: each connection logs out and ends before the next begins."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one request, in a form in which two servers may be compared.

    ``outcome`` is ``reply``, ``eviction``, ``silence`` or ``closed``; ``operation`` the operation byte of a reply;
    ``status`` and ``result`` its codes; ``value`` its decoded payload; ``reason`` and ``window`` those of an eviction.
    """

    outcome: str
    status: int | None = None
    result: int | None = None
    operation: int | None = None
    reason: int | None = None
    window: tuple[int, int] | None = None
    value: Any = None


@dataclass(frozen=True, slots=True)
class Exchange:
    """One recorded request and the frame that answered it (``None``: none did)."""

    seq: int
    source: str
    connection: int
    note: str
    operation: str
    operation_byte: int
    code: int
    request_header: bytes
    request_body: bytes
    checksummed: bool
    redacted_request: bool
    adapted: bool
    outcome: str
    reply: bytes | None

    @property
    def client(self) -> bytes:
        return self.request_header[128:144]

    @property
    def session(self) -> int:
        return int.from_bytes(self.request_header[184:192], "little")

    @property
    def request(self) -> int:
        return int.from_bytes(self.request_header[168:176], "little")


def load(path: Path = GOLDEN, sources: Iterable[str] = SINGLE_NODE_SOURCES) -> list[Exchange]:
    """All exchanges of the given sources, in order."""
    wanted = frozenset(sources)
    opener = lzma.open if path.suffix == ".xz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        return [_exchange(line) for line in map(json.loads, lines) if line["source"] in wanted]


def _exchange(line: dict[str, Any]) -> Exchange:
    header = line.get("reply_header")
    whole = header and not line.get("reply_body_omitted")
    return Exchange(
        seq=line["seq"],
        source=line["source"],
        connection=line["connection"],
        note=line["note"],
        operation=line["operation"],
        operation_byte=line["operation_byte"],
        code=line["code"],
        request_header=bytes.fromhex(line["request_header"]),
        request_body=bytes.fromhex(line["request_body"]),
        checksummed=line["request_fields"]["request_checksum"] == "xxh3",
        redacted_request="request token" in line.get("redacted", ()),
        adapted=bool(line.get("adapted")),
        outcome=line["outcome"],
        reply=bytes.fromhex(header + (line["reply_body"] if whole else "")) if header else None,
    )
