"""One connection that is fuzzed: volleys of frames go out, what comes back is held against what must come back.

A volley ends with a ping of a number of its own, so that the end of its answers is known: a node that answers too
little, twice, out of order or not at all is found at once. A volley that breaks the framing ends with the connection.
"""

import secrets
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.client import Client
from tests.support.frames import (
    COMMAND_EVICTION,
    COMMAND_REPLY,
    COMMAND_REQUEST,
    HEADER_SIZE,
    NON_REPLICATED,
    PING,
    ConnectionLost,
    Frame,
    request_header,
)
from tests.support.node import Node

METADATA = range(128, 160)
UNAUTHENTICATED_MAX = 64 << 10
"""Bytes of a frame that a connection without a session may send."""


class Unexpected(Exception):
    """What came back is not an answer to what was sent; the text says why."""


@dataclass(frozen=True)
class Volley:
    """Frames in a row. ``breaking``: bytes behind them after which the node must end the connection."""

    frames: Sequence[bytes]
    breaking: bytes = b""

    def requests(self) -> list[bytes]:
        """The frames that are answered, in order: those whose command is a request."""
        return [one for one in self.frames if one[60] == COMMAND_REQUEST]


def number_of(frame: bytes) -> int:
    """The request number."""
    return int.from_bytes(frame[168:176], "little")


class Line:
    """See the module. ``logged_in`` connections use the session of a client of the test's own."""

    def __init__(self, node: Node, logged_in: bool) -> None:
        self.logged_in = logged_in
        self.client = node.client() if logged_in else Client(node.host, node.port)
        if not logged_in:
            self.client.client = secrets.token_bytes(16)
        self.socket = self.client.connection.socket
        self.socket.setblocking(False)
        self.volley = Volley([])
        self.sentinel = 0
        self.pending = memoryview(b"")
        self.received = bytearray()
        self.answers: list[Frame] = []
        self.closed = False
        self.done = True
        self._highest = 0

    def begin(self, volley: Volley) -> None:
        """Queue a volley; `write` and `read` carry it out."""
        self.volley, self.done, self.answers = volley, False, []
        self.sentinel = 1 + secrets.randbits(60)
        ping = request_header(
            operation=NON_REPLICATED,
            size=HEADER_SIZE,
            client=self.client.client,
            session=self.client.session,
            request=self.sentinel,
            code=PING,
        )
        self.pending = memoryview(b"".join(volley.frames) + ping + volley.breaking)

    def write(self) -> None:
        """Send what the socket takes; behind a broken frame nothing comes any more."""
        try:
            self.pending = self.pending[self.socket.send(self.pending[: 1 << 18]) :]
        except BlockingIOError:
            return
        except OSError:
            self.pending = memoryview(b"")
        if not self.pending and self.volley.breaking and not self.closed:
            try:
                self.socket.shutdown(socket.SHUT_WR)
            except OSError:
                return  # the node was quicker

    def read(self) -> None:
        """Take what came; sets ``done`` when the answers are complete. Raises `Unexpected`."""
        try:
            data = self.socket.recv(1 << 18)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        self.received += data
        self._frames()
        if not data:
            self.closed = self.done = True
            self.socket.close()
            if max(map(len, self.volley.frames)) > UNAUTHENTICATED_MAX:
                return  # an earlier frame may have ended the session, and a large one then ends the connection
            if not self.volley.breaking:
                raise Unexpected(f"the node ended a connection whose framing holds, {self.unanswered()}")
        elif not self.volley.breaking and self._sentinel_came():
            self.done = True
        if self.done:
            self.check()

    def check(self) -> None:
        """The answers are those that were asked for, in order. Raises `Unexpected`."""
        if not self._sentinel_came():
            raise Unexpected(f"the frames before a broken one are not all answered: {self.unanswered()}")
        requests = self.volley.requests()
        found = [one.request for one in self.answers[:-1] if one.command == COMMAND_REPLY]
        evictions = sum(one.command == COMMAND_EVICTION for one in self.answers)
        if len(found) + evictions != len(self.answers) - 1:
            raise Unexpected("a frame that is neither a reply nor an eviction")
        silent = sum(self._may_be_silent(one) for one in requests)
        if len(found) + evictions < len(requests) - silent:
            raise Unexpected(f"{len(found)} replies, {evictions} evictions for {len(requests)} requests")
        left = iter([number_of(one) for one in requests])
        if not all(number in left for number in found):
            raise Unexpected("replies are not in the order of the requests")

    def _may_be_silent(self, frame: bytes) -> bool:
        """Whether the protocol asks for silence: a metadata command with a number that its session used before."""
        if frame[176] not in METADATA:
            return False
        used = number_of(frame) <= self._highest
        self._highest = max(self._highest, number_of(frame))
        return used

    def unanswered(self) -> str:
        """The first frame that has no answer, for people."""
        requests = self.volley.requests()
        if len(self.answers) >= len(requests):
            return f"all {len(requests)} requests are answered, {len(self.pending)} bytes are unsent"
        frame = requests[len(self.answers)]
        return f"request {len(self.answers)} of {len(requests)}, operation {frame[176]}: {frame[:2000].hex()}"

    def _sentinel_came(self) -> bool:
        return bool(self.answers) and self.answers[-1].request == self.sentinel

    def _frames(self) -> None:
        """Cut what came into frames."""
        at = 0
        while len(self.received) - at >= HEADER_SIZE:
            (size,) = struct.unpack_from("<I", self.received, at + 48)
            if size < HEADER_SIZE:
                raise Unexpected(f"a frame of {size} bytes")
            if len(self.received) - at < size:
                break
            frame = bytes(self.received[at : at + size])
            self.answers.append(Frame(frame[:HEADER_SIZE], frame[HEADER_SIZE:]))
            at += size
        del self.received[:at]

    def session_is_gone(self) -> bool:
        """Whether the session ended by what was sent: some answer of the last volley says so."""
        return any(one.command == COMMAND_EVICTION or one.status == 40 for one in self.answers)

    def close(self) -> None:
        self.closed = True
        self.client.close()


__all__ = ["ConnectionLost", "Line", "Unexpected", "Volley"]
