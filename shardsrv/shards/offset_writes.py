"""Writes of consumer offsets: operations 161 and 162 of the connections of one shard.

A group's offset is written by the member that owns the partition, a partition that it hands over included; the shard
that owns the partition decides (`consumer_groups`). Whatever does not resolve is 20 (wire-operations.md 6).
"""

from typing import Protocol

from shardsrv._core import xxh3
from shardsrv.bus._frame import Frame
from shardsrv.errors import DecodeError, RequestRefused
from shardsrv.plane.metadata.permissions import Right
from shardsrv.plane.partition import offsets
from shardsrv.shards.answers import Answers
from shardsrv.shards.consumer_groups import ConsumerGroups
from shardsrv.shards.session import Session
from shardsrv.shards.target import Target
from shardsrv.shards.targets import Targets
from shardsrv.wire.constants import ConsumerKind, Operation
from shardsrv.wire.error_codes import ErrorCode
from shardsrv.wire.offsets import DeleteConsumerOffset, StoreConsumerOffset


class Write(Protocol):
    def __call__(
        self,
        frame: Frame,
        session: Session,
        target: Target,
        operation: int,
        durability: int,
        digest: int,
        body: bytes,
        body_offset: None,
        /,
    ) -> None: ...


class OffsetWrites:
    """See the module."""

    def __init__(self, shard: int, *, answers: Answers, targets: Targets, groups: ConsumerGroups, write: Write) -> None:
        self._shard = shard
        self._answers = answers
        self._targets = targets
        self._groups = groups
        self._write = write

    def store(self, frame: Frame, session: Session) -> None:
        """Operation 161."""
        try:
            request = StoreConsumerOffset.decode(frame.body)
        except DecodeError:
            self._answers.status(frame, ErrorCode.INVALID_COMMAND)
            return
        if (found := self._resolve(frame, session, request)) is not None:
            target, key = found
            if request.offset > offsets.MAX_OP:
                self._answers.status(frame, ErrorCode.INVALID_OFFSET)
                return
            body = offsets.encode_stores([(request.consumer.kind, 0, key, request.offset)])
            self._write(
                frame,
                session,
                target,
                Operation.STORE_CONSUMER_OFFSET,
                target.offset_durability,
                xxh3(body),
                body,
                None,
            )

    def delete(self, frame: Frame, session: Session) -> None:
        """Operation 162."""
        try:
            request = DeleteConsumerOffset.decode(frame.body)
        except DecodeError:
            self._answers.status(frame, ErrorCode.INVALID_COMMAND)
            return
        if (found := self._resolve(frame, session, request)) is not None:
            target, key = found
            body = offsets.encode_keys([(request.consumer.kind, key)])
            self._write(
                frame,
                session,
                target,
                Operation.DELETE_CONSUMER_OFFSET,
                target.offset_durability,
                xxh3(body),
                body,
                None,
            )

    def _resolve(
        self, frame: Frame, session: Session, request: StoreConsumerOffset | DeleteConsumerOffset
    ) -> tuple[Target, int] | None:
        """Target and offset key; answers 20 or 41 itself when there is none."""
        group = request.consumer.kind == ConsumerKind.GROUP
        partition = request.partition
        key = self._targets.offset_key(request.stream, request.topic, request.consumer)
        if partition is None and group and key is not None:
            # High-level consumers delete without naming the partition: it is meant where the member owns a single one.
            partition = self._targets.only_partition(request.stream, request.topic, key, session.member)
        try:
            if partition is None or key is None:
                raise RequestRefused(ErrorCode.RESOURCE_NOT_FOUND, consumer=str(request.consumer))
            target = self._targets.partition(session, request.stream, request.topic, partition, Right.POLL)
            if (
                group
                and target.owner == self._shard
                and not self._groups.may_commit(target.identity, key, session.member)
            ):
                raise RequestRefused(ErrorCode.RESOURCE_NOT_FOUND, partition=partition)
        except RequestRefused as refusal:
            denied = refusal.code == ErrorCode.UNAUTHORIZED
            self._answers.status(frame, refusal.code if denied else ErrorCode.RESOURCE_NOT_FOUND)
            return None
        return target, key
