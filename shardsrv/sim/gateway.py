"""The way of a client's request into a member and of the answer back: what router, reads and polls do on a server.

Names are resolved against the member's own metadata; refusals that need no log are given at once; a poll reads the
member's log and never beyond what it has committed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import attrs

from shardsrv._core import VALID, parse_send, slice_prepares, xxh3
from shardsrv.errors import Damaged, RequestRefused
from shardsrv.plane.metadata import queries
from shardsrv.plane.metadata.admission import PasswordResult, TokenSecret
from shardsrv.plane.metadata.state import identity_of
from shardsrv.plane.partition.poll import plan_poll
from shardsrv.shards import records
from shardsrv.sim.groups import PartitionSimGroup
from shardsrv.store.segment import Position
from shardsrv.vsr.events import Request
from shardsrv.vsr.policy import PERSISTED
from shardsrv.wire.constants import Operation
from shardsrv.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from shardsrv.sim.node import Node

_SESSIONS: Final = (int(Operation.REGISTER), int(Operation.LOGOUT))
_NOT_ACCEPTED: Final = int(ErrorCode.TRANSIENT_NOT_ACCEPTED)
READ_BYTES: Final = 64 * 1024


@attrs.define(slots=True)
class Ask:
    """A client's write. ``place`` is (stream, topic, partition) of a partition request, None on metadata."""

    client: bytes
    session: int
    number: int
    operation: int
    body: bytes
    digest: int
    place: tuple[int, int, int] | None = None


class Origin:
    """Takes the answer of one attempt and gives it to ``deliver(outcome, status, op, reply)``."""

    __slots__ = ("_deliver",)

    def __init__(self, deliver: Callable[[int, int, int, bytes], None]) -> None:
        self._deliver = deliver

    def committed(self, op: int, timestamp: int, operation: int, reply: bytes) -> None:
        """The request is an entry."""
        self._deliver(records.DONE, 0, op, bytes(reply))

    def refused(self, outcome: int, status: int) -> None:
        """It is none."""
        self._deliver(outcome, int(status), 0, b"")


def ask(node: Node, request: Ask, origin: Origin, user_id: int) -> None:
    """Give a client's write to the group that it is for, or refuse it."""
    metadata = node.metadata
    if metadata is None:
        origin.refused(records.REFUSED_STATUS, _NOT_ACCEPTED)
        return
    now = node.clock.wall()
    if request.place is None:
        operation, body = request.operation, request.body
        if operation not in _SESSIONS:
            try:
                operation, body = _resolve(metadata.plane, operation, body, metadata.replica.view)
            except RequestRefused as refusal:
                origin.refused(records.REFUSED_STATUS, refusal.code)
                return
        node.submit(
            metadata,
            Request(
                request.client,
                request.session,
                request.number,
                operation,
                user_id,
                request.digest,
                PERSISTED,
                body,
                origin,
                now,
            ),
        )
        return
    found = target(node, request.place)
    if found is None:
        origin.refused(records.REFUSED_STATUS, int(ErrorCode.RESOURCE_NOT_FOUND))
        return
    group, durability = found
    if group is None:
        origin.refused(records.REFUSED_STATUS, _NOT_ACCEPTED)
        return
    body: Any = request.body
    digest = request.digest
    if request.operation == Operation.SEND_MESSAGES:
        sent = parse_send(body)
        # A batch is stamped in place: each attempt brings its own bytes.
        digest, body = sent.digest, bytearray(body[sent.batch_offset :])
    node.submit(
        group,
        Request(
            request.client,
            request.session,
            request.number,
            request.operation,
            user_id,
            digest,
            durability,
            body,
            origin,
            now,
        ),
    )


def _resolve(plane: Any, operation: int, body: bytes, view: int) -> tuple[int, bytes]:
    task = plane.password_task(operation, body)
    secrets: PasswordResult | TokenSecret = TokenSecret(f"digest of {xxh3(body):x}")
    if task is not None:
        stored = f"hash of {task.current}"
        secrets = PasswordResult(f"hash of {task.new}", stored if task.stored_hash == stored else "")
    found: tuple[int, bytes] = plane.resolve(operation, body, view, secrets, 0)
    return found


def target(node: Node, place: tuple[int, int, int]) -> tuple[PartitionSimGroup | None, int] | None:
    """The group of a partition and the durability of its topic; None when metadata has no such partition."""
    assert node.metadata is not None
    try:
        stream, topic, partition = queries.locate(node.metadata.plane.state, *place)
    except RequestRefused:
        return None
    identity = identity_of(stream, topic, partition)
    group = node.groups.get(identity.group)
    if group is not None and group.identity != identity:
        group = None
    return group, int(topic.settings.durability)


def poll(node: Node, place: tuple[int, int, int], strategy: int, value: int, count: int) -> Poll | None:
    """Read messages as a member serves them; None when it does not serve the partition. Raises `Damaged`."""
    found = target(node, place)
    if found is None or found[0] is None or found[0].closed or found[0].fault is not None:
        return None
    group = found[0]
    plane = group.plane
    answer = Poll(group.key, plane.purge_generation, [], plane.first_offset, plane.next_offset)
    plan = plan_poll(strategy, value, count, plane.first_offset, plane.next_offset, None)
    if plan is None:
        return answer
    log = group.log
    position: Position | None = log.locate_time(plan.start) if plan.by_time else log.locate_offset(plan.start)
    wanted = READ_BYTES
    while position is not None and len(answer.messages) < plan.count:
        buffer = bytearray(wanted)
        read = log.read_into(position, buffer)
        sliced = slice_prepares(
            buffer, 0, read, plan.start, plan.count - len(answer.messages), group.replica.commit_min, plan.by_time
        )
        if sliced.verdict != VALID:
            raise Damaged(log.directory, position.byte + sliced.position, None, VALID, sliced.verdict)
        for part in _joined(sliced.parts):
            answer.messages.extend(_messages(part))
        position = Position(position.segment, position.byte + sliced.position)
        if sliced.needed == 0:
            break
        available = log.available(position)
        if not available:
            position = log.next_segment(position)
        elif available < sliced.needed:
            raise Damaged(log.directory, position.byte, None, sliced.needed, available)
        else:
            wanted = max(wanted, sliced.needed)
    return answer


@attrs.define(slots=True)
class Poll:
    """Messages that were read, (offset, id), with the purge generation and the bounds of the member that served it."""

    key: Any
    generation: int
    messages: list[tuple[int, bytes]]
    first_offset: int
    next_offset: int


def _joined(parts: list[Any]) -> list[bytes]:
    """Batches: a rewritten header and its frames come as two parts."""
    batches: list[bytes] = []
    left = 0
    for part in parts:
        data = bytes(part)
        while data:
            if left:
                batches[-1] += data[:left]
                data, left = data[left:], max(0, left - len(data))
                continue
            length = int.from_bytes(data[32:40], "little")
            batches.append(data[:length])
            left = max(0, length - len(data))
            data = data[length:]
    return batches


def _messages(batch: bytes) -> list[tuple[int, bytes]]:
    base = int.from_bytes(batch[8:16], "little")
    count = int.from_bytes(batch[48:52], "little")
    found, position = [], 256
    for _ in range(count):
        delta = int.from_bytes(batch[position + 24 : position + 28], "little")
        found.append((base + delta, batch[position + 8 : position + 24]))
        headers = int.from_bytes(batch[position + 32 : position + 36], "little")
        payload = int.from_bytes(batch[position + 36 : position + 40], "little")
        position += 48 + headers + payload
    return found


__all__ = ["Ask", "Origin", "Poll", "ask", "poll", "target"]
