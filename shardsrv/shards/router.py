"""The router: what happens to each frame of a connection of this shard, and to each record of a lane.

Every frame is answered exactly once (see `shards.answers`). Order of checks (wire-protocol.md 2.2, 3.8, 4.2): the command, the field rules of the header, the request
checksum, the session, the body, the target, the permission. A known code that this version does not serve gets status 5.

Writes of partitions go to the group that owns them: on this shard by a call, on another by a `PartitionRequest` whose body stays in this
shard's arena. What cannot be served yet (a partition that is still being made, a shard that has not applied an op) is parked, not refused.
"""

from collections.abc import Callable
from time import time_ns
from typing import Any

import attrs

from shardsrv._core import BatchRefused, parse_send, xxh3
from shardsrv.bus._frame import Frame
from shardsrv.errors import DecodeError, RequestRefused
from shardsrv.plane.metadata.permissions import Right
from shardsrv.plane.partition import offsets
from shardsrv.shards import records
from shardsrv.shards.answers import Answers, FrameOrigin
from shardsrv.shards.links import Links
from shardsrv.shards.partition_group import PartitionGroup
from shardsrv.shards.sessions import Session, Sessions
from shardsrv.shards.targets import Target, Targets
from shardsrv.vsr.events import Request
from shardsrv.wire.constants import KNOWN_OPERATIONS, MAX_OP, ZERO_ID, Command, EvictionReason, Operation
from shardsrv.wire.cursor import Cursor
from shardsrv.wire.error_codes import ErrorCode
from shardsrv.wire.offsets import DeleteConsumerOffset, StoreConsumerOffset
from shardsrv.wire.primitives import IDENTIFIER_CODEC, PARTITIONING_CODEC

SERVED_METADATA = frozenset(
    {
        Operation.CREATE_STREAM, Operation.UPDATE_STREAM, Operation.DELETE_STREAM, Operation.PURGE_STREAM, Operation.CREATE_TOPIC,
        Operation.UPDATE_TOPIC, Operation.DELETE_TOPIC, Operation.PURGE_TOPIC, Operation.CREATE_PARTITIONS, Operation.DELETE_PARTITIONS,
    }
)
INTERNAL = range(64, 128)
METADATA = range(128, 160)


@attrs.define(slots=True, eq=False)
class Waiting:
    """A request of this shard that another shard is working on; keeps the frame, and with it the body in the arena."""

    frame: Frame
    session: Session
    user_id: int = 0


class Router:
    """Dispatch on one shard that owns partitions and connections."""

    def __init__(
        self, shard: int, *, answers: Answers, sessions: Sessions, targets: Targets, links: Links, group_of: Callable[[Target], PartitionGroup | None],
        reads: Any, park: Callable[[Callable[[], None], Callable[[], None]], None],
    ) -> None:
        self._shard = shard
        self._answers = answers
        self._sessions = sessions
        self._targets = targets
        self._links = links
        self._group_of = group_of
        self._reads = reads
        self._park = park
        self._waiting: dict[int, Waiting] = {}
        self._token = 0
        self.metadata_op = 0
        """The metadata op that this shard has applied; resolved targets of an older one are looked up again."""

    @property
    def in_flight(self) -> int:
        """Requests that another shard has not answered yet."""
        return len(self._waiting)

    # ------------------------------------------------------------------------------------------------ frames

    def on_frame(self, frame: Frame) -> None:
        """A complete frame of a connection."""
        operation = frame.operation
        session = self._sessions.of(frame.connection)
        if operation == Operation.SEND_MESSAGES and session.number and frame.session and frame.request and frame.command == Command.REQUEST:
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
            self._logout(frame, session)
        elif not session.bound:
            self._answers.evict(frame, EvictionReason.NO_SESSION)
        elif operation == Operation.SEND_MESSAGES:
            self._send(frame, session)
        elif operation in METADATA:
            self._metadata(frame, session)
        elif operation == Operation.STORE_CONSUMER_OFFSET:
            self._store_offset(frame, session)
        elif operation == Operation.DELETE_CONSUMER_OFFSET:
            self._delete_offset(frame, session)
        else:
            self._answers.evict(frame, EvictionReason.INVALID_REQUEST_OPERATION)

    def on_close(self, connection: int, reason: int) -> None:
        """A connection ended: a bound session is logged out (wire-protocol.md 3.7)."""
        session = self._sessions.closed(connection)
        if session is not None:
            record = records.MetadataRequest(
                0, session.client, session.number, MAX_OP, 0, session.user_id, Operation.LOGOUT, 0
            )
            self._links.send(0, records.METADATA_REQUEST, record.pack())

    def _field_rules(self, frame: Frame) -> int:
        """0, or the status of a header that breaks the rules of wire-protocol.md 2.2; the reference stays silent there."""
        operation = frame.operation
        if frame.client == ZERO_ID or operation not in KNOWN_OPERATIONS or operation == 0:
            return ErrorCode.INVALID_COMMAND
        if operation == Operation.REGISTER:
            if frame.session or frame.request:
                return ErrorCode.INVALID_COMMAND
        elif operation != Operation.NON_REPLICATED and not (0 < frame.session <= MAX_OP and 0 < frame.request <= MAX_OP):
            return ErrorCode.INVALID_COMMAND
        checksum = frame.request_checksum
        if (checksum or frame.request_checksum_high) and (frame.request_checksum_high or checksum != xxh3(frame.body)):
            return ErrorCode.INVALID_FORMAT
        return 0

    # ------------------------------------------------------------------------------------------------ sends

    def _send(self, frame: Frame, session: Session) -> None:
        body = frame.body
        try:
            found = parse_send(body)
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
        self._write(frame, session, target, Operation.SEND_MESSAGES, target.durability, found.digest, body[found.batch_offset :], found.batch_offset)

    def _resolve_send(self, session: Session, key: bytes) -> Target:
        cursor = Cursor(key)
        stream = IDENTIFIER_CODEC.read(cursor, "stream")
        topic = IDENTIFIER_CODEC.read(cursor, "topic")
        partitioning = PARTITIONING_CODEC.read(cursor, "partitioning")
        target, stable = self._targets.send(session, stream, topic, partitioning)
        if stable:
            session.targets[key] = target
        return target

    def _write(
        self, frame: Frame, session: Session, target: Target, operation: int, durability: int, digest: int, body: Any, body_offset: int | None,
    ) -> None:
        """A partition write, to the group that owns the partition. ``body_offset``: where the body begins in the frame's body, None when it was made here."""
        if target.owner != self._shard:
            self._write_elsewhere(frame, session, target, operation, durability, digest, body, body_offset)
            return
        group = self._group_of(target)
        if group is None:
            self._park(
                lambda: self._write(frame, session, target, operation, durability, digest, body, body_offset),
                lambda: self._answers.status(frame, ErrorCode.TRANSIENT_NOT_ACCEPTED),
            )
            return
        origin = FrameOrigin(self._answers, frame, session.client)
        group.submit(
            Request(
                session.client, session.number, frame.request, operation, session.user_id, digest, durability, body, origin,
                time_ns() // 1000,
            )
        )

    def _write_elsewhere(
        self, frame: Frame, session: Session, target: Target, operation: int, durability: int, digest: int, body: Any, body_offset: int | None
    ) -> None:
        identity = target.identity
        in_arena = body_offset is not None
        record = records.PartitionRequest(
            self._wait(frame, session), target.epoch, identity.stream, identity.topic, identity.partition, identity.created_revision,
            session.client, session.number, frame.request, digest, session.user_id, operation, durability,
            frame.body_offset + body_offset if body_offset is not None else 0, len(body) if in_arena else 0,
        )
        self._links.send(target.owner, records.PARTITION_REQUEST, record.pack(), b"" if in_arena else body)

    def _wait(self, frame: Frame, session: Session, user_id: int = 0) -> int:
        self._token += 1
        self._waiting[self._token] = Waiting(frame, session, user_id)
        return self._token

    # ------------------------------------------------------------------------------------------------ offsets

    def _offset_target(self, frame: Frame, session: Session, request: Any) -> tuple[Target, int] | None:
        """Target and offset key of an offset write; answers 20 or 41 itself when there is none (wire-operations.md 6)."""
        key = self._targets.offset_key(request.consumer)
        try:
            if request.partition is None or key is None:
                raise RequestRefused(ErrorCode.RESOURCE_NOT_FOUND, consumer=str(request.consumer))
            target = self._targets.partition(session, request.stream, request.topic, request.partition, Right.POLL)
        except RequestRefused as refusal:
            denied = refusal.code == ErrorCode.UNAUTHORIZED
            self._answers.status(frame, refusal.code if denied else ErrorCode.RESOURCE_NOT_FOUND)
            return None
        return target, key

    def _store_offset(self, frame: Frame, session: Session) -> None:
        try:
            request = StoreConsumerOffset.decode(frame.body)
        except DecodeError:
            self._answers.status(frame, ErrorCode.INVALID_COMMAND)
            return
        found = self._offset_target(frame, session, request)
        if found is None:
            return
        target, key = found
        body = offsets.encode_stores([(request.consumer.kind, 0, key, request.offset)])
        self._write(frame, session, target, Operation.STORE_CONSUMER_OFFSET, target.offset_durability, xxh3(body), body, None)

    def _delete_offset(self, frame: Frame, session: Session) -> None:
        try:
            request = DeleteConsumerOffset.decode(frame.body)
        except DecodeError:
            self._answers.status(frame, ErrorCode.INVALID_COMMAND)
            return
        found = self._offset_target(frame, session, request)
        if found is None:
            return
        target, key = found
        body = offsets.encode_keys([(request.consumer.kind, key)])
        self._write(frame, session, target, Operation.DELETE_CONSUMER_OFFSET, target.offset_durability, xxh3(body), body, None)

    # ------------------------------------------------------------------------------------------------ metadata

    def _metadata(self, frame: Frame, session: Session) -> None:
        if frame.operation not in SERVED_METADATA:
            self._answers.status(frame, ErrorCode.FEATURE_UNAVAILABLE)
            return
        record = records.MetadataRequest(
            self._wait(frame, session), session.client, session.number, frame.request, frame.request_checksum, session.user_id,
            frame.operation, 1,
        )
        self._links.send(0, records.METADATA_REQUEST, record.pack(), frame.body)

    def register(self, frame: Frame, session: Session, user_id: int) -> None:
        """Credentials were accepted: register the client id on the metadata group."""
        record = records.MetadataRequest(
            self._wait(frame, session, user_id), frame.client, 0, 0, frame.request_checksum, user_id, Operation.REGISTER, 1
        )
        self._links.send(0, records.METADATA_REQUEST, record.pack())

    def _logout(self, frame: Frame, session: Session) -> None:
        if not session.bound:
            self._answers.reply(frame, b"")
            return
        record = records.MetadataRequest(
            self._wait(frame, session), session.client, session.number, frame.request, 0, session.user_id, Operation.LOGOUT, 1
        )
        self._links.send(0, records.METADATA_REQUEST, record.pack())

    def metadata_replied(self, head: memoryview, body: memoryview) -> None:
        """Shard 0 answered a metadata request."""
        reply = records.unpack(records.MetadataReply, head)
        waiting = self._waiting.pop(reply.token)
        frame, session = waiting.frame, waiting.session
        if reply.outcome == records.DONE:
            if reply.operation == Operation.REGISTER:
                self._sessions.bind(session, frame.client, reply.op, waiting.user_id)
                self._sessions.welcome(frame, session, reply.op, reply.timestamp)
            elif reply.operation == Operation.LOGOUT:
                self._answers.reply(frame, b"", op=reply.op, commit=reply.op, timestamp=reply.timestamp, client=session.client)
                self._sessions.release(session)
            else:
                self._answers.reply(
                    frame, bytes(body), op=reply.op, commit=reply.op, timestamp=reply.timestamp, operation=reply.operation, client=session.client
                )
        else:
            logout = frame.operation == Operation.LOGOUT and reply.outcome == records.REFUSED_RESULT
            outcome = records.REFUSED_STATUS if logout else reply.outcome
            FrameOrigin(self._answers, frame, session.client).refused(outcome, reply.status)

    def partition_replied(self, head: memoryview, body: memoryview) -> None:
        """The owner of a partition answered a write."""
        reply = records.unpack(records.PartitionReply, head)
        waiting = self._waiting.pop(reply.token)
        origin = FrameOrigin(self._answers, waiting.frame, waiting.session.client)
        if reply.outcome == records.DONE:
            origin.committed(reply.op, reply.timestamp, waiting.frame.operation, bytes(body))
        else:
            origin.refused(reply.outcome, reply.status)


