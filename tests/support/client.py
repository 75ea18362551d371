"""A small synchronous client of the binary protocol, written against the wire format alone.

It knows nothing of the server's code: a mistake that the server's encoder and decoder share is found here. One request
is in flight at a time; nothing is retried or resent, so a test knows exactly what it asked for.
"""

import secrets
import struct
from collections.abc import Sequence
from types import TracebackType

import xxhash

from tests.support.batches import Batch, Message, decode_batches, encode_batch
from tests.support.frames import (
    BY_OFFSET,
    COMMAND_EVICTION,
    COMMAND_REPLY,
    CREATE_STREAM,
    CREATE_TOPIC,
    DELETE_OFFSET,
    DELETE_STREAM,
    GET_OFFSET,
    HEADER_SIZE,
    LOGOUT,
    NON_REPLICATED,
    PING,
    POLL,
    PROTOCOL_VERSION,
    REGISTER,
    SEND_MESSAGES,
    STORE_OFFSET,
    Connection,
    ConnectionLost,
    Frame,
    identifier,
    option_block,
    request_header,
    send_body,
    text,
)

__all__ = ["Client", "ConnectionLost", "Evicted", "Message", "Refused"]


class Refused(Exception):
    """The server answered with an error code, in the header (``status``) or in the result section (``result``)."""

    def __init__(self, code: int, channel: str) -> None:
        super().__init__(f"{channel} {code}")
        self.code = code
        self.channel = channel


class Evicted(Exception):
    """The server answered with an eviction."""

    def __init__(self, reason: int) -> None:
        super().__init__(f"eviction, reason {reason}")
        self.reason = reason


def topic_body(stream: int | str, name: str, partitions: int = 1, options: dict[str, str] | None = None) -> bytes:
    """The body of a request that creates a topic."""
    return identifier(stream) + struct.pack("<I", partitions) + text(name) + option_block(options or {})


class Client:
    """One logged-in (or not yet logged-in) connection with its session and request numbers."""

    def __init__(self, host: str, port: int, timeout: float = 30.0) -> None:
        self.connection = Connection(host, port, timeout)
        self.client = secrets.token_bytes(16)
        self.session = 0
        self.request = 0

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.connection.close()

    def exchange(self, operation: int, body: bytes = b"", *, request: int, code: int = 0, checksum: int = 0) -> Frame:
        """Send one request and return the frame that answers it, whatever it is."""
        self._ask(operation, body, request, code, checksum)
        return self._answer()

    def _ask(self, operation: int, body: bytes, request: int, code: int = 0, checksum: int = 0) -> None:
        header = request_header(
            operation=operation,
            size=HEADER_SIZE + len(body),
            client=self.client,
            session=0 if operation == REGISTER else self.session,
            request=request,
            code=code,
            checksum=checksum,
        )
        self.connection.send(header + body)

    def _answer(self) -> Frame:
        try:
            return self.connection.receive()
        except TimeoutError as error:
            raise ConnectionLost("no answer in time") from error

    def login(self, username: str = "iggy", password: str = "iggy") -> int:
        """Register with a new client id and return the session."""
        self.client = secrets.token_bytes(16)
        self.request = 0
        body = (
            struct.pack("<I", PROTOCOL_VERSION)
            + text("shardsrv-tests")
            + text("1")
            + text(username)
            + text(password)
            + b"\0\0\0\0"
        )
        payload = self._accepted(self.exchange(REGISTER, body, request=0, checksum=xxhash.xxh3_64_intdigest(body)))
        self.session = int.from_bytes(payload[4:12], "little")
        return self.session

    def logout(self) -> None:
        self.request += 1
        self._accepted(self.exchange(LOGOUT, request=self.request))
        self.session = 0

    def read(self, code: int, body: bytes = b"") -> bytes:
        """A request that is not replicated; returns the reply's body."""
        return self._accepted(self.exchange(NON_REPLICATED, body, request=max(self.request, 1), code=code))

    def change(self, operation: int, body: bytes) -> bytes:
        """A replicated request; consumes a request number and returns the payload behind the result section."""
        self.request += 1
        checksum = 0 if operation in (SEND_MESSAGES, STORE_OFFSET, DELETE_OFFSET) else xxhash.xxh3_64_intdigest(body)
        return self._accepted(self.exchange(operation, body, request=self.request, checksum=checksum))

    def changes(self, operation: int, bodies: Sequence[bytes], ahead: int = 32) -> list[bytes]:
        """As many `change`s, of which the client has ``ahead`` under way at once."""
        payloads = []
        for number, body in enumerate(bodies):
            self.request += 1
            self._ask(operation, body, self.request, checksum=xxhash.xxh3_64_intdigest(body))
            if number >= ahead:
                payloads.append(self._accepted(self._answer()))
        return payloads + [self._accepted(self._answer()) for _ in bodies[len(payloads) :]]

    def ping(self) -> None:
        self.read(PING)

    def create_stream(self, name: str) -> int:
        """Returns the id of the stream."""
        return int.from_bytes(self.change(CREATE_STREAM, text(name))[:4], "little")

    def delete_stream(self, stream: int | str) -> None:
        self.change(DELETE_STREAM, identifier(stream))

    def create_topic(
        self, stream: int | str, name: str, partitions: int = 1, options: dict[str, str] | None = None
    ) -> int:
        """Returns the id of the topic."""
        return int.from_bytes(self.change(CREATE_TOPIC, topic_body(stream, name, partitions, options))[:4], "little")

    def send(self, stream: int | str, topic: int | str, partition: int, payloads: Sequence[bytes]) -> int:
        """Send one batch to one partition; returns the offset of its first message."""
        return self.send_batch(stream, topic, partition, len(payloads), encode_batch(payloads))

    def send_batch(self, stream: int | str, topic: int | str, partition: int, count: int, batch: bytes) -> int:
        """Send a batch that is already encoded; returns the offset of its first message."""
        payload = self.change(SEND_MESSAGES, send_body(stream, topic, partition, count, batch))
        return struct.unpack_from("<Q", payload, 16)[0]

    def poll_batches(
        self,
        stream: int | str,
        topic: int | str,
        partition: int,
        *,
        strategy: int = BY_OFFSET,
        value: int = 0,
        count: int = 1000,
        auto_commit: bool = False,
        consumer: int | str = 1,
    ) -> tuple[int, list[Batch]]:
        """Committed offset of the partition and the records, every checksum verified."""
        body = (
            b"\1"
            + identifier(consumer)
            + identifier(stream)
            + identifier(topic)
            + struct.pack("<BI", 1, partition)
            + struct.pack("<BQIB", strategy, value, count, auto_commit)
        )
        reply = self.read(POLL, body)
        _partition, current, announced = struct.unpack_from("<IQI", reply)
        batches = decode_batches(reply[16:])
        found = sum(len(batch.messages) for batch in batches)
        if found != announced:
            raise AssertionError(f"a poll announced {announced} messages and returned {found}")
        return current, batches

    def poll(self, stream: int | str, topic: int | str, partition: int, **how: object) -> list[Message]:
        """The messages of one poll, in the order in which they came; see :meth:`poll_batches`."""
        _current, batches = self.poll_batches(stream, topic, partition, **how)  # type: ignore[arg-type]
        return [message for batch in batches for message in batch.messages]

    def poll_all(self, stream: int | str, topic: int | str, partition: int, count: int = 1000) -> list[Message]:
        """Every message of a partition from offset 0 on."""
        messages: list[Message] = []
        while True:
            start = messages[-1].offset + 1 if messages else 0
            more = self.poll(stream, topic, partition, value=start, count=count)
            if not more:
                return messages
            messages += more

    def store_offset(
        self, stream: int | str, topic: int | str, partition: int, offset: int, consumer: int | str = 1
    ) -> None:
        body = self._offset_target(stream, topic, partition, consumer) + struct.pack("<QB", offset, 1)
        self.change(STORE_OFFSET, body)

    def delete_offset(self, stream: int | str, topic: int | str, partition: int, consumer: int | str = 1) -> None:
        self.change(DELETE_OFFSET, self._offset_target(stream, topic, partition, consumer) + b"\1")

    def get_offset(self, stream: int | str, topic: int | str, partition: int, consumer: int | str = 1) -> int | None:
        """The stored offset, ``None`` when nothing is stored."""
        reply = self.read(GET_OFFSET, self._offset_target(stream, topic, partition, consumer))
        return struct.unpack_from("<Q", reply, 12)[0] if reply else None

    @staticmethod
    def _offset_target(stream: int | str, topic: int | str, partition: int, consumer: int | str) -> bytes:
        return b"\1" + identifier(consumer) + identifier(stream) + identifier(topic) + struct.pack("<BI", 1, partition)

    @staticmethod
    def _accepted(frame: Frame) -> bytes:
        if frame.command == COMMAND_EVICTION:
            raise Evicted(frame.eviction_reason)
        if frame.command != COMMAND_REPLY:
            raise AssertionError(f"a frame of command {frame.command} came in answer to a request")
        if frame.status:
            raise Refused(frame.status, "status")
        if frame.result:
            raise Refused(frame.result, "result")
        return frame.payload
