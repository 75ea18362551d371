"""A partition group of one under random requests, retries, writes, syncs, checkpoints and crashes, against what a
client may rely on.

The checks live in `tests.support.groups`. The second half plants faults into copies of the sources and demands that
the same runs find them: a check that cannot fail proves nothing.
"""

import random
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardsrv
import shardsrv.plane.partition.plane as plane_module
import shardsrv.vsr.replica as replica_module
from shardsrv.errors import LogIncoherent
from shardsrv.plane.partition import offsets
from shardsrv.vsr.events import APPENDED, SYNCED
from tests.support.groups import DELETE, PURGE, SEND, STORE, TRUNCATE, PartitionWorld, batch, client_id

AUTO_COMMIT = b"\xff" * 16
CLIENTS = 3


def run(world: PartitionWorld, choices: random.Random, steps: int) -> None:
    """A random life of ``steps`` steps."""
    sent: list[tuple[int, int, int, Any, int]] = []  # operation, client, number, body as sent, durability
    numbers = [0] * CLIENTS
    generation = 0
    for _ in range(steps):
        world.now += choices.choice((0, 0, 1, 50, -30))
        action = choices.random()
        client = choices.randrange(CLIENTS)
        durability = choices.randrange(2)
        if action < 0.34:
            # Half of the clients of the older generation do not count their sends.
            numbers[client] += choices.randrange(2)
            payloads = [choices.randbytes(3) for _ in range(choices.randrange(1, 4))]
            sent.append((SEND, client + 1, numbers[client] + 1, bytes(batch(*payloads)), durability))
            ask(world, sent[-1])
        elif action < 0.5 and sent:
            ask(world, choices.choice(sent[-6:]))
        elif action < 0.58:
            body = offsets.encode_stores([(choices.randrange(1, 3), 0, choices.randrange(2), choices.randrange(12))])
            sent.append((STORE, client + 1, numbers[client] + 1, body, durability))
            ask(world, sent[-1])
        elif action < 0.6:
            body = offsets.encode_keys([(choices.randrange(1, 3), choices.randrange(2))])
            sent.append((DELETE, client + 1, numbers[client] + 1, body, durability))
            ask(world, sent[-1])
        elif action < 0.63:
            body = offsets.encode_stores([(1, 1, choices.randrange(2), choices.randrange(12))])
            world.submit(world.request(STORE, 0, 0, body, client_bytes=AUTO_COMMIT))
        elif action < 0.64:
            generation += choices.randrange(2)
            body = offsets.encode_purge(generation)
            world.submit(world.request(PURGE, 0, 0, body, client_bytes=client_id(0)))
        elif action < 0.65 and world.plane.messages:
            kept = choices.randrange(world.plane.first_offset, world.plane.next_offset + 1)
            body = offsets.encode_truncate(kept, choices.randrange(world.plane.bytes + 1))
            world.submit(world.request(TRUNCATE, 0, 0, body, client_bytes=client_id(0)))
        elif action < 0.82:
            world.persist(APPENDED, choices.randrange(len(world.log) + 1))
        elif action < 0.93:
            world.persist(SYNCED, choices.randrange(len(world.log) + 1))
        elif action < 0.95:
            world.save_checkpoint()
        elif action < 0.96:
            world.fail()
            world.send(1, 1000, b"after the failure")
            world.append()
            world.crash(power=False)
        else:
            world.crash(power=choices.random() < 0.5, keep=choices.randrange(3), from_checkpoint=choices.random() < 0.5)
    world.sync()
    assert world.replica.in_flight == 0 or world.replica.status != replica_module.NORMAL
    world.crash(power=True)


def ask(world: PartitionWorld, what: tuple[int, int, int, Any, int]) -> None:
    operation, client, number, body, durability = what
    copy = bytearray(body) if operation == SEND else body
    world.submit(world.request(operation, client, number, copy, durability=durability))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), depth=st.integers(1, 9), window=st.integers(1, 20))
def test_whatever_happens_what_a_client_was_told_stays_true(seed: int, depth: int, window: int) -> None:
    run(PartitionWorld(depth=depth, window=window), random.Random(seed), 120)


def test_the_runs_reach_what_they_are_about() -> None:
    """Not a check of the product: that the random lives contain retries, crashes with loss, checkpoints, purges and
    truncations."""
    seen: dict[str, int] = {}
    for seed in range(25):
        world = PartitionWorld()
        carry_out, crash = world.carry_out, world.crash

        def counted(effects: list[Any], carry_out: Any = carry_out) -> list[Any]:
            for effect in effects:
                name = type(effect).__name__
                if name == "Committed":
                    name = f"operation {effect.prepare.operation}"
                elif name == "Refused":
                    name = f"status {effect.status}"
                seen[name] = seen.get(name, 0) + 1
            return carry_out(effects)

        def lossy(crash: Any = crash, world: PartitionWorld = world, **how: Any) -> None:
            before = len(world.acknowledged)
            crash(**how)
            seen["lost"] = seen.get("lost", 0) + before - len(world.acknowledged)

        world.carry_out, world.crash = counted, lossy  # type: ignore[method-assign]
        run(world, random.Random(seed), 150)
    wanted = ("Repeat", "operation 160", "operation 161", "operation 162", "operation 192", "operation 193", "lost")
    assert all(seen.get(name) for name in (*wanted, "status 57", "status 58", "status 4100", "status 3021")), seen


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


def found(
    replicas: types.ModuleType = replica_module, planes: types.ModuleType = plane_module, seeds: int = 60
) -> bool:
    """Whether a run fails."""
    for seed in range(seeds):
        try:
            run(PartitionWorld(replicas=replicas, planes=planes), random.Random(seed), 150)
        except (AssertionError, LogIncoherent, LookupError, AttributeError):
            return True
    return False


REPLICA_FAULTS = {
    "a persisted entry is acknowledged when it is only written": ("synced = durability == PERSISTED", "synced = False"),
    "a sync is taken for granted once anything was written": (
        "if persisted.level == SYNCED and persisted.token > self._synced:",
        "if persisted.token > self._synced:",
    ),
    "a retry of an op in flight is answered at once": (
        "if entry is None:\n            out.append(Repeat",
        "if True:\n            out.append(Repeat",
    ),
    "a retry that waits is forgotten": ("entry.waiters.append(origin)", "pass"),
    "the clock of the shell is believed when it runs backwards": (
        "timestamp = now if now > last else last + 1",
        "timestamp = now",
    ),
    "recovery forgets the newest timestamp": ("self.last_timestamp = prepare.timestamp", "pass"),
    "recovery forgets the identity of the head": (
        "self.head_checksum = prepare.checksum\n        self.last_timestamp = prepare",
        "self.last_timestamp = prepare",
    ),
    "a group whose write failed goes on": ("self.status = FENCED\n", "pass\n"),
    "a later entry commits before an earlier one": ("entry = entries[0]", "entry = entries[-1]"),
    "the session is not kept in the entry": (
        "request.session,\n            self.head_checksum,",
        "0,\n            self.head_checksum,",
    ),
    "a group serves before its first record is durable": (
        "self.write_state(out)\n        else:",
        "self.status = NORMAL\n            self.write_state(out)\n        else:",
    ),
    "the full pipeline takes one more": ("if len(pipeline.entries) >= pipeline.depth:", "if False:"),
}

PLANE_FAULTS = {
    "the digest is left out of the key, so another message under the same number is swallowed": (
        "request.request, request.digest)",
        "request.request, 0)",
    ),
    "recovery does not fill the window": ("self.dedup.insert(key, prepare.op, base, prepare.timestamp)", "pass"),
    "retries are not looked for": ("known = self.dedup.find(key)", "known = None"),
    "offsets go on after a purge": ("            self.head_next_offset = 0\n", "            pass\n"),
    "a purge leaves the offsets of consumers": ("self.consumer_offsets.clear()", "pass"),
    "a truncation forgets the bytes": ("self.bytes -= removed", "pass"),
    "a commit by a poll lowers what was stored": (
        "if not flags & offsets.KEEP_HIGHEST or offset > stored.get(key, -1):",
        "if True:",
    ),
    "an offset beyond the end is stored": ("if offset >= self.next_offset:", "if False:"),
    "the checkpoint forgets the window": (
        "dedup=self.dedup.rows(self.applied_op),\n            )",
        "dedup=[],\n            )",
    ),
    "the checkpoint forgets the floor of time": ("timestamp=self.timestamp,", "timestamp=0,"),
    "the checkpoint forgets the purge": ("purge_generation=self.purge_generation,", "purge_generation=0,"),
}


@pytest.mark.parametrize("fault", REPLICA_FAULTS)
def test_planted_in_the_replica_and_found(fault: str) -> None:
    assert found(replicas=planted(replica_module, *REPLICA_FAULTS[fault]))


@pytest.mark.parametrize("fault", PLANE_FAULTS)
def test_planted_in_the_plane_and_found(fault: str) -> None:
    assert found(planes=planted(plane_module, *PLANE_FAULTS[fault]))


def test_nothing_planted_and_nothing_found() -> None:
    unchanged = planted(replica_module, "status = FENCED\n", "status = FENCED\n")
    assert not found(
        replicas=unchanged, planes=planted(plane_module, "known = self.dedup.find(key)", "known = self.dedup.find(key)")
    )
