"""Replays the exchanges of one source against a server that started empty.

One recorded connection becomes one connection. Client ids and request numbers are sent as recorded; the session is the
one that this server gave, a recorded session that was wrong on purpose stays as wrong as it was. A request that nobody
answers is told from a slow answer by a ping behind it: requests of one connection are answered in order.
"""

import json
import secrets
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from tests.support import replies
from tests.support.frames import (
    COMMAND_EVICTION,
    DELETE_TOPIC,
    HEADER_SIZE,
    LOGOUT,
    NON_REPLICATED,
    PING,
    PROTOCOL_VERSION,
    REGISTER,
    Connection,
    ConnectionLost,
    Frame,
    identifier,
    request_header,
    text,
)
from tests.wire.conduct.compare import answer, difference, frame_of, without, without_newer_options
from tests.wire.conduct.deviations import Deviation
from tests.wire.conduct.recording import EXPLICIT_LOGINS, ONE_AT_A_TIME, Answer, Exchange

PARENTS = Path(__file__).with_name("parents.json")
ANSWER_TIMEOUT = 10.0
SENTINEL = 1 << 40
"""Request number of the ping behind a request that may stay unanswered."""
ROOT = ("iggy", "iggy")
PLAIN_USER = ("alice2", "alicepass2")


@dataclass(slots=True)
class Link:
    """One replayed connection: the socket, and the session as recorded and as given by this server."""

    connection: Connection
    client: bytes
    recorded_session: int = 0
    session: int = 0
    request: int = 0


@dataclass(slots=True)
class Mismatch:
    """An exchange that was answered differently from the recording."""

    exchange: Exchange
    expected: Answer
    found: Answer

    def __str__(self) -> str:
        exchange = self.exchange
        return f"{exchange.seq} {exchange.operation} ({exchange.note}): {difference(self.expected, self.found)}"


@dataclass(slots=True)
class Report:
    """What a replay found: exchanges compared, those without a deviation, deviations by class, what differed."""

    compared: int = 0
    exact: int = 0
    deviations: dict[str, int] = field(default_factory=dict)
    mismatches: list[Mismatch] = field(default_factory=list)


class Replayer:
    """One replay of one source; make a new one, with a new server, for the next."""

    def __init__(
        self,
        host: str,
        port: int,
        exchanges: list[Exchange],
        *,
        deviations: list[Deviation] | None = None,
        older_catalogue: bool = False,
        root: tuple[str, str] = ROOT,
    ) -> None:
        """``exchanges`` are of all sources; ``older_catalogue`` leaves out options that older servers do not know."""
        self.address = (host, port)
        self.by_seq = {exchange.seq: exchange for exchange in exchanges}
        self.deviations = deviations or []
        self.older_catalogue = older_catalogue
        self.root = root
        self.links: dict[int, Link] = {}
        self.token = b""
        self.parents = {entry["before"]: entry for entry in json.loads(PARENTS.read_text())}
        self.report = Report()

    def run(self, source: str) -> Report:
        """Replay every exchange of the source in order and compare."""
        for exchange in [one for one in self.by_seq.values() if one.source == source]:
            changes = self._changes(exchange)
            if "skip" in changes:
                continue
            if exchange.seq in self.parents and "status" not in changes:
                self._make_parents(exchange, self.parents[exchange.seq])
            frame = self._send(exchange)
            self._compare(exchange, changes, frame)
        self._close_links()
        return self.report

    def _changes(self, exchange: Exchange) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        for deviation in self.deviations:
            if deviation.covers(exchange):
                self.report.deviations[deviation.name] = self.report.deviations.get(deviation.name, 0) + 1
                changes = {**deviation.change, **changes}
        return changes

    def _compare(self, exchange: Exchange, changes: dict[str, Any], frame: Frame | str) -> None:
        found = answer(exchange, frame)
        expected = self._expected(exchange, changes)
        keys = frozenset(changes.get("drop_options", ()))
        fields = frozenset(changes.get("drop_fields", ()))
        self.report.compared += 1
        self.report.exact += not changes
        if "served" in changes:
            found = Answer(found.outcome, found.status, found.result, found.operation)
        expected, found = without(expected, keys, fields), without(found, keys, fields)
        if expected != found:
            self.report.mismatches.append(Mismatch(exchange, expected, found))
        if changes.get("undo") == "delete_topic" and found.outcome == "reply" and found.status == found.result == 0:
            self._delete_topic(exchange)

    def _expected(self, exchange: Exchange, changes: dict[str, Any]) -> Answer:
        if "status" in changes:
            operation = changes.get("operation", exchange.operation_byte)
            return Answer("reply", status=changes["status"], operation=operation)
        if "reason" in changes:
            return Answer("eviction", reason=changes["reason"], window=(0, 0))
        if "result" in changes:
            return Answer("reply", status=0, result=changes["result"], operation=exchange.operation_byte)
        if "served" in changes:
            return Answer("reply", status=0, operation=exchange.operation_byte)
        if "outcome" in changes:
            return Answer(changes["outcome"])
        if "as_source" in changes:
            exchange = next(
                one
                for one in self.by_seq.values()
                if one.source == changes["as_source"] and one.note == exchange.note and one.code == exchange.code
            )
        return answer(exchange, exchange.outcome if exchange.reply is None else frame_of(exchange.reply))

    def _make_parents(self, exchange: Exchange, entry: dict[str, Any]) -> None:
        link = (
            self._link(exchange.source, entry["connection"], exchange.client)
            if "connection" in entry
            else self._new_root_link()
        )
        for seq in entry["send"]:
            parent = self.by_seq[seq]
            link.request += 1
            body = parent.request_body
            checksum = xxhash.xxh3_64_intdigest(body) if parent.checksummed else 0
            frame = self._exchange(link, parent.operation_byte, body, link.request, parent.code, checksum)
            if not isinstance(frame, Frame) or frame.command == COMMAND_EVICTION or frame.status or frame.result:
                raise AssertionError(
                    f"the parent {seq} ({parent.note}) of exchange {exchange.seq} was refused: {frame}"
                )
            self._remember_token(parent, frame)
            if parent.operation_byte == LOGOUT:
                link.session = link.recorded_session = 0
        if "connection" not in entry:
            self._close(link)

    def _send(self, exchange: Exchange) -> Frame | str:
        link = self._link(exchange.source, exchange.connection, exchange.client)
        if exchange.session and not link.recorded_session and exchange.source not in EXPLICIT_LOGINS:
            self._log_in(link, exchange)
        body, checksum = self._body(exchange)
        header = bytearray(exchange.request_header)
        struct.pack_into("<I", header, 48, HEADER_SIZE + len(body))
        struct.pack_into("<Q", header, 144, checksum)
        if exchange.session and link.recorded_session:
            session = link.session + exchange.session - link.recorded_session
            struct.pack_into("<Q", header, 184, session)
        link.request = max(link.request, exchange.request if exchange.operation_byte != NON_REPLICATED else 0)
        frame = self._ask(link, bytes(header) + body, exchange.outcome == "silence")
        if isinstance(frame, Frame) and frame.command != COMMAND_EVICTION and not frame.status:
            self._follow_session(link, exchange, frame)
            self._remember_token(exchange, frame)
        return frame

    def _body(self, exchange: Exchange) -> tuple[bytes, int]:
        """The body to send and its checksum: as recorded, but with a token or an option catalogue of this server."""
        body = exchange.request_body
        if exchange.redacted_request:
            body = body.replace(b"T" * len(self.token), self.token)
        if self.older_catalogue and exchange.adapted:
            body = without_newer_options(body)
        if body == exchange.request_body:
            return body, int.from_bytes(exchange.request_header[144:152], "little")
        return body, xxhash.xxh3_64_intdigest(body) if exchange.checksummed else 0

    def _follow_session(self, link: Link, exchange: Exchange, frame: Frame) -> None:
        if exchange.operation_byte == REGISTER and exchange.reply is not None:
            link.session = struct.unpack_from("<Q", frame.payload, 4)[0] if len(frame.payload) >= 12 else 0
            link.recorded_session = struct.unpack_from("<Q", exchange.reply, HEADER_SIZE + 8)[0]
            link.request = 0
        elif exchange.operation_byte == LOGOUT:
            link.session = link.recorded_session = 0

    def _remember_token(self, exchange: Exchange, frame: Frame) -> None:
        if exchange.operation == "create_personal_access_token" and frame.result == 0:
            self.token = frame.payload[1:]

    def _link(self, source: str, connection: int, client: bytes) -> Link:
        if connection not in self.links:
            if source in ONE_AT_A_TIME:
                self._close_links()
            self.links[connection] = Link(Connection(*self.address, timeout=ANSWER_TIMEOUT), client)
        return self.links[connection]

    def _new_root_link(self) -> Link:
        link = Link(Connection(*self.address, timeout=ANSWER_TIMEOUT), secrets.token_bytes(16))
        self._register(link, self.root)
        return link

    def _close_links(self) -> None:
        for link in self.links.values():
            self._close(link)
        self.links.clear()

    def _close(self, link: Link) -> None:
        """Log out, close, and wait until the server has closed too: it does not count the connection any more."""
        if link.session:
            self._exchange(link, LOGOUT, b"", link.request + 1, 0, 0)
        link.connection.finish()

    def _log_in(self, link: Link, exchange: Exchange) -> None:
        """The login that the recording left out, by the user whose exchange this is."""
        link.client = exchange.client
        self._register(link, PLAIN_USER if exchange.note.startswith("plain user") else self.root)
        link.recorded_session = exchange.session

    def _register(self, link: Link, user: tuple[str, str]) -> None:
        names = text("rust-sdk") + text("0.11.0") + text(user[0]) + text(user[1])
        body = struct.pack("<I", PROTOCOL_VERSION) + names + b"\0\0\0\0"
        frame = self._exchange(link, REGISTER, body, 0, 0, xxhash.xxh3_64_intdigest(body))
        if not isinstance(frame, Frame) or frame.command == COMMAND_EVICTION or frame.result != 0:
            raise AssertionError(f"the login of {user[0]} was refused: {frame}")
        link.session = struct.unpack_from("<Q", frame.payload, 4)[0]

    def _delete_topic(self, exchange: Exchange) -> None:
        cursor = replies.Cursor(exchange.request_body)
        stream = cursor.take(2 + exchange.request_body[1])
        cursor.take(4)
        link = self._new_root_link()
        body = stream + identifier(cursor.name())
        frame = self._exchange(link, DELETE_TOPIC, body, 1, 0, xxhash.xxh3_64_intdigest(body))
        if not isinstance(frame, Frame) or frame.result != 0:
            raise AssertionError(f"the topic of exchange {exchange.seq} could not be deleted: {frame}")
        self._close(link)

    def _exchange(self, link: Link, operation: int, body: bytes, request: int, code: int, checksum: int) -> Frame | str:
        header = request_header(
            operation=operation,
            size=HEADER_SIZE + len(body),
            client=link.client,
            session=0 if operation == REGISTER else link.session,
            request=request,
            code=code if operation == NON_REPLICATED else 0,
            checksum=checksum,
        )
        return self._ask(link, header + body, False)

    def _ask(self, link: Link, data: bytes, may_be_silent: bool) -> Frame | str:
        """The frame that answers, or ``silence`` or ``closed``."""
        ping = request_header(
            operation=NON_REPLICATED,
            size=HEADER_SIZE,
            client=link.client if any(link.client) else b"\1" * 16,
            session=link.session,
            request=SENTINEL,
            code=PING,
        )
        try:
            link.connection.send(data + (ping if may_be_silent else b""))
            frame = link.connection.receive()
            if may_be_silent:
                if frame.request == SENTINEL:
                    return "silence"
                link.connection.receive()
        except TimeoutError:
            return "silence"
        except ConnectionLost:
            return "closed"
        return frame
