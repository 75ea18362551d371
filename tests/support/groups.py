"""A consensus group of one over a list as its log, for tests: carries out effects, loses what was not written, checks
what it is told.

Every check is an assertion: entries chain and rise, commits come in op order and not before the entry is as durable as
it asks, a request gets one answer and its retries the same one, and what recovery rebuilds equals what was there.
"""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Any

import shardsrv.plane.partition.plane as plane_module
import shardsrv.vsr.replica as replica_module
from shardsrv._core import Prepare, parse_send
from shardsrv.vsr.effects import Append, Committed, Fatal, PersistState, Refused, Repeat
from shardsrv.vsr.events import APPENDED, SYNCED, Persisted, PersistFailed, Request, StatePersisted
from shardsrv.vsr.policy import partition_policy
from tests.support.batches import encode_batch

CLUSTER = b"cluster of tests"
GROUP = 1 << 32 | 2 << 20 | 3
SEND, STORE, DELETE, PURGE, TRUNCATE = 160, 161, 162, 192, 193


def client_id(number: int) -> bytes:
    return number.to_bytes(16, "little")


def batch(*payloads: bytes) -> bytearray:
    """A batch as a client sends it, in a buffer that the server may stamp. Equal payloads give equal bytes."""
    ids = [bytes([index + 1]) * 16 for index in range(len(payloads))]
    return bytearray(encode_batch(payloads, ids=ids))


def digest_of(sent: bytearray) -> int:
    """The digest of a batch as sent: its own checksum field."""
    return int.from_bytes(sent[40:48], "little")


class PartitionWorld:
    """One partition on a disk that may fail. ``log`` holds the entries with the tokens of their writes."""

    def __init__(
        self,
        *,
        depth: int = 8,
        window: int = 16,
        replicas: ModuleType = replica_module,
        planes: ModuleType = plane_module,
    ) -> None:
        self.replicas, self.planes = replicas, planes
        self.depth, self.window = depth, window
        self.log: list[tuple[Prepare, int]] = []
        self.appended = 0
        self.synced = 0
        self.state: Any = None
        self.states: dict[int, Any] = {0: None}
        self.answers: dict[Any, tuple[Any, ...]] = {}
        self.acknowledged: dict[int, tuple[int, int]] = {}  # op -> (identity, durability)
        self.asked: dict[Any, Request] = {}
        self.checkpoint: tuple[int, bytes] | None = None
        self.now = 1_000_000
        self.origins = 0
        self.boot(0)

    # --- life ------------------------------------------------------------------------------------------------------

    def boot(self, checkpoint_op: int) -> None:
        """Start over what the log holds, from the checkpoint or from nothing."""
        self.failed = False
        self.plane = self.planes.PartitionPlane(1, 2, 3, dedup_size=self.window)
        op, checksum, timestamp = 0, 0, 0
        if checkpoint_op:
            assert self.checkpoint is not None
            op, checksum, timestamp = self.plane.restore(self.checkpoint[1])
            assert op == checkpoint_op
            assert self.plane.state() == self.states[op]
        self.replica = self.replicas.Replica.recover(
            self.replicas.GroupIdentity(CLUSTER, GROUP, 7),
            partition_policy(self.depth),
            self.plane,
            self.state,
            op=op,
            checksum=checksum,
            timestamp=timestamp,
        )
        for prepare, _ in self.log[op:]:
            (effect,) = self.replica.replay(prepare)
            assert type(effect) is Committed and effect.origin is None
            self._check_state(prepare.op)
        for effect in self.replica.start(incarnation=1):
            assert type(effect) is PersistState, "nothing is served before the first record is durable"
            refused = self.replica.step(self.request(SEND, 9, 1, batch(b"early")))
            assert [type(each) for each in refused] == [Refused] and refused[0].status == 58
            self.state = effect.state
            assert self.replica.step(StatePersisted(effect.token, effect.state)) == []
        self.log = [(prepare, 0) for prepare, _ in self.log]
        # What was found is synced before anything is served.
        self.appended = self.synced = len(self.log)
        assert self.replica.commit_min == len(self.log) == self.replica.head_op

    def _check_state(self, op: int) -> None:
        state = self.plane.state()
        assert state[2:5] == self.model(op)[:3], "counters are those of the log"
        assert state[7:9] == self.model(op)[3:], "stored offsets are those of the log"
        before = self.states.get(op)
        self.states[op] = state
        assert before is None or before == state, f"op {op} was applied to another state before"

    def crash(self, *, power: bool, keep: int = 0, from_checkpoint: bool = False) -> None:
        """End at once. A kill keeps what was written; a loss of power keeps what was synced and ``keep`` entries
        more."""
        survives = min(self.appended, self.synced + keep) if power else self.appended
        for op, (identity, durability) in self.acknowledged.items():
            if op <= survives:
                assert self.log[op - 1][0].checksum == identity, "an acknowledged op changed"
            else:
                assert power and durability == 0, f"acknowledged op {op} is lost"
        lost = [op for op in self.acknowledged if op > survives]
        for op in lost:
            del self.acknowledged[op]
        self.log = self.log[:survives]
        self.states = {op: state for op, state in self.states.items() if op <= survives}
        self.answers = {key: answer for key, answer in self.answers.items() if answer[0] <= survives}
        self.asked = {}
        usable = self.checkpoint if from_checkpoint and self.checkpoint and self.checkpoint[0] <= survives else None
        if self.checkpoint and self.checkpoint[0] > survives:
            self.checkpoint = None
        self.boot(usable[0] if usable else 0)

    def save_checkpoint(self) -> None:
        """A checkpoint of what is committed; only what is durable may be in one."""
        if self.replica.commit_min and self.synced >= self.replica.commit_min:
            op = self.replica.commit_min
            payload = self.plane.checkpoint(self.log[op - 1][0].checksum)
            other = self.planes.PartitionPlane(1, 2, 3, dedup_size=self.window)
            other.restore(payload)
            assert other.checkpoint(self.log[op - 1][0].checksum) == payload, "a checkpoint is byte-stable"
            self.checkpoint = (op, payload)

    # --- requests --------------------------------------------------------------------------------------------------

    def request(
        self,
        operation: int,
        client: int,
        number: int,
        body: Any,
        *,
        session: int = 5,
        durability: int = 0,
        client_bytes: bytes | None = None,
    ) -> Request:
        """A request as the router makes it."""
        self.origins += 1
        digest = digest_of(body) if operation == SEND else plane_module.xxh3(body)
        identity = client_id(client) if client_bytes is None else client_bytes
        return Request(identity, session, number, operation, 4, digest, durability, body, self.origins, self.now)

    def submit(self, request: Request) -> list[Any]:
        """Give a request to the replica and carry out what comes back."""
        self.asked[request.origin] = request
        return self.carry_out(self.replica.step(request))

    def send(self, client: int, number: int, *payloads: bytes, durability: int = 0, session: int = 5) -> list[Any]:
        return self.submit(self.request(SEND, client, number, batch(*payloads), durability=durability, session=session))

    # --- disk ------------------------------------------------------------------------------------------------------

    def persist(self, level: int, through: int | None = None) -> list[Any]:
        """Entries up to ``through`` (default: all) are written or synced."""
        through = len(self.log) if through is None else min(through, len(self.log))
        if level == SYNCED:
            through = min(through, len(self.log))
            self.synced = max(self.synced, through)
        self.appended = max(self.appended, through)
        if through == 0 or self.log[through - 1][1] == 0:
            return []
        return self.carry_out(self.replica.step(Persisted(self.log[through - 1][1], level)))

    def append(self) -> list[Any]:
        return self.persist(APPENDED)

    def sync(self) -> list[Any]:
        return self.persist(SYNCED)

    def fail(self) -> list[Any]:
        """The write of what is in flight fails."""
        self.failed = True
        token = self.log[-1][1] if self.log else 99
        return self.carry_out(self.replica.step(PersistFailed(token, "no space")))

    # --- effects ---------------------------------------------------------------------------------------------------

    def carry_out(self, effects: list[Any]) -> list[Any]:
        for effect in effects:
            if type(effect) is Append:
                self._appended(effect)
            elif type(effect) is Committed:
                self._committed(effect)
            elif type(effect) is Repeat:
                request = self.asked.pop(effect.origin)
                self._answered(request, (effect.op, effect.timestamp, effect.reply))
            elif type(effect) is Refused:
                self.asked.pop(effect.origin, None)
            else:
                assert type(effect) is Fatal, f"unexpected effect {effect}"
        assert self.replica.in_flight <= self.depth, "the pipeline has a bound"
        assert self.replica.in_flight or not self.asked, "every request is answered in the end"
        return effects

    def _appended(self, effect: Append) -> None:
        prepare = effect.prepare
        if self.log:
            last, token = self.log[-1]
            assert prepare.timestamp > last.timestamp, "timestamps rise strictly"
            assert prepare.parent == last.checksum, "entries name their predecessor"
            assert effect.token > token, "tokens rise"
        assert not self.failed, "a fenced group takes nothing"
        assert prepare.op == len(self.log) + 1, "ops are contiguous"
        assert effect.sync == (prepare.durability == 1), "a sync is asked for when somebody waits for it"
        self._check_content(prepare)
        # A file holds bytes: an entry that comes back from it shares nothing with the one in memory.
        stored = Prepare.load(bytes(prepare.header) + bytes(prepare.body))
        self.log.append((stored, effect.token))

    def _check_content(self, prepare: Prepare) -> None:
        """Offsets have no gap, and no request is in the log twice within the window."""
        key = self._key(prepare)
        is_send = prepare.operation == SEND
        if is_send:
            base = int.from_bytes(prepare.body[8:16], "little")
            assert base == self.model(prepare.op - 1)[0], "offsets have no gap"
        if prepare.client in (bytes(16), b"\xff" * 16):
            return
        if prepare.operation == STORE:
            end = self.model(self.replica.commit_min)[0]
            assert all(entry[4] < end for entry in struct.iter_unpack("<BBHIQ", prepare.body[4:])), "beyond the end"
        for earlier, _ in reversed(self.log[-self.window :]):
            if is_send:
                assert self._key(earlier) != key, f"op {earlier.op} stands in the log again as op {prepare.op}"
            elif earlier.operation in (STORE, DELETE) and self._key(earlier)[:2] == key[:2]:
                assert self._key(earlier) != key, f"op {earlier.op} stands in the log again as op {prepare.op}"
                break

    @staticmethod
    def _key(prepare: Prepare) -> tuple[Any, ...]:
        return (
            prepare.client,
            prepare.request_checksum_high,
            prepare.operation,
            prepare.request,
            prepare.request_checksum,
        )

    def model(self, op: int) -> tuple[Any, ...]:
        """(next offset, first offset, bytes, consumer offsets, group offsets) after the first ``op`` entries, from
        their bytes."""
        generation = following = first = size = 0
        stored: tuple[dict[int, int], dict[int, int]] = ({}, {})
        for prepare, _ in self.log[:op]:
            body = bytes(prepare.body)
            if prepare.operation == SEND:
                following += int.from_bytes(body[48:52], "little")
                size += len(body)
            elif prepare.operation == STORE:
                for kind, flags, _, key, offset in struct.iter_unpack("<BBHIQ", body[4:]):
                    lowest = stored[kind - 1].get(key, 0) if flags else 0
                    stored[kind - 1][key] = max(offset, lowest)
            elif prepare.operation == DELETE:
                for kind, _, _, key in struct.iter_unpack("<BBHI", body[4:]):
                    stored[kind - 1].pop(key, None)
            elif prepare.operation == PURGE and int.from_bytes(body, "little") > generation:
                generation, following, first, size = int.from_bytes(body, "little"), 0, 0, 0
                stored = ({}, {})
            elif prepare.operation == TRUNCATE:
                kept, removed = struct.unpack("<QQ", body)
                if first < kept <= following and removed <= size:
                    first, size = kept, size - removed
        return following, first, size, sorted(stored[0].items()), sorted(stored[1].items())

    def _committed(self, effect: Committed) -> None:
        prepare = effect.prepare
        op = prepare.op
        assert self.log[op - 1][0] == prepare, "what commits is what was appended"
        assert op - 1 in self.states, "commits come in op order"
        assert not self.failed, "a fenced group commits nothing"
        if op == self.plane.applied_op:
            self._check_state(op)
        else:
            self.states[op] = self.states.get(op)
        request = self.asked.pop(effect.origin)
        assert (request.client, request.session, request.request, request.digest) == (
            prepare.client,
            prepare.request_checksum_high,
            prepare.request,
            prepare.request_checksum,
        )
        self._answered(request, (op, prepare.timestamp, effect.reply))

    def _answered(self, request: Request, answer: tuple[int, int, bytes]) -> None:
        """A request was answered with success: equal requests get equal answers, and the entry holds what was asked."""
        op = answer[0]
        prepare = self.log[op - 1][0]
        assert op <= self.replica.commit_min, f"op {op} was acknowledged before it was committed"
        assert op <= self.appended, f"op {op} was acknowledged before it was written"
        assert prepare.durability == 0 or op <= self.synced, f"op {op} was acknowledged before it was synced"
        self.acknowledged[op] = (prepare.checksum, prepare.durability)
        assert prepare.timestamp == answer[1]
        assert prepare.request_checksum == request.digest, "the answer is that of another request"
        if request.operation == SEND:
            assert answer[2] == struct.pack("<IIII", 1, 1, 2, 3) + prepare.body[8:16]


__all__ = ["PartitionWorld", "batch", "client_id", "digest_of", "parse_send"]
