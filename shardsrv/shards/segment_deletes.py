"""Deletion of segments (operation 138) for the connections of one shard.

The shard that owns the partition turns the number of segments into an offset and commits it (`retention`); the reply
carries operation 68 and the metadata commit, because clients take the `commit` of such a reply for a position in the
metadata log (wire-0.11.md 1.5).
"""

import struct
import time
from collections.abc import Callable

from shardsrv._core import xxh3
from shardsrv.bus._frame import Frame
from shardsrv.errors import DecodeError, RequestRefused
from shardsrv.plane.metadata.permissions import Right
from shardsrv.shards import records
from shardsrv.shards.answers import Answers, Origin
from shardsrv.shards.partition_group import PartitionGroup
from shardsrv.shards.partition_writes import PartitionWrites
from shardsrv.shards.session import Session
from shardsrv.shards.target import Target
from shardsrv.shards.targets import Targets
from shardsrv.vsr.events import Request
from shardsrv.vsr.policy import PERSISTED
from shardsrv.wire.constants import Operation
from shardsrv.wire.error_codes import ErrorCode
from shardsrv.wire.frames import refusal_body
from shardsrv.wire.topics import DeleteSegments

COUNT = struct.Struct("<I")
"""Body of the request to the owner: how many segments."""


class SegmentsOrigin(Origin):
    """Origin of a deletion on its home shard."""

    __slots__ = ("_answers", "_client", "_frame")

    def __init__(self, answers: Answers, frame: Frame, client: bytes) -> None:
        self._answers = answers
        self._frame = frame
        self._client = client

    def committed(self, op: int, timestamp: int, operation: int, reply: bytes) -> None:
        """The segments are gone, or there were none."""
        commit = self._answers.metadata_commit
        self._answers.reply(
            self._frame,
            reply,
            op=commit,
            commit=commit,
            timestamp=timestamp,
            operation=Operation.TRUNCATE_PARTITION,
            client=self._client,
        )

    def refused(self, outcome: int, status: int) -> None:
        """See `FrameOrigin.refused`; the result section, where clients look for the codes of this command."""
        if outcome == records.EVICTED:
            self._answers.evict(self._frame, status)
        else:
            self.committed(0, time.time_ns() // 1000, 0, refusal_body(status))


class SegmentDeletes:
    """See the module."""

    def __init__(
        self,
        shard: int,
        *,
        answers: Answers,
        targets: Targets,
        writes: PartitionWrites,
        group_of: Callable[[Target], PartitionGroup | None],
        delete: Callable[[PartitionGroup, Request], None],
        park: Callable[[Callable[[], None], Callable[[], None]], None],
    ) -> None:
        self._shard = shard
        self._answers = answers
        self._targets = targets
        self._writes = writes
        self._group_of = group_of
        self._delete = delete
        self._park = park

    def delete(self, frame: Frame, session: Session) -> None:
        """Operation 138. Result 1009, 2010, 3007, 41; status 3 for a body that does not decode."""
        try:
            request = DeleteSegments.decode(frame.body)
        except DecodeError:
            self._answers.status(frame, ErrorCode.INVALID_COMMAND)
            return
        origin = SegmentsOrigin(self._answers, frame, session.client)
        try:
            target = self._targets.partition(
                session, request.stream, request.topic, request.partition, Right.WRITE_TOPIC
            )
        except RequestRefused as refusal:
            origin.refused(records.REFUSED_RESULT, refusal.code)
            return
        self._submit(frame, session, target, origin, COUNT.pack(request.segments_count))

    def _submit(self, frame: Frame, session: Session, target: Target, origin: SegmentsOrigin, body: bytes) -> None:
        digest = xxh3(frame.body)
        if target.owner != self._shard:
            self._writes.elsewhere(
                frame, session, target, Operation.DELETE_SEGMENTS, PERSISTED, digest, body, None, origin
            )
            return
        group = self._group_of(target)
        if group is None:
            self._park(
                lambda: self._submit(frame, session, target, origin, body),
                lambda: origin.refused(records.REFUSED_RESULT, ErrorCode.TRANSIENT_NOT_ACCEPTED),
            )
            return
        now = time.time_ns() // 1000
        self._delete(
            group,
            Request(
                session.client,
                session.number,
                frame.request,
                Operation.DELETE_SEGMENTS,
                session.user_id,
                digest,
                PERSISTED,
                body,
                origin,
                now,
            ),
        )
