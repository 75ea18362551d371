"""Frames of the binary protocol: their headers, the socket that carries them, and the primitives of their bodies.

Frame: a header of 256 bytes, whose u32 at 48 is the length of the whole frame, then the body. Offsets of a request and
of a reply stand where they are read and written below.
"""

import socket
import struct
from dataclasses import dataclass

HEADER_SIZE = 256
COMMAND_REQUEST, COMMAND_REPLY, COMMAND_EVICTION = 5, 8, 13
REGISTER, NON_REPLICATED, LOGOUT = 1, 2, 3
CREATE_STREAM, DELETE_STREAM, PURGE_STREAM, CREATE_TOPIC, DELETE_TOPIC, PURGE_TOPIC = 128, 130, 131, 132, 134, 135
CREATE_PARTITIONS = 136
SEND_MESSAGES, STORE_OFFSET, DELETE_OFFSET = 160, 161, 162
PING, GET_STATS, GET_CLUSTER, GET_ME, POLL, GET_OFFSET, GET_STREAM, GET_TOPIC = 1, 10, 12, 20, 100, 120, 200, 300
RESULT_FRAMED = frozenset(
    {REGISTER, 64, 65, 66, 67, 68, *range(128, 138), *range(139, 150), STORE_OFFSET, DELETE_OFFSET}
)
"""Operations whose successful reply starts with a result section."""
PROTOCOL_VERSION = 11264
BY_OFFSET, BY_TIMESTAMP, FIRST, LAST, NEXT = 1, 2, 3, 4, 5


class ConnectionLost(Exception):
    """The connection ended or timed out before the whole answer was here: the outcome of the request is unknown."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame from the server."""

    header: bytes
    body: bytes

    @property
    def command(self) -> int:
        return self.header[60]

    @property
    def operation(self) -> int:
        return self.header[208]

    @property
    def status(self) -> int:
        return int.from_bytes(self.header[216:220], "little")

    @property
    def request(self) -> int:
        return int.from_bytes(self.header[200:208], "little")

    @property
    def commit(self) -> int:
        return int.from_bytes(self.header[184:192], "little")

    @property
    def eviction_reason(self) -> int:
        return self.header[255]

    @property
    def result(self) -> int | None:
        """Code of the result section, 0 for success; ``None`` when the reply has no such section."""
        if self.command != COMMAND_REPLY or self.status or self.operation not in RESULT_FRAMED or not self.body:
            return None
        count = int.from_bytes(self.body[:4], "little")
        return int.from_bytes(self.body[8:12], "little") if count else 0

    @property
    def payload(self) -> bytes:
        """The body behind the result section, where there is one."""
        return self.body[4:] if self.result == 0 else self.body


def request_header(
    *,
    operation: int,
    size: int,
    client: bytes,
    session: int,
    request: int,
    code: int = 0,
    checksum: int = 0,
    command: int = COMMAND_REQUEST,
) -> bytes:
    """The 256 bytes in front of a request's body."""
    header = bytearray(HEADER_SIZE)
    struct.pack_into("<I", header, 48, size)
    header[60] = command
    header[128:144] = client
    struct.pack_into("<Q", header, 144, checksum)
    struct.pack_into("<Q", header, 168, request)
    header[176] = operation
    struct.pack_into("<Q", header, 184, session)
    struct.pack_into("<I", header, 196, code)
    return bytes(header)


class Connection:
    """A socket that sends and receives whole frames."""

    def __init__(self, host: str, port: int, timeout: float = 30.0) -> None:
        """Connect; ``timeout`` in seconds holds for every later wait too. Raises ``OSError`` when nobody listens."""
        self.socket = socket.create_connection((host, port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()

    def send(self, data: bytes) -> None:
        """Write all bytes; raises :class:`ConnectionLost`."""
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    def receive(self) -> Frame:
        """The next frame. Raises :class:`ConnectionLost` at the end of the stream, ``TimeoutError`` when none comes."""
        header = self._read(HEADER_SIZE)
        size = int.from_bytes(header[48:52], "little")
        if size < HEADER_SIZE:
            raise ConnectionLost(f"a frame of {size} bytes")
        return Frame(header, self._read(size - HEADER_SIZE))

    def _read(self, size: int) -> bytes:
        while len(self._buffer) < size:
            try:
                chunk = self.socket.recv(max(65536, size - len(self._buffer)))
            except TimeoutError:
                raise
            except OSError as error:
                raise ConnectionLost(str(error)) from error
            if not chunk:
                raise ConnectionLost(f"closed after {len(self._buffer)} of {size} bytes")
            self._buffer += chunk
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def close(self) -> None:
        self.socket.close()

    def finish(self) -> None:
        """Tell the server that nothing more comes, wait until it has closed its side, and close."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
            while self.socket.recv(65536):
                pass
        except OSError:
            pass  # the other side was quicker, or keeps the connection: it ends here all the same
        self.close()


def text(value: str | bytes) -> bytes:
    """One length byte and the bytes."""
    data = value.encode() if isinstance(value, str) else value
    return bytes([len(data)]) + data


def identifier(value: int | str) -> bytes:
    """A numeric id (kind 1) or a name (kind 2)."""
    return struct.pack("<BBI", 1, 4, value) if isinstance(value, int) else b"\2" + text(value)


def option_block(options: dict[str, str]) -> bytes:
    """Options with their values as strings, in the order of the keys."""
    return b"".join(_field(key) + _field(options[key]) for key in sorted(options))


def _field(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<BI", 2, len(data)) + data


def send_body(stream: int | str, topic: int | str, partition: int, count: int, batch: bytes) -> bytes:
    """The body of send_messages: routing metadata, then the batch."""
    target = identifier(stream) + identifier(topic) + struct.pack("<BBI", 2, 4, partition) + struct.pack("<I", count)
    return struct.pack("<I", len(target)) + target + batch
