"""The prepare log against a model: any mix of appends, flushes, syncs, cuts, drops, failures and restarts.

The model is a list of entries and four numbers. A restart after a kill keeps what was flushed; a restart after a power
loss keeps what was synced and any prefix of the bytes behind it.
"""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shardsrv._core import Prepare, slice_prepares
from shardsrv.errors import DiskFault
from shardsrv.store.disk import OsDisk
from shardsrv.store.log import LogFacts, PrepareLog, ResumePoint
from shardsrv.store.recovery import Action
from shardsrv.store.segment import Position
from tests.support.batches import decode_batches
from tests.support.logs import IDENTITY, Chain, abandon, fast_directory, segment_files, sync_log


class Flaky(OsDisk):
    """Fails the next vectored write half way, when told to. Not the system's own disk: takes the general path of a
    flush."""

    def __init__(self) -> None:
        super().__init__()
        self.fail_next = False
        self.pwritev = self._write  # type: ignore[assignment]

    def _write(self, handle: int, buffers: list, position: int) -> int:
        if self.fail_next:
            self.fail_next = False
            data = b"".join(buffers)
            os.pwrite(handle, data[: len(data) // 2], position)
            raise OSError(28, "full")
        return os.pwritev(handle, buffers, position)


class LogMachine(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self._context = fast_directory()
        self.directory = self._context.__enter__()

    def teardown(self) -> None:
        abandon(self.log)
        self._context.__exit__(None, None, None)

    @initialize(segment_size=st.sampled_from([700, 2000, 70_000]), direct=st.booleans())
    def begin(self, segment_size: int, direct: bool) -> None:
        self.segment_size = segment_size
        self.disk = OsDisk() if direct else Flaky()
        self.entries: list[Prepare] = []
        self.pending: list[Prepare] = []
        self.synced = 0
        self.dropped = 0
        self.resume: ResumePoint | None = None
        self.chain = Chain()
        self.reopen(LogFacts())

    def reopen(self, facts: LogFacts) -> None:
        seen: list[Prepare] = []
        self.log, self.recovery = PrepareLog.open(
            self.disk,
            str(self.directory),
            IDENTITY,
            segment_size=self.segment_size,
            resume=self.resume,
            facts=facts,
            on_prepare=seen.append,
        )
        self.replayed = seen

    # --- writing ---------------------------------------------------------------------------------------------------

    @rule(kind=st.integers(0, 9), count=st.integers(1, 4), size=st.sampled_from([0, 7, 300, 3000]))
    def append(self, kind: int, count: int, size: int) -> None:
        if kind == 0:
            prepare = self.chain.purge(again=count > 2)
        elif kind < 4:
            prepare = self.chain.other(size)
        else:
            prepare = self.chain.send(count, size)
        self.log.append(prepare)
        self.pending.append(prepare)

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.entries += self.pending
        self.pending = []

    @precondition(lambda self: isinstance(self.disk, Flaky) and self.pending)
    @rule()
    def fail(self) -> None:
        assert isinstance(self.disk, Flaky)
        self.disk.fail_next = True
        try:
            self.log.flush()
            raise AssertionError("the write was to fail")
        except DiskFault:
            self.pending = []
            self.chain = self.behind(len(self.entries))

    def behind(self, op: int) -> Chain:
        """A chain that goes on behind ``op``."""
        offset = 0
        for prepare in self.entries[:op]:
            if prepare.operation == 192:
                offset = 0 if self.last_purge(prepare.op)[0] == prepare.op else offset
            elif prepare.operation == 160:
                offset += len(decode_batches(bytes(prepare.body))[0].messages)
        chain = Chain(self.entries[op - 1].checksum if op else 0, op + 1, offset)
        chain.generation = self.last_purge(op)[1]
        return chain

    def last_purge(self, op: int) -> tuple[int, int]:
        """(op, generation) of the last purge at or below ``op`` that took effect."""
        last = (0, 0)
        for prepare in self.entries[:op]:
            if prepare.operation == 192:
                generation = int.from_bytes(prepare.body, "little")
                if generation > last[1]:
                    last = (prepare.op, generation)
        return last

    @rule()
    def sync(self) -> None:
        sync_log(self.log)
        self.synced = len(self.entries)

    @precondition(lambda self: not self.pending and len(self.entries) > self.dropped)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        lowest = max(self.log.first_op, self.resume.op + 1 if self.resume else 1)
        op = data.draw(st.integers(lowest, max(lowest, len(self.entries))))
        if not self.log.first_op <= op <= len(self.entries):
            return
        self.log.truncate_from(op)
        self.chain = self.behind(op - 1)
        del self.entries[op - 1 :]
        self.synced = op - 1

    @precondition(lambda self: self.synced > self.dropped)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """A checkpoint of what is synced, then the head segments below it go."""
        op = data.draw(st.integers(max(1, self.resume.op if self.resume else 1), self.synced))
        self.resume = ResumePoint(op, self.entries[op - 1].checksum, self.behind(op).offset, *self.last_purge(op))
        self.log.drop_below(data.draw(st.integers(1, op)))
        self.dropped = self.log.first_op - 1

    # --- restarts --------------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        self.pending = []
        self.chain = self.behind(len(self.entries))
        first = self.resume.op if self.resume else 0
        assert self.replayed == self.entries[first:]

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        if clean:
            sync_log(self.log)
            self.synced = len(self.entries)
            self.log.close()
        else:
            abandon(self.log)
        checksum = self.entries[self.synced - 1].checksum if self.synced else 0
        self.reopen(LogFacts(self.synced, True, clean, 1, checksum))
        assert self.recovery.action is Action.ACCEPT
        self.go_on()

    @rule(data=st.data())
    def lose_power(self, data: st.DataObject) -> None:
        """The last file ends anywhere behind what was synced."""
        abandon(self.log)
        files = segment_files(self.directory)
        if files:
            last = files[-1]
            whole = last.read_bytes()
            safe, at, op = 0, 256, int(last.name[:20])
            while at < len(whole):
                at += int.from_bytes(whole[at + 48 : at + 52], "little")
                if op <= self.synced:
                    safe = at
                op += 1
            length = data.draw(st.integers(safe, len(whole)))
            last.write_bytes(whole[:length])
        self.reopen(LogFacts(self.synced))
        assert self.log.head_op >= self.synced
        del self.entries[self.log.head_op :]
        self.go_on()

    # --- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "log"):
            return
        log, entries = self.log, self.entries
        head = entries[-1].checksum if entries else 0
        assert (log.head_op, log.head_checksum) == (len(entries), head)
        assert log.next_offset == self.behind(len(entries)).offset
        assert log.pending_bytes == sum(prepare.size for prepare in self.pending)
        assert self.synced <= log.synced_op <= log.head_op
        assert list(log.scan(1)) == entries[log.first_op - 1 :]

    @invariant()
    def every_offset_is_found(self) -> None:
        if not hasattr(self, "log") or not self.entries:
            return
        log = self.log
        last_purge = self.last_purge(len(self.entries))[0]
        expected = []
        for prepare in self.entries[max(last_purge, log.first_op - 1) :]:
            if prepare.operation == 160:
                expected += [message.offset for message in decode_batches(bytes(prepare.body))[0].messages]
        assert log.floor_op == last_purge
        for wanted in {*expected[:1], *expected[-1:], *expected[len(expected) // 2 :][:1]}:
            found = []
            at: Position | None = log.locate_offset(wanted)
            while at is not None:
                buffer = bytearray(1 << 16)
                length = log.read_into(at, buffer)
                part = slice_prepares(memoryview(buffer)[:length], 0, length, wanted, 1 << 30, log.head_op)
                for batch in decode_batches(b"".join(map(bytes, part.parts))):
                    found += [message.offset for message in batch.messages]
                at = Position(at.segment, at.byte + part.position)
                if not log.available(at):
                    at = log.next_segment(at)
            assert found == [offset for offset in expected if offset >= wanted]


LogMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLogAgainstModel = LogMachine.TestCase


def test_a_drop_that_was_interrupted_is_finished_by_the_next(tmp_path: Path) -> None:
    log, _ = PrepareLog.open(OsDisk(), str(tmp_path), IDENTITY, segment_size=500)
    chain = Chain()
    for _ in range(5):
        log.append(chain.other(300))
    log.flush()
    sync_log(log)
    plan = log.drop_plan(4)
    left = plan.first_ops.pop()
    plan.run()
    abandon(log)
    resume = ResumePoint(4, Prepare.load_header(segment_files(tmp_path)[-1].read_bytes(), 256).parent, 0)
    again, _ = PrepareLog.open(OsDisk(), str(tmp_path), IDENTITY, segment_size=500, resume=resume)
    assert again.first_op == left
    again.drop_below(4)
    assert [prepare.op for prepare in again.scan(1)] == [4, 5]
