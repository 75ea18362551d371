"""Writes of partitions on their way to the group that owns them: a call on this shard, a `PartitionRequest` to another.

What cannot be served yet (a partition that is still being made, a shard that has not applied an op) is parked, not
refused. A body that lies in a frame stays in this shard's arena until the answer; one that was made here travels with
the record.
"""

from collections.abc import Callable
from time import time_ns
from typing import Any

import attrs

from shardsrv.bus._frame import Frame
from shardsrv.shards import records
from shardsrv.shards.answers import Answers, FrameOrigin
from shardsrv.shards.links import Links
from shardsrv.shards.partition_group import PartitionGroup
from shardsrv.shards.session import Session
from shardsrv.shards.target import Target
from shardsrv.vsr.events import Request
from shardsrv.wire.error_codes import ErrorCode


@attrs.define(slots=True, eq=False)
class Waiting:
    """A request of this shard that another shard is working on; keeps the frame, and with it the body in the arena."""

    frame: Frame
    origin: Any


class PartitionWrites:
    """See the module."""

    def __init__(
        self,
        shard: int,
        *,
        answers: Answers,
        links: Links,
        group_of: Callable[[Target], PartitionGroup | None],
        park: Callable[[Callable[[], None], Callable[[], None]], None],
    ) -> None:
        self._shard = shard
        self._answers = answers
        self._links = links
        self._group_of = group_of
        self._park = park
        self._waiting: dict[int, Waiting] = {}
        self._token = 0

    @property
    def in_flight(self) -> int:
        """Requests that another shard has not answered yet."""
        return len(self._waiting)

    def write(
        self,
        frame: Frame,
        session: Session,
        target: Target,
        operation: int,
        durability: int,
        digest: int,
        body: Any,
        body_offset: int | None,
    ) -> None:
        """A write, to the group that owns the partition. ``body_offset``: where the body begins in the frame's body,
        None when it was made here."""
        if target.owner != self._shard:
            self.elsewhere(
                frame,
                session,
                target,
                operation,
                durability,
                digest,
                body,
                body_offset,
                FrameOrigin(self._answers, frame, session.client),
            )
            return
        group = target.holder
        if group is None:
            group = target.holder = self._group_of(target)
        if group is None:
            self._park_write(frame, (frame, session, target, operation, durability, digest, body, body_offset))
            return
        origin = FrameOrigin(self._answers, frame, session.client)
        group.submit(
            Request(
                session.client,
                session.number,
                frame.request,
                operation,
                session.user_id,
                digest,
                durability,
                body,
                origin,
                time_ns() // 1000,
            )
        )

    def _park_write(self, frame: Frame, arguments: tuple[Any, ...]) -> None:
        """Try again when this shard has caught up."""
        self._park(
            lambda: self.write(*arguments), lambda: self._answers.status(frame, ErrorCode.TRANSIENT_NOT_ACCEPTED)
        )

    def elsewhere(
        self,
        frame: Frame,
        session: Session,
        target: Target,
        operation: int,
        durability: int,
        digest: int,
        body: Any,
        body_offset: int | None,
        origin: Any,
    ) -> None:
        """The same to another shard; ``origin`` is told how it ended."""
        identity = target.identity
        in_arena = body_offset is not None
        self._token += 1
        record = records.PartitionRequest(
            self._token,
            target.epoch,
            identity.stream,
            identity.topic,
            identity.partition,
            identity.created_revision,
            session.client,
            session.number,
            frame.request,
            digest,
            session.user_id,
            operation,
            durability,
            frame.body_offset + body_offset if body_offset is not None else 0,
            len(body) if in_arena else 0,
            session.member,
        )
        try:
            self._links.send(target.owner, records.PARTITION_REQUEST, record.pack(), b"" if in_arena else body)
        except MemoryError:
            origin.refused(records.REFUSED_STATUS, ErrorCode.TRANSIENT_NOT_ACCEPTED)
            return
        self._waiting[self._token] = Waiting(frame, origin)

    def replied(self, head: memoryview, body: memoryview) -> None:
        """The owner of a partition answered."""
        reply = records.unpack(records.PartitionReply, head)
        waiting = self._waiting.pop(reply.token)
        if reply.outcome == records.DONE:
            waiting.origin.committed(reply.op, reply.timestamp, waiting.frame.operation, bytes(body))
        else:
            waiting.origin.refused(reply.outcome, reply.status)
