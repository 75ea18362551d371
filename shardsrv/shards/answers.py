"""Answers: every way in which a request of a local connection ends.

Invariants: each delivered frame is answered exactly once (`reply`, `status`, `result`, `evict`) or let go (`silence`),
so that the lockstep of the reactor goes on; an answer to a connection that is gone is dropped. Source: wire-protocol.md
2.3, 2.4, 4.2.
"""

from shardsrv._core import pack_reply
from shardsrv.bus._frame import Frame
from shardsrv.bus._net import Reactor
from shardsrv.shards import records
from shardsrv.shards.links import Links
from shardsrv.wire.constants import KNOWN_OPERATIONS, ZERO_ID, EvictionReason, Operation
from shardsrv.wire.frames import build_eviction, refusal_body


class Answers:
    """Builds reply frames and queues them on the shard's reactor."""

    def __init__(self, reactor: Reactor, cluster: bytes) -> None:
        self._reactor = reactor
        self._cluster = cluster
        self.metadata_commit = 0
        """The metadata op that this shard has applied: the `commit` of replies to reads."""

    def reply(
        self,
        frame: Frame,
        body: bytes,
        *,
        op: int = 0,
        commit: int = 0,
        timestamp: int = 0,
        operation: int | None = None,
        client: bytes | None = None,
    ) -> None:
        """A successful answer. ``operation`` differs from the request's where another operation was committed (64,
        65, 68)."""
        header = pack_reply(
            frame.header,
            status=0,
            body_length=len(body),
            op=op,
            commit=commit,
            timestamp=timestamp,
            operation=frame.operation if operation is None else operation,
            cluster=self._cluster,
            client=client,
        )
        self._reactor.reply_one(frame.connection, header + body)

    def committed(self, frame: Frame, op: int, timestamp: int, operation: int, client: bytes, body: bytes) -> None:
        """A write that took effect as entry ``op``: the answer to most requests, in one call."""
        self._reactor.reply_one(
            frame.connection,
            frame.committed_reply(op, timestamp, operation, self._cluster, client, body),
        )

    def read(self, frame: Frame, body: bytes) -> None:
        """Answer to a read: `op` echoes the session, `commit` is the metadata commit (wire-protocol.md 2.3)."""
        self.reply(frame, body, op=frame.session, commit=self.metadata_commit, timestamp=frame.timestamp)

    def parts(self, frame: Frame, parts: list, length: int) -> None:
        """Answer to a read whose body is given as buffers that are written as they lie."""
        header = pack_reply(
            frame.header,
            status=0,
            body_length=length,
            op=frame.session,
            commit=self.metadata_commit,
            timestamp=frame.timestamp,
            operation=frame.operation,
            cluster=self._cluster,
        )
        parts.insert(0, header)
        self._reactor.reply(frame.connection, parts)

    def status(self, frame: Frame, code: int) -> None:
        """A refusal in the header, with an empty body."""
        operation = (
            frame.operation if frame.operation in KNOWN_OPERATIONS and frame.operation else Operation.NON_REPLICATED
        )
        header = pack_reply(
            frame.header,
            status=code,
            body_length=0,
            op=frame.session,
            commit=self.metadata_commit,
            timestamp=frame.timestamp,
            operation=operation,
            cluster=self._cluster,
        )
        self._reactor.reply_one(frame.connection, header)

    def result(self, frame: Frame, code: int) -> None:
        """A refusal in the result section, status 0."""
        self.reply(frame, refusal_body(code), commit=self.metadata_commit)

    def evict(self, frame: Frame, reason: int) -> None:
        """An eviction frame; the socket stays open (wire-protocol.md 2.4)."""
        client = frame.client if frame.client != ZERO_ID else frame.connection.to_bytes(16, "little")
        self._reactor.reply_one(frame.connection, build_eviction(client, EvictionReason(reason)))

    def evict_unasked(self, connection: int, client: bytes, reason: int) -> None:
        """An eviction that answers no request: the client reads it in the place of its next reply."""
        self._reactor.reply_one(connection, build_eviction(client, EvictionReason(reason)))

    def silence(self, frame: Frame) -> None:
        """No answer: only where the protocol itself demands silence."""
        self._reactor.resume(frame.connection)


class Origin:
    """Who waits for a request, and how the answer gets there."""

    __slots__ = ()

    def committed(self, op: int, timestamp: int, operation: int, reply: bytes) -> None:
        """The request took effect as entry ``op`` with ``operation``."""
        raise NotImplementedError

    def refused(self, outcome: int, status: int) -> None:
        """The request was refused (`records.REFUSED_STATUS` ...)."""
        raise NotImplementedError


class FrameOrigin(Origin):
    """Origin of a request that came from a connection of this shard: its answer goes straight to the reactor."""

    __slots__ = ("answers", "client", "frame")

    def __init__(self, answers: Answers, frame: Frame, client: bytes) -> None:
        self.answers = answers
        self.frame = frame
        self.client = client

    def committed(self, op: int, timestamp: int, operation: int, reply: bytes) -> None:
        """The request took effect as entry ``op`` with ``operation``."""
        self.answers.committed(self.frame, op, timestamp, operation, self.client, reply)

    def refused(self, outcome: int, status: int) -> None:
        """The request was refused (`records.REFUSED_STATUS` ...)."""
        if outcome == records.EVICTED:
            self.answers.evict(self.frame, status)
        elif outcome == records.REFUSED_RESULT:
            self.answers.result(self.frame, status)
        elif outcome == records.SILENT:
            self.answers.silence(self.frame)
        else:
            self.answers.status(self.frame, status)


class RemoteOrigin(Origin):
    """Origin of a partition request that came over a lane: its answer goes back as a `PartitionReply`."""

    __slots__ = ("home", "links", "token")

    def __init__(self, links: Links, home: int, token: int) -> None:
        self.links = links
        self.home = home
        self.token = token

    def committed(self, op: int, timestamp: int, operation: int, reply: bytes) -> None:
        """See `FrameOrigin.committed`."""
        record = records.PartitionReply(self.token, records.DONE, 0, op, timestamp)
        self.links.send(self.home, records.PARTITION_REPLY, record.pack(), reply)

    def refused(self, outcome: int, status: int) -> None:
        """See `FrameOrigin.refused`."""
        record = records.PartitionReply(self.token, outcome, status, 0, 0)
        self.links.send(self.home, records.PARTITION_REPLY, record.pack())


class NoOrigin(Origin):
    """Origin of the node's own requests that nobody waits for."""

    __slots__ = ()

    def committed(self, op: int, timestamp: int, operation: int, reply: bytes) -> None:
        """Nothing to tell anyone."""

    def refused(self, outcome: int, status: int) -> None:
        """Nothing to tell anyone: the cause asks again when it still holds."""


NOBODY = NoOrigin()
