"""The replicated state of one partition: where the next message goes, what is readable, what consumers stored.

Two layers. *Head state* is what the next entry depends on: it moves in `prepare` (or `advance`, for an entry made
earlier or elsewhere) and goes back in `rewind`. *Committed state* moves in `apply`, in op order, and is what clients
see.

Invariants:

* offsets have no gap: readable are first_offset .. next_offset - 1, so the number of messages is their difference;
  after a purge both are 0;
* committed state is a function of the committed entries, equal on all members at equal op, whatever their
  configuration;
* nothing above the committed offset can be stored as a consumer's offset by a client;
* entries at or below ``purge_op`` hold no readable message.

Sizes are bytes of batches, headers included, as they are stored.
"""

from __future__ import annotations

from typing import Any, Final

from shardsrv._core import HEADER_SIZE, Prepare, batch_count, dedup_key, send_reply_body, stamp_batch, xxh3
from shardsrv.errors import LogIncoherent
from shardsrv.plane.partition import checkpoint, offsets
from shardsrv.plane.partition.dedup import DEFAULT_SIZE, STRIDE, DedupWindow
from shardsrv.vsr.events import Request
from shardsrv.vsr.plane import Executed, Plane
from shardsrv.wire.constants import AUTO_COMMIT_CLIENT, ZERO_ID, Operation
from shardsrv.wire.error_codes import ErrorCode

_SEND: Final = int(Operation.SEND_MESSAGES)
_STORE: Final = int(Operation.STORE_CONSUMER_OFFSET)
_DELETE: Final = int(Operation.DELETE_CONSUMER_OFFSET)
_PURGE: Final = int(Operation.PURGE_PARTITION)
_TRUNCATE: Final = int(Operation.TRUNCATE_PARTITION_LOG)

_OWN_CLIENTS: Final = (ZERO_ID, AUTO_COMMIT_CLIENT)
"""Requests of the node itself: they are never repeated by somebody who waits for an answer."""

_DONE: Final = bytes(4)
"""A result section without an entry: the reply to an offset operation."""


class PartitionPlane(Plane):
    """State machine of partition (``stream``, ``topic``, ``partition``), empty.

    ``dedup_size`` in ops; ``consumer_offsets_max`` per kind. The limit is looked at on admission only: what is in the
    log is applied.
    """

    __slots__ = (
        "_asked",
        "_asked_key",
        "_head_generation",
        "_stream",
        "_topic",
        "applied_op",
        "bytes",
        "consumer_offsets",
        "consumer_offsets_max",
        "dedup",
        "first_offset",
        "group_offsets",
        "head_next_offset",
        "next_offset",
        "partition",
        "purge_generation",
        "purge_op",
        "timestamp",
    )

    def __init__(
        self,
        stream: int,
        topic: int,
        partition: int,
        *,
        dedup_size: int = DEFAULT_SIZE,
        consumer_offsets_max: int = 100_000,
    ) -> None:
        self.partition = partition
        self.consumer_offsets_max = consumer_offsets_max
        self._stream = stream
        self._topic = topic
        # committed
        self.applied_op = 0
        self.timestamp = 0
        self.next_offset = 0
        self.first_offset = 0
        self.bytes = 0
        self.purge_generation = 0
        self.purge_op = 0
        self.consumer_offsets: dict[int, int] = {}
        self.group_offsets: dict[int, int] = {}
        self.dedup = DedupWindow(dedup_size)
        # head
        self.head_next_offset = 0
        self._head_generation = 0
        self._asked: Request | None = None
        self._asked_key: bytes | None = None

    # --- what readers ask ---------------------------------------------------------------------------------------------

    @property
    def messages(self) -> int:
        """Readable messages."""
        return self.next_offset - self.first_offset

    @property
    def committed_offset(self) -> int:
        """Offset of the last committed message; 0 when there was none since the last purge."""
        return self.next_offset - 1 if self.next_offset else 0

    def stored_offset(self, kind: int, key: int) -> int | None:
        """The offset stored by consumer (kind 1) or group (kind 2) ``key``."""
        return self._offsets(kind).get(key)

    def state(self) -> tuple[Any, ...]:
        """Everything that is committed, for comparing members; equal states compare equal."""
        return (
            self.applied_op,
            self.timestamp,
            self.next_offset,
            self.first_offset,
            self.bytes,
            self.purge_generation,
            self.purge_op,
            sorted(self.consumer_offsets.items()),
            sorted(self.group_offsets.items()),
            self.dedup.rows(self.applied_op),
        )

    # --- before the log -----------------------------------------------------------------------------------------------

    def find(self, request: Request) -> Executed | None:
        """The entry that this very request already is. Requests of the node itself are never retries."""
        client = request.client
        self._asked = request
        if client in _OWN_CLIENTS:
            self._asked_key = None
            return None
        key = dedup_key(client, request.session, request.operation, request.request, request.digest)
        self._asked_key = key
        known = self.dedup.find(key)
        if known is None:
            return None
        reply = self._send_reply(known[1]) if request.operation == _SEND else _DONE
        return known[0], known[2], reply

    def admit(self, request: Request) -> int:
        """0, or the status of a request that is refused for what the partition holds now."""
        operation = request.operation
        if operation == _SEND or request.client == AUTO_COMMIT_CLIENT:
            return 0
        if operation == _STORE:
            return self._admit_stores(offsets.decode_stores(request.body))
        if operation == _DELETE:
            # The node itself clears what a deleted group stored, also what is still in flight.
            if request.client == ZERO_ID:
                return 0
            return self._admit_deletes(offsets.decode_keys(request.body))
        if operation == _TRUNCATE:
            if self._head_generation != self.purge_generation:
                return ErrorCode.TRANSIENT_NOT_ACCEPTED
            first_offset, removed = offsets.decode_truncate(request.body)
            return ErrorCode.INVALID_OFFSET if first_offset > self.next_offset or removed > self.bytes else 0
        return 0 if operation == _PURGE else ErrorCode.INVALID_COMMAND

    def _admit_stores(self, stores: list[offsets.Store]) -> int:
        for kind, _, key, offset in stores:
            if offset >= self.next_offset:
                return ErrorCode.INVALID_OFFSET
            stored = self._offsets(kind)
            if key not in stored and len(stored) >= self.consumer_offsets_max:
                return ErrorCode.TOO_MANY_CONSUMER_OFFSETS
        return 0

    def _admit_deletes(self, keys: list[offsets.Key]) -> int:
        for kind, key in keys:
            if key not in self._offsets(kind):
                return ErrorCode.CONSUMER_OFFSET_NOT_FOUND
        return 0

    # --- head state ---------------------------------------------------------------------------------------------------

    def prepare(self, request: Request, op: int, timestamp: int) -> tuple[Any, int]:
        """Body and body checksum of entry ``op``. A batch is stamped in place: its buffer must be writable.

        Raises `BatchRefused` for a batch that is none (it was checked before it came here), `DecodeError` for another
        malformed body.
        """
        operation = request.operation
        key = self._asked_key if self._asked is request else self._key_of(request)
        self._asked = None
        if operation == _SEND:
            batch = request.body
            base = self.head_next_offset
            checksum = stamp_batch(batch, self.partition, base, timestamp)
            self.head_next_offset = base + batch_count(batch)
            if key is not None:
                self.dedup.insert(key, op, base, timestamp)
            return batch, checksum
        body = request.body
        if operation == _STORE and request.client == AUTO_COMMIT_CLIENT:
            body = self._within_limit(body)
        elif operation == _PURGE:
            self._head_purge(offsets.decode_purge(body))
        if key is not None:
            self.dedup.insert(key, op, 0, timestamp)
        return body, xxh3(body)

    def advance(self, prepare: Prepare) -> None:
        """Head state moves over an entry of the log. Raises `LogIncoherent` when a batch does not begin at the next
        offset."""
        operation = prepare.operation
        base = 0
        if operation == _SEND:
            base = prepare.base_offset
            if base != self.head_next_offset:
                raise LogIncoherent(
                    group=prepare.group, op=prepare.op, field="base_offset", expected=self.head_next_offset, found=base
                )
            self.head_next_offset = base + prepare.message_count
        elif operation == _PURGE:
            self._head_purge(offsets.decode_purge(prepare.body))
        client = prepare.client
        if client not in _OWN_CLIENTS:
            key = dedup_key(client, prepare.request_checksum_high, operation, prepare.request, prepare.request_checksum)
            self.dedup.insert(key, prepare.op, base, prepare.timestamp)

    def rewind(self, op: int) -> None:
        """Back to the committed state: ``op`` must be the last applied one. What stays in flight above it is advanced
        over again."""
        if op != self.applied_op:
            raise LogIncoherent(op=op, field="rewind", expected=self.applied_op, found=op)
        self.head_next_offset = self.next_offset
        self._head_generation = self.purge_generation
        self.dedup.rewind(op)

    def _head_purge(self, generation: int) -> None:
        if generation > self._head_generation:
            self._head_generation = generation
            self.head_next_offset = 0

    def _within_limit(self, body: Any) -> bytes:
        """Offsets that polls commit by themselves, without those of new consumers beyond the limit."""
        room = {offsets.CONSUMER: self.consumer_offsets_max, offsets.GROUP: self.consumer_offsets_max}
        kept = []
        for store in offsets.decode_stores(body):
            stored = self._offsets(store[0])
            if store[2] not in stored:
                if len(stored) >= room[store[0]]:
                    continue
                room[store[0]] -= 1
            kept.append(store)
        return offsets.encode_stores(kept)

    def _key_of(self, request: Request) -> bytes | None:
        self.find(request)
        return self._asked_key

    # --- committed state ----------------------------------------------------------------------------------------------

    def apply(self, prepare: Prepare) -> bytes:
        """Apply the next committed entry; returns the reply body."""
        op = prepare.op
        if prepare.operation == _SEND:
            self.next_offset = prepare.base_offset + prepare.message_count
            self.bytes += prepare.size - HEADER_SIZE
            reply = self._send_reply(prepare.base_offset)
        else:
            self._apply_other(prepare, op)
            reply = _DONE
        self.timestamp = prepare.timestamp
        self.applied_op = op
        if not op % STRIDE:
            self.dedup.commit(op)
        return reply

    def _send_reply(self, base_offset: int) -> bytes:
        return send_reply_body(self._stream, self._topic, self.partition, base_offset)

    def _apply_other(self, prepare: Any, op: int) -> None:
        operation = prepare.operation
        body = prepare.body
        if operation == _STORE:
            for kind, flags, key, offset in offsets.decode_stores(body):
                stored = self._offsets(kind)
                if not flags & offsets.KEEP_HIGHEST or offset > stored.get(key, -1):
                    stored[key] = offset
        elif operation == _DELETE:
            for kind, key in offsets.decode_keys(body):
                self._offsets(kind).pop(key, None)
        elif operation == _PURGE:
            self._apply_purge(offsets.decode_purge(body), op)
        elif operation == _TRUNCATE:
            first_offset, removed = offsets.decode_truncate(body)
            # Beyond these bounds only for an entry that was prepared before another purge or truncation: it then
            # removes nothing.
            if self.first_offset < first_offset <= self.next_offset and removed <= self.bytes:
                self.first_offset = first_offset
                self.bytes -= removed
        else:
            raise LogIncoherent(
                group=prepare.group, op=op, field="operation", expected="a partition operation", found=operation
            )

    def _apply_purge(self, generation: int, op: int) -> None:
        if generation <= self.purge_generation:
            return
        self.purge_generation = generation
        self.purge_op = op
        self.next_offset = 0
        self.first_offset = 0
        self.bytes = 0
        self.consumer_offsets.clear()
        self.group_offsets.clear()

    def _offsets(self, kind: int) -> dict[int, int]:
        return self.consumer_offsets if kind == offsets.CONSUMER else self.group_offsets

    # --- checkpoint ---------------------------------------------------------------------------------------------------

    def checkpoint(self, checksum: int) -> bytes:
        """The committed state as a payload; ``checksum`` is the identity of the entry that was applied last."""
        return checkpoint.encode(
            checkpoint.PartitionCheckpoint(
                op=self.applied_op,
                checksum=checksum,
                timestamp=self.timestamp,
                next_offset=self.next_offset,
                first_offset=self.first_offset,
                bytes=self.bytes,
                purge_generation=self.purge_generation,
                purge_op=self.purge_op,
                consumer_offsets=dict(self.consumer_offsets),
                group_offsets=dict(self.group_offsets),
                dedup=self.dedup.rows(self.applied_op),
            )
        )

    def restore(self, payload: bytes) -> tuple[int, int, int]:
        """Take over the state of ``payload``; returns (op, checksum, timestamp), what `Replica.recover` wants.

        Raises `DecodeError` and changes nothing when the payload is not a checkpoint.
        """
        saved = checkpoint.decode(payload)
        self.applied_op = saved.op
        self.timestamp = saved.timestamp
        self.next_offset = self.head_next_offset = saved.next_offset
        self.first_offset = saved.first_offset
        self.bytes = saved.bytes
        self.purge_generation = self._head_generation = saved.purge_generation
        self.purge_op = saved.purge_op
        self.consumer_offsets = dict(saved.consumer_offsets)
        self.group_offsets = dict(saved.group_offsets)
        self.dedup = DedupWindow(self.dedup.size)
        for key, op, base_offset, timestamp in saved.dedup:
            self.dedup.insert(key, op, base_offset, timestamp)
        return saved.op, saved.checksum, saved.timestamp
