"""Polls and stored offsets: reads of partitions, on the owning shard or through a lane.

An auto-commit poll stores the offset of its last message as an entry of the partition's log, and is answered after that
entry is appended (design 5.10). A read that meets damage is refused with status 3 of the disk's error, never answered
around it.
"""

import struct
import time
from collections.abc import Callable
from typing import Any

import trio

from shardsrv._core import xxh3
from shardsrv.bus._frame import Frame
from shardsrv.errors import DecodeError, DiskFault, NotAccepted, RequestRefused
from shardsrv.plane.metadata.permissions import Right
from shardsrv.plane.partition import offsets
from shardsrv.shards import records
from shardsrv.shards.answers import Answers, Origin
from shardsrv.shards.consumer_groups import ConsumerGroups
from shardsrv.shards.encryption import INLINE_MAX, Cipher
from shardsrv.shards.links import Links
from shardsrv.shards.partition_group import POLL_HEAD, PartitionGroup
from shardsrv.shards.session import Session
from shardsrv.shards.target import Target
from shardsrv.shards.targets import Targets
from shardsrv.vsr.events import Request
from shardsrv.wire.constants import AUTO_COMMIT_CLIENT, PARTITION_RESYNC, ConsumerKind, Operation
from shardsrv.wire.error_codes import ErrorCode
from shardsrv.wire.messages import PollMessages
from shardsrv.wire.offsets import GetConsumerOffset

_OFFSET = struct.Struct("<IQQ")

EMPTY_POLL = POLL_HEAD.pack(0, 0, 0)
RESYNC_POLL = POLL_HEAD.pack(PARTITION_RESYNC, 0, 0)


class PollOrigin(Origin):
    """Origin of the offset entry of an auto-commit poll: the poll is answered when the entry took effect."""

    __slots__ = ("answer", "refuse")

    def __init__(self, answer: Callable[[], None], refuse: Callable[[int], None]) -> None:
        self.answer = answer
        self.refuse = refuse

    def committed(self, op: int, timestamp: int, operation: int, reply: bytes) -> None:
        """The offset is stored."""
        self.answer()

    def refused(self, outcome: int, status: int) -> None:
        """The offset was not stored: the poll returns no messages, so that none is lost to a consumer that goes on
        from it."""
        self.refuse(status)


class Polls:
    """Serves polls and offset reads of the connections of one shard, and of other shards."""

    def __init__(
        self,
        shard: int,
        *,
        answers: Answers,
        targets: Targets,
        links: Links,
        group_of: Callable[[Target], PartitionGroup | None],
        park: Callable[[Callable[[], None], Callable[[], None]], None],
        broken: Callable[[PartitionGroup, Exception], None],
        groups: ConsumerGroups,
        cipher: Cipher | None,
        start: Callable[..., None],
        step: Callable[..., None],
    ) -> None:
        self._shard = shard
        self._answers = answers
        self._targets = targets
        self._links = links
        self._group_of = group_of
        self._park = park
        self._broken = broken
        self._groups = groups
        self._cipher = cipher
        self._start = start
        self._step = step
        self._decrypting = 0
        self._waiting: dict[int, Frame] = {}
        self._token = 0

    @property
    def in_flight(self) -> int:
        """Reads that another shard has not answered yet."""
        return len(self._waiting) + self._decrypting

    # ------------------------------------------------------------------------------------------------ polls

    def poll(self, frame: Frame, session: Session) -> None:
        """Code 100. A body that does not decode is an empty poll in the reference; status 3 says what it is."""
        try:
            request = PollMessages.decode(frame.body)
        except DecodeError:
            self._answers.status(frame, ErrorCode.INVALID_COMMAND)
            return
        group = request.consumer.kind == ConsumerKind.GROUP
        key = self._targets.offset_key(request.stream, request.topic, request.consumer)
        if group and request.partition is None:
            self._answers.read(frame, EMPTY_POLL)
            return
        if key is None:
            self._answers.read(frame, RESYNC_POLL)
            return
        try:
            target = self._targets.partition(session, request.stream, request.topic, request.partition or 0, Right.POLL)
        except RequestRefused as refusal:
            if group and refusal.code == ErrorCode.PARTITION_NOT_FOUND:
                self._answers.read(frame, RESYNC_POLL)
            else:
                self._answers.status(frame, refusal.code)
            return
        self._poll(frame, session, target, request, key)

    def _poll(self, frame: Frame, session: Session, target: Target, request: Any, key: int) -> None:
        strategy = request.strategy
        if target.owner != self._shard:
            identity = target.identity
            record = records.PollRequest(
                self._wait(frame),
                target.epoch,
                identity.stream,
                identity.topic,
                identity.partition,
                identity.created_revision,
                strategy.kind,
                strategy.value,
                request.count,
                int(request.auto_commit),
                request.consumer.kind,
                key,
                session.user_id,
                target.offset_durability,
                session.member,
            )
            self._links.send(target.owner, records.POLL_REQUEST, record.pack())
            return
        group = self._group_of(target)
        if group is None:
            self._park(
                lambda: self._poll(frame, session, target, request, key),
                lambda: self._answers.status(frame, ErrorCode.TRANSIENT_NOT_ACCEPTED),
            )
            return
        self._read(
            group,
            strategy.kind,
            strategy.value,
            request.count,
            request.auto_commit,
            request.consumer.kind,
            key,
            session.user_id,
            session.member,
            lambda parts, length: self._answers.parts(frame, parts, length),
            lambda status: self._answers.status(frame, status),
        )

    def _read(
        self,
        group: PartitionGroup,
        strategy: int,
        value: int,
        count: int,
        auto_commit: bool,
        kind: int,
        key: int,
        user_id: int,
        member: bytes,
        answer: Callable[[list, int], None],
        refuse: Callable[[int], None],
    ) -> None:
        """Read and answer; with auto-commit, store the offset first. A group is read by the member that owns the
        partition."""
        if kind == ConsumerKind.GROUP and not group.replica.leads:
            # What members have polled is known on the primary alone, and hand-overs wait for it.
            refuse(ErrorCode.TRANSIENT_NOT_ACCEPTED)
            return
        if kind == ConsumerKind.GROUP and not self._groups.may_poll(group.identity, key, member):
            answer([RESYNC_POLL], len(RESYNC_POLL))
            return
        try:
            parts, length, messages, last = group.poll(strategy, value, count, group.plane.stored_offset(kind, key))
        except DiskFault as error:
            self._broken(group, error)
            refuse(error.code)
            return
        except NotAccepted as error:
            refuse(error.code)
            return
        if kind == ConsumerKind.GROUP and messages:
            self._groups.polled(group, key, member, last)

        def deliver(clear: list, clear_length: int) -> None:
            if auto_commit:
                self._commit(group, kind, key, last, user_id, lambda: answer(clear, clear_length), refuse)
            else:
                answer(clear, clear_length)

        if not messages:
            answer(parts, length)
        elif self._cipher is not None:
            self._decrypted(parts, length, deliver, refuse)
        else:
            deliver(parts, length)

    def _commit(
        self,
        group: PartitionGroup,
        kind: int,
        key: int,
        last: int,
        user_id: int,
        answer: Callable[[], None],
        refuse: Callable[[int], None],
    ) -> None:
        """Store the offset of the last message that a poll returns."""
        body = offsets.encode_stores([(kind, offsets.KEEP_HIGHEST, key, last)])
        group.submit(
            Request(
                AUTO_COMMIT_CLIENT,
                0,
                0,
                Operation.STORE_CONSUMER_OFFSET,
                user_id,
                xxh3(body),
                self._targets.offset_durability(group.settings),
                body,
                PollOrigin(answer, refuse),
                time.time_ns() // 1000,
            )
        )

    def _decrypted(
        self, parts: list, length: int, deliver: Callable[[list, int], None], refuse: Callable[[int], None]
    ) -> None:
        """Records in the clear, before anything is committed: what cannot be opened is not consumed."""
        if length <= INLINE_MAX:
            self._open(parts, deliver, refuse)
        else:
            self._decrypting += 1
            self._start(self._open_in_thread, parts, deliver, refuse)

    def _open(self, parts: list, deliver: Callable[[list, int], None], refuse: Callable[[int], None]) -> None:
        assert self._cipher is not None, "asked for with a cipher only"
        try:
            clear = self._cipher.decrypt(parts[1:])
        except RequestRefused as refusal:
            refuse(refusal.code)
        else:
            deliver([parts[0], clear], len(parts[0]) + len(clear))

    async def _open_in_thread(
        self, parts: list, deliver: Callable[[list, int], None], refuse: Callable[[int], None]
    ) -> None:
        assert self._cipher is not None, "asked for with a cipher only"
        try:
            clear = await trio.to_thread.run_sync(self._cipher.decrypt, parts[1:])
        except RequestRefused as refusal:
            self._step(refuse, refusal.code)
        else:
            self._step(deliver, [parts[0], clear], len(parts[0]) + len(clear))
        finally:
            self._decrypting -= 1

    def requested(self, group: PartitionGroup, sender: int, record: records.PollRequest) -> None:
        """A poll of another shard's connection."""

        def answer(parts: list, length: int) -> None:
            try:
                self._links.send(sender, records.POLL_REPLY, records.PollReply(record.token, 0).pack(), b"".join(parts))
            except MemoryError:
                # An offset that was stored with it stays: to its consumer this is an answer lost on the way.
                refuse(ErrorCode.TRANSIENT_NOT_ACCEPTED)

        def refuse(status: int) -> None:
            self._links.send(sender, records.POLL_REPLY, records.PollReply(record.token, status).pack())

        self._read(
            group,
            record.strategy,
            record.value,
            record.count,
            bool(record.auto_commit),
            record.consumer_kind,
            record.key,
            record.user_id,
            record.member,
            answer,
            refuse,
        )

    def poll_replied(self, head: memoryview, body: memoryview) -> None:
        """The owner answered a poll."""
        reply = records.unpack(records.PollReply, head)
        frame = self._waiting.pop(reply.token)
        if reply.status:
            self._answers.status(frame, reply.status)
        else:
            self._answers.parts(frame, [bytes(body)], len(body))

    # ------------------------------------------------------------------------------------------------ stored offsets

    def get_offset(self, frame: Frame, session: Session) -> None:
        """Code 120: an empty body when nothing is stored or stream, topic or group is unknown; 3007 for an unknown
        partition."""
        try:
            request = GetConsumerOffset.decode(frame.body)
        except DecodeError:
            self._answers.status(frame, ErrorCode.INVALID_COMMAND)
            return
        key = self._targets.offset_key(request.stream, request.topic, request.consumer)
        try:
            target = self._targets.partition(session, request.stream, request.topic, request.partition or 0, Right.POLL)
        except RequestRefused as refusal:
            if refusal.code in (ErrorCode.STREAM_ID_NOT_FOUND, ErrorCode.TOPIC_ID_NOT_FOUND):
                self._answers.read(frame, b"")
            else:
                self._answers.status(frame, refusal.code)
            return
        if key is None:
            self._answers.read(frame, b"")
            return
        self._get_offset(frame, target, request.consumer.kind, key)

    def _get_offset(self, frame: Frame, target: Target, kind: int, key: int) -> None:
        if target.owner != self._shard:
            identity = target.identity
            record = records.OffsetRequest(
                self._wait(frame),
                target.epoch,
                identity.stream,
                identity.topic,
                identity.partition,
                identity.created_revision,
                kind,
                key,
            )
            self._links.send(target.owner, records.OFFSET_REQUEST, record.pack())
            return
        group = self._group_of(target)
        if group is None:
            self._park(
                lambda: self._get_offset(frame, target, kind, key),
                lambda: self._answers.status(frame, ErrorCode.TRANSIENT_NOT_ACCEPTED),
            )
            return
        stored = group.plane.stored_offset(kind, key)
        if stored is None:
            self._answers.read(frame, b"")
        else:
            self._answers.read(frame, _OFFSET.pack(target.identity.partition, group.plane.committed_offset, stored))

    def offset_requested(self, group: PartitionGroup, sender: int, record: records.OffsetRequest) -> None:
        """An offset read of another shard's connection."""
        stored = group.plane.stored_offset(record.consumer_kind, record.key)
        reply = records.OffsetReply(record.token, 0, int(stored is not None), group.plane.committed_offset, stored or 0)
        self._links.send(sender, records.OFFSET_REPLY, reply.pack(), struct.pack("<I", record.partition))

    def offset_replied(self, head: memoryview, body: memoryview) -> None:
        """The owner answered an offset read."""
        reply = records.unpack(records.OffsetReply, head)
        frame = self._waiting.pop(reply.token)
        if reply.status:
            self._answers.status(frame, reply.status)
        elif reply.found:
            self._answers.read(frame, bytes(body) + struct.pack("<QQ", reply.current, reply.stored))
        else:
            self._answers.read(frame, b"")

    def _wait(self, frame: Frame) -> int:
        self._token += 1
        self._waiting[self._token] = frame
        return self._token
