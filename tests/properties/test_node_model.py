"""A living node against a model of plain dictionaries: random valid and invalid commands of streams, topics,
partitions, groups, offsets and users, and polls, with stops and kills (SIGKILL) between them.

Every answer is compared, code for code and message for message, and the whole picture once in `LOOK` steps and after
every start. Topics are ``persisted`` in one half of the runs and ``replicated`` in the other: both survive the end of a
process. The data lies in memory where the machine has such a file system: the end of a process takes nothing of it, and
a step costs no sync. SHARDSRV_MODEL_STEPS sets the steps of all runs together (6,000; with ``--long`` 100,000),
SHARDSRV_MODEL_SEEDS the runs ("1,2").
"""

import os
import random
import time
from collections import Counter, deque
from pathlib import Path

import pytest

from tests.support import commands as c
from tests.support.batches import BadBatch
from tests.support.client import Client, Evicted, Refused
from tests.support.frames import NEXT, ConnectionLost
from tests.support.node import Node
from tests.support.node_model import Model
from tests.support.node_steps import draw

SEEDS = [int(seed) for seed in os.environ.get("SHARDSRV_MODEL_SEEDS", "1,2").split(",")]
LIFE = 2000
"""Steps between two ends of the connection or the process, at most."""
LOOK = 500
"""Steps between two looks at the whole picture."""
PATIENCE = 120.0
"""Seconds for a start: what is looked at here is what it finds, on a machine that may do much else."""


def compare(client: Client, model: Model) -> None:
    """The whole picture."""
    assert set(c.tokens(client)) == model.users[0]["tokens"]
    size = messages = 0
    for stream_id, stream in model.streams.items():
        for topic_id, topic in stream["topics"].items():
            facts = c.topic_facts(client, stream_id, topic_id)
            assert facts is not None and len(facts.partitions) == len(topic["partitions"])
            for number, partition in enumerate(topic["partitions"]):
                found = client.poll_all(stream_id, topic_id, number)
                assert [message.payload for message in found] == partition["messages"]
                assert [message.offset for message in found] == list(range(len(found)))
                assert facts.partitions[number].messages == len(found)
                for consumer in (1, 2, "reader"):
                    assert client.get_offset(stream_id, topic_id, number, consumer) == partition["offsets"].get(
                        consumer
                    )
                stored = partition["offsets"].get(1)
                if stored is not None:
                    rest = client.poll(stream_id, topic_id, number, strategy=NEXT, consumer=1)
                    assert [message.payload for message in rest] == partition["messages"][stored + 1 :]
                for group_id, group in topic["groups"].items():
                    assert c.group_offset(client, stream_id, topic_id, group_id, number) == group["offsets"].get(number)
            for group_id, group in topic["groups"].items():
                members = c.group_members(client, stream_id, topic_id, group_id)
                wanted = {0: list(range(len(topic["partitions"])))} if group["member"] else {}
                assert members == wanted
            size += facts.size
            messages += facts.messages
        assert c.topic_facts(client, stream_id, "no such topic") is None
    assert c.total_messages(client) == (size, messages)


def log_in(node: Node, model: Model) -> Client:
    client = Client(node.host, node.port)
    client.login("iggy", model.users[0]["password"])
    return client


class Run:
    """One sequence of steps on a node and on its model; `done` counts them."""

    def __init__(self, node: Node, seed: int) -> None:
        self.node = node
        self.seed = seed
        self.random = random.Random(seed)
        self.model = Model()
        self.client = log_in(node, self.model)
        self.done = 0
        self._trail: deque[str] = deque(maxlen=20)

    def step(self) -> None:
        """One command to both. Raises ``AssertionError`` with the steps before it when the outcomes differ."""
        ask, expect = draw(self.random, self.model)
        outcome: object
        try:
            answer = ask(self.client)
            wanted = expect(self.model)
            outcome = 0 if isinstance(wanted, int) else answer
        except Refused as refused:
            outcome, wanted = refused.code, expect(self.model)
        except (Evicted, ConnectionLost, BadBatch) as error:
            raise AssertionError(f"step {self.done} of seed {self.seed}: {error}\n{self.node.log_tail()}") from error
        self._trail.append(f"{self.done}: {outcome} {expect.__code__.co_names}")
        assert outcome == wanted, f"seed {self.seed}: not {wanted} but, after other steps,\n" + "\n".join(self._trail)
        self.done += 1

    def live(self, steps: int) -> None:
        """So many steps."""
        for number in range(steps):
            self.step()
            if number % LOOK == LOOK - 1:
                compare(self.client, self.model)
        compare(self.client, self.model)

    def end(self, how: str) -> None:
        """The end of a life (stop, kill, or of the connection alone) and the beginning of the next."""
        if how != "reconnect":
            password, self.model.users[0]["password"] = self.model.users[0]["password"], "iggy"
            if password != "iggy":
                c.change_password(self.client, 0, password, "iggy")
            self.node.stop() if how == "stop" else self.node.kill()
            self.node.start(PATIENCE)
        self.client.close()
        self.model.lost()
        self.client = log_in(self.node, self.model)
        wait_for_logout(self.client, self.model)
        compare(self.client, self.model)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_lives(place: Path, seed: int, request: pytest.FixtureRequest) -> None:
    steps = int(os.environ.get("SHARDSRV_MODEL_STEPS", "100000" if request.config.getoption("--long") else "6000"))
    environment = {
        "IGGY_TOPIC_DURABILITY": ("replicated", "persisted")[seed % 2],
        "IGGY_USERS_ARGON2_MEMORY": "64 KiB",
        "IGGY_USERS_ARGON2_ITERATIONS": "1",
    }
    wanted = steps // len(SEEDS)
    with Node(place, environment=environment) as node:
        run = Run(node, seed)
        ends: Counter[str] = Counter()
        began = time.monotonic()
        while run.done < wanted:
            run.live(min(run.random.randint(LIFE // 6, LIFE), wanted - run.done))
            how = ("kill", "reconnect", "stop", "kill")[ends.total() % 4]
            run.end(how)
            ends[how] += 1
        run.client.close()
        print(f"seed {seed}: {run.done} steps in {time.monotonic() - began:.1f} s, ends {dict(ends)}, no difference")


def wait_for_logout(client: Client, model: Model) -> None:
    """The logout that the end of a connection causes is on its way: the first look may be too early."""
    for _ in range(200):
        try:
            return compare(client, model)
        except AssertionError:
            client.ping()
    return None
