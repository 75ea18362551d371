"""The router: what happens to each frame of a connection of this shard.

Every frame is answered exactly once (see `shards.answers`). Order of checks (wire-protocol.md 2.2, 3.8, 4.2): the
command, the field rules of the header, the request checksum, the session, the body, the target, the permission. A known
code that this version does not serve gets status 5.
"""

from collections.abc import Callable
from typing import Any

import trio

from shardsrv._core import BatchRefused, xxh3
from shardsrv.bus._frame import Frame
from shardsrv.errors import DecodeError, RequestRefused
from shardsrv.shards.answers import Answers
from shardsrv.shards.encryption import INLINE_MAX, Cipher
from shardsrv.shards.metadata_requests import MetadataRequests
from shardsrv.shards.offset_writes import OffsetWrites
from shardsrv.shards.partition_writes import PartitionWrites
from shardsrv.shards.reads import Reads
from shardsrv.shards.segment_deletes import SegmentDeletes
from shardsrv.shards.session import Session
from shardsrv.shards.sessions import Sessions
from shardsrv.shards.target import Target
from shardsrv.shards.targets import Targets
from shardsrv.wire.constants import KNOWN_OPERATIONS, MAX_OP, ZERO_ID, Command, EvictionReason, Operation
from shardsrv.wire.cursor import Cursor
from shardsrv.wire.error_codes import ErrorCode
from shardsrv.wire.primitives import IDENTIFIER_CODEC, PARTITIONING_CODEC

_SEND = int(Operation.SEND_MESSAGES)
_REQUEST = int(Command.REQUEST)
METADATA = range(128, 160)

TARGETS_MAX = 4096
"""Resolved targets that one connection may hold: keys of messages are the client's choice and may be without end."""


class Router:
    """Dispatch on one shard that owns partitions and connections."""

    def __init__(
        self,
        *,
        answers: Answers,
        sessions: Sessions,
        targets: Targets,
        reads: Reads,
        writes: PartitionWrites,
        offsets: OffsetWrites,
        segments: SegmentDeletes,
        metadata: MetadataRequests,
        cipher: Cipher | None,
        start: Callable[..., None],
        step: Callable[..., None],
    ) -> None:
        self._answers = answers
        self._sessions = sessions
        self._connections = sessions.by_connection
        self._targets = targets
        self._reads = reads
        self._writes = writes
        self._offsets = offsets
        self._segments = segments
        self._metadata = metadata
        self._cipher = cipher
        self._start = start
        self._step = step
        self._encrypting = 0
        self.metadata_op = 0
        """The metadata op that this shard has applied; resolved targets of an older one are looked up again."""

    @property
    def in_flight(self) -> int:
        """Sends that are being encrypted."""
        return self._encrypting

    # ------------------------------------------------------------------------------------------------ frames

    def on_frame(self, frame: Frame) -> None:
        """A complete frame of a connection."""
        operation = frame.operation
        session = self._connections[frame.connection]
        session.active = True
        if operation == _SEND and session.number and frame.session and frame.request and frame.command == _REQUEST:
            self._send(frame, session)
            return
        if frame.command != Command.REQUEST:
            self._answers.silence(frame)
            return
        refusal = self._field_rules(frame)
        if refusal:
            self._answers.status(frame, refusal)
        elif operation == Operation.NON_REPLICATED:
            self._reads.serve(frame, session)
        elif operation == Operation.REGISTER:
            self._sessions.login(frame)
        elif operation == Operation.LOGOUT:
            if session.bound:
                self._metadata.logout(frame, session)
            else:
                self._answers.reply(frame, b"")
        elif not session.bound:
            self._answers.evict(frame, EvictionReason.NO_SESSION)
        elif operation == Operation.SEND_MESSAGES:
            self._send(frame, session)
        elif operation == Operation.DELETE_SEGMENTS:
            self._segments.delete(frame, session)
        elif operation in METADATA:
            self._metadata.serve(frame, session)
        elif operation == Operation.STORE_CONSUMER_OFFSET:
            self._offsets.store(frame, session)
        elif operation == Operation.DELETE_CONSUMER_OFFSET:
            self._offsets.delete(frame, session)
        else:
            self._answers.evict(frame, EvictionReason.INVALID_REQUEST_OPERATION)

    def on_close(self, connection: int, reason: int) -> None:
        """A connection ended: a bound session is logged out (wire-protocol.md 3.7)."""
        session = self._sessions.closed(connection)
        if session is not None:
            self._metadata.ended(session.client, session.number, session.user_id)

    def _field_rules(self, frame: Frame) -> int:
        """0, or the status of a header that breaks the rules of wire-protocol.md 2.2; the reference stays silent
        there."""
        operation = frame.operation
        if frame.client == ZERO_ID or operation not in KNOWN_OPERATIONS or operation == 0:
            return ErrorCode.INVALID_COMMAND
        if operation == Operation.REGISTER:
            if frame.session or frame.request:
                return ErrorCode.INVALID_COMMAND
        elif operation != Operation.NON_REPLICATED and not (
            0 < frame.session <= MAX_OP and 0 < frame.request <= MAX_OP
        ):
            return ErrorCode.INVALID_COMMAND
        checksum = frame.request_checksum
        if (checksum or frame.request_checksum_high) and (frame.request_checksum_high or checksum != xxh3(frame.body)):
            return ErrorCode.INVALID_FORMAT
        return 0

    # ------------------------------------------------------------------------------------------------ sends

    def _send(self, frame: Frame, session: Session) -> None:
        try:
            found = frame.parse_send()
        except BatchRefused as refusal:
            self._answers.status(frame, refusal.code)
            return
        target = session.targets.get(found.key)
        if target is None or target.epoch != self.metadata_op:
            try:
                target = self._resolve_send(session, found.key)
            except RequestRefused as refusal:
                self._answers.status(frame, refusal.code)
                return
            except DecodeError:
                self._answers.status(frame, ErrorCode.INVALID_COMMAND)
                return
        offset = found.batch_offset
        if self._cipher is not None:
            self._send_encrypted(frame, session, target, found.digest, frame.body_from(offset))
        else:
            self._writes.write(
                frame, session, target, _SEND, target.durability, found.digest, frame.body_from(offset), offset
            )

    def _send_encrypted(self, frame: Frame, session: Session, target: Target, digest: int, batch: Any) -> None:
        assert self._cipher is not None, "asked for with a cipher only"
        if len(batch) <= INLINE_MAX:
            self._writes.write(
                frame, session, target, _SEND, target.durability, digest, self._cipher.encrypt(batch), None
            )
        else:
            self._encrypting += 1
            self._start(self._encrypt, frame, session, target, digest, batch)

    async def _encrypt(self, frame: Frame, session: Session, target: Target, digest: int, batch: Any) -> None:
        assert self._cipher is not None, "asked for with a cipher only"
        encrypted = await trio.to_thread.run_sync(self._cipher.encrypt, batch)
        self._encrypting -= 1
        self._step(self._write_encrypted, frame, session, target, digest, encrypted)

    def _write_encrypted(self, frame: Frame, session: Session, target: Target, digest: int, batch: Any) -> None:
        self._writes.write(frame, session, target, _SEND, target.durability, digest, batch, None)

    def _resolve_send(self, session: Session, key: bytes) -> Target:
        cursor = Cursor(key)
        stream = IDENTIFIER_CODEC.read(cursor, "stream")
        topic = IDENTIFIER_CODEC.read(cursor, "topic")
        partitioning = PARTITIONING_CODEC.read(cursor, "partitioning")
        target, stable = self._targets.send(session, stream, topic, partitioning)
        if stable:
            if len(session.targets) >= TARGETS_MAX:
                session.targets.clear()
            session.targets[key] = target
        return target
