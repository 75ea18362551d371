"""The metadata group of one under random logins, requests, retries, logouts and crashes: nothing a client asked is
executed twice, and recovery gives the client table of before. The second half plants faults into copies of the sources
and demands that they are found."""

import random
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardsrv
import shardsrv.vsr.client_gate as gate_module
import shardsrv.vsr.client_table as table_module
import shardsrv.vsr.replica as replica_module
from shardsrv._core import Prepare, xxh3
from shardsrv.errors import ShardsrvError
from shardsrv.vsr.effects import Append, Committed, Refused, Repeat
from shardsrv.vsr.events import APPENDED, SYNCED, Persisted, Request
from shardsrv.vsr.plane import Plane
from shardsrv.vsr.policy import metadata_policy
from shardsrv.vsr.state import VsrState
from tests.support.groups import CLUSTER, client_id

REGISTER, LOGOUT, CREATE_STREAM = 1, 3, 128


class Ledger(Plane):
    """Remembers what was executed; the reply names the op, so a repeated reply shows where it came from."""

    def __init__(self) -> None:
        self.executed: list[tuple[bytes, int, int, int]] = []
        self.gone: list[bytes] = []

    def prepare(self, request: Request, op: int, timestamp: int) -> tuple[Any, int]:
        return request.body, xxh3(request.body)

    def apply(self, prepare: Any) -> bytes:
        session = prepare.request_checksum_high
        self.executed.append((prepare.client, session, prepare.operation, prepare.request))
        return bytes(4) + prepare.op.to_bytes(8, "little")

    def client_gone(self, client: bytes) -> None:
        self.gone.append(client)


class MetadataWorld:
    """The group on a list as its log."""

    def __init__(self, replicas: types.ModuleType, tables: types.ModuleType, capacity: int) -> None:
        self.replicas, self.tables, self.capacity = replicas, tables, capacity
        self.log: list[tuple[Prepare, int]] = []
        self.synced = 0
        self.snapshots: dict[int, Any] = {}
        self.saved: tuple[int, Any] | None = None
        self.boot(0)

    def boot(self, snapshot_op: int) -> None:
        self.plane = Ledger()
        last = self.log[snapshot_op - 1][0] if snapshot_op else None
        rows = self.saved[1] if snapshot_op and self.saved else []
        self.replica = self.replicas.Replica.recover(
            self.replicas.GroupIdentity(CLUSTER, 1 << 63, 0),
            metadata_policy(8, self.capacity),
            self.plane,
            VsrState(CLUSTER, 0, 1),
            op=snapshot_op,
            checksum=last.checksum if last else 0,
            timestamp=last.timestamp if last else 0,
            table=self.tables.ClientTable.restore(rows, self.capacity),
        )
        for prepare, _ in self.log[snapshot_op:]:
            self.replica.replay(prepare)
            self.check_table(prepare.op)
        assert self.replica.start() == []
        self.log = [(prepare, 0) for prepare, _ in self.log]
        self.synced = len(self.log)

    def check_table(self, op: int) -> None:
        rows = self.replica.table.snapshot()
        assert {row[1]: (row[2], row[4]) for row in rows} == self.model(op)
        assert self.snapshots.setdefault(op, rows) == rows, f"the table of op {op} was another one before"

    def model(self, op: int) -> dict[bytes, tuple[int, int]]:
        """Client -> (session, highest number) after the first ``op`` entries."""
        known: dict[bytes, list[int]] = {}  # session, highest number, newest op
        for at, (client, session, operation, number) in enumerate(self.history(op), 1):
            entry = known.get(client)
            if operation == REGISTER and entry:
                entry[0] = entry[2] = at
            elif operation == REGISTER:
                if len(known) == self.capacity:
                    del known[min(known, key=lambda each: known[each][2])]
                known[client] = [at, 0, at]
            elif entry and entry[0] == session:
                if operation == LOGOUT:
                    del known[client]
                else:
                    entry[1:] = number, at
        return {client: (session, number) for client, (session, number, _) in known.items()}

    def ask(self, operation: int, client: int, session: int, number: int, user: int = 3) -> list[Any]:
        body = b"%d" % number
        digest = xxh3(body) if client % 2 else 0  # not all clients stamp a digest
        origin = client, session, number
        request = Request(client_id(client), session, number, operation, user, digest, 0, body, origin, 1000)
        flying = [
            entry for entry in self.history(len(self.log))[self.replica.commit_min :] if entry[0] == request.client
        ]
        effects = self.replica.step(request)
        for effect in effects:
            if type(effect) is Append:
                assert operation == LOGOUT or not flying, "two requests of a client are in flight"
                assert effect.sync and effect.prepare.durability == 1
                self.log.append((effect.prepare, effect.token))
            elif type(effect) is Repeat:
                # A newer session of the client may ask again for what an older one was told.
                entry = self.history(effect.op)[-1]
                assert (entry[0], entry[2], entry[3]) == (client_id(client), CREATE_STREAM, number)
                assert effect.reply == bytes(4) + effect.op.to_bytes(8, "little"), "a retry got another answer"
            else:
                assert type(effect) is Refused
                assert effect.status != 57 or flying, "refused for a request that is not in flight"
        return effects

    def history(self, through: int) -> list[tuple[bytes, int, int, int]]:
        return [
            (prepare.client, prepare.request_checksum_high, prepare.operation, prepare.request)
            for prepare, _ in self.log[:through]
        ]

    def persist(self, level: int, through: int) -> None:
        if through == 0 or self.log[through - 1][1] == 0:
            return
        if level == SYNCED:
            self.synced = max(self.synced, through)
        effects = self.replica.step(Persisted(self.log[through - 1][1], level))
        for effect in effects:
            assert type(effect) is Committed
            prepare = effect.prepare
            assert prepare.op <= self.synced, "metadata is acknowledged when it is synced"
        if effects:
            self.check_table(self.replica.commit_min)

    def crash(self, keep: int, use_snapshot: bool) -> None:
        survives = min(len(self.log), self.synced + keep)
        self.log = self.log[:survives]
        self.snapshots = {op: rows for op, rows in self.snapshots.items() if op <= survives}
        self.boot(self.saved[0] if use_snapshot and self.saved else 0)


def run(world: MetadataWorld, choices: random.Random, steps: int) -> None:
    numbers: dict[int, int] = {}
    for _ in range(steps):
        action = choices.random()
        client = choices.randrange(1, 5)
        entry = world.replica.table.get(client_id(client))
        session = entry.epoch if entry else choices.randrange(1, 9)
        if action < 0.12:
            world.ask(REGISTER, client, 0, 0, user=3 if choices.random() < 0.9 else 4)
        elif action < 0.42:
            numbers[client] = numbers.get(client, 0) + choices.choice((1, 1, 1, 2))
            world.ask(CREATE_STREAM, client, session, numbers[client])
        elif action < 0.6:
            number = max(1, numbers.get(client, 1) - choices.choice((0, 0, 0, 1, 3, 7)))
            effects = world.ask(CREATE_STREAM, client, session, number)
            if entry and number <= entry.watermark:
                assert not effects or type(effects[0]) is not Append, "a number at or below the watermark ran again"
        elif action < 0.65:
            world.ask(CREATE_STREAM, client, max(1, session - 1), numbers.get(client, 1) + 5)
        elif action < 0.7:
            world.ask(LOGOUT, client, session, numbers.get(client, 0) + 1)
        elif action < 0.78:
            world.persist(APPENDED, choices.randrange(len(world.log) + 1))
        elif action < 0.93:
            world.persist(SYNCED, choices.randrange(len(world.log) + 1))
        elif action < 0.95:
            if world.replica.commit_min:
                world.saved = (world.replica.commit_min, world.replica.table.snapshot())
        else:
            world.crash(choices.randrange(3), choices.random() < 0.5)
        at_most_once(world)


def at_most_once(world: MetadataWorld) -> None:
    """A session's request stands in the log once, unless its client was forgotten in between (another Register made
    the session)."""
    requests = [entry for entry in world.history(len(world.log)) if entry[2] == CREATE_STREAM]
    assert len(requests) == len(set(requests)), "a request is in the log twice"
    epochs: dict[bytes, int] = {}
    for op, (client, session, operation, _) in enumerate(world.history(len(world.log)), 1):
        if operation == REGISTER:
            epochs[client] = op
        elif operation == CREATE_STREAM:
            assert session == epochs[client], "a request of a session that a newer login had ended"


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), capacity=st.integers(2, 5))
def test_nothing_runs_twice_and_recovery_gives_the_table_of_before(seed: int, capacity: int) -> None:
    run(MetadataWorld(replica_module, table_module, capacity), random.Random(seed), 120)


# --- planted faults ---------------------------------------------------------------------------------------------------


def planted(module: types.ModuleType, old: str, new: str, **names: Any) -> types.ModuleType:
    """A copy of ``module`` with ``old``, which occurs once, replaced; ``names`` override what it imported.
    Interpreted."""
    path = Path(shardsrv.__file__).parent.parent / (module.__name__.replace(".", "/") + ".py")
    source = path.read_text()
    assert source.count(old) == 1, f"{old!r} occurs {source.count(old)} times"
    copy = types.ModuleType(module.__name__ + "_planted")
    exec(compile(source.replace(old, new), str(path), "exec"), copy.__dict__)
    copy.__dict__.update(names)
    return copy


def found(gates: types.ModuleType = gate_module, tables: types.ModuleType = table_module) -> bool:
    marker = "from __future__ import annotations\n"
    replicas = planted(replica_module, marker, marker, ClientGate=gates.ClientGate, ClientTable=tables.ClientTable)
    for seed in range(80):
        try:
            run(MetadataWorld(replicas, tables, 3), random.Random(seed), 150)
        except (AssertionError, ShardsrvError, LookupError):
            return True
    return False


GATE_FAULTS = {
    "requests are not looked up": ("if decision.action != preflight.EXECUTE:", "if False:"),
    "a client may have two requests in flight": (
        "request.session, request.request, request.digest, client in self._busy",
        "request.session, request.request, request.digest, False",
    ),
    "a client may log in twice at once": (
        "preflight_register(self.table, client, request.user_id, client in self._busy)",
        "preflight_register(self.table, client, request.user_id, False)",
    ),
    "a client that left the pipeline stays busy": (
        "            del self._busy[client]\n",
        "            self._busy[client] = 1\n",
    ),
    "replies are not kept": ("            table.commit_request(\n", "            (lambda *_: None)(\n"),
    "a logout forgets nothing": ("                table.remove(client)\n", "                pass\n"),
    "a logout of an older session removes the newer one": ("if table.owns(client, session):", "if True:"),
}

TABLE_FAULTS = {
    "the watermark does not move": ("        entry.watermark = request\n", ""),
    "a register keeps the older epoch": ("            entry.epoch = op\n", ""),
    "a register forgets the watermark": ("            entry.user_id = user_id\n", "            entry.watermark = 0\n"),
    "the table grows beyond its capacity": ("if len(self._order) >= self.capacity:", "if False:"),
    "the newest client is evicted after a restart, the oldest before": (
        "entries.sort(key=lambda entry: (entry.latest_op, entry.slot))",
        "entries.sort(key=lambda entry: (-entry.latest_op, entry.slot))",
    ),
    "a snapshot forgets which slots are free": ("table._free = [slot", "table._free = [] and [slot"),
    "the reply of another request is repeated": (
        "if reply.request == request and reply.operation != _REGISTER:",
        "if reply.operation != _REGISTER:",
    ),
}


@pytest.mark.parametrize("fault", GATE_FAULTS)
def test_planted_in_the_gate_and_found(fault: str) -> None:
    assert found(gates=planted(gate_module, *GATE_FAULTS[fault]))


@pytest.mark.parametrize("fault", TABLE_FAULTS)
def test_planted_in_the_table_and_found(fault: str) -> None:
    assert found(tables=planted(table_module, *TABLE_FAULTS[fault]))


def test_nothing_planted_and_nothing_found() -> None:
    assert not found()
