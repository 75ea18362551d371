"""A living node against a model of plain dictionaries: random valid and invalid commands of streams, topics,
partitions, groups, offsets and users,
with stops and kills (SIGKILL) between them.

Every answer is compared, code for code, and after every start the whole picture. Topics are ``persisted`` in one half
of the runs and ``replicated`` in the other: both
survive the end of a process. SHARDSRV_MODEL_STEPS sets the number of steps.
"""

import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import commands as c
from tests.support.client import Client, Evicted, Refused
from tests.support.frames import (
    CREATE_PARTITIONS,
    CREATE_STREAM,
    CREATE_TOPIC,
    DELETE_STREAM,
    NEXT,
    PURGE_STREAM,
    ConnectionLost,
    identifier,
    text,
)
from tests.support.node import Node

STEPS = int(os.environ.get("SHARDSRV_MODEL_STEPS", "1000"))
NAMES = ("a", "b", "c", "é")
PICKED = (*NAMES, 0, 1, 2)
ROUND = 400
"""Steps between two ends of the process, at most."""


class Model:
    """What the node should hold. Every command returns a code (0: done) and changes the model when it is done."""

    def __init__(self) -> None:
        self.streams: dict[int, dict[str, Any]] = {}
        self.users: dict[int, dict[str, Any]] = {0: {"name": "iggy", "password": "iggy", "tokens": set()}}

    @staticmethod
    def find(among: dict[int, dict[str, Any]], key: int | str) -> tuple[int, dict[str, Any]] | None:
        return next(((number, record) for number, record in among.items() if key in (number, record["name"])), None)

    @staticmethod
    def free(among: dict[int, Any]) -> int:
        return next(number for number in range(1_000_000) if number not in among)

    def topic(self, stream: int | str, topic: int | str) -> tuple[int, dict[str, Any]]:
        """(code, topic)."""
        found = self.find(self.streams, stream)
        if found is None:
            return 1009, {}
        inner = self.find(found[1]["topics"], topic)
        return (2010, {}) if inner is None else (0, inner[1])

    def create_stream(self, name: str) -> int:
        if self.find(self.streams, name) is not None and any(one["name"] == name for one in self.streams.values()):
            return 1012
        self.streams[self.free(self.streams)] = {"name": name, "topics": {}}
        return 0

    def update_stream(self, stream: int | str, name: str) -> int:
        found = self.find(self.streams, stream)
        if found is None:
            return 1009
        if any(one["name"] == name and one is not found[1] for one in self.streams.values()):
            return 1012
        found[1]["name"] = name
        return 0

    def delete_stream(self, stream: int | str) -> int:
        found = self.find(self.streams, stream)
        if found is None:
            return 1009
        del self.streams[found[0]]
        return 0

    def purge_stream(self, stream: int | str) -> int:
        found = self.find(self.streams, stream)
        if found is None:
            return 1009
        for topic in found[1]["topics"].values():
            self._purge(topic)
        return 0

    def create_topic(self, stream: int | str, name: str, partitions: int) -> int:
        found = self.find(self.streams, stream)
        if partitions > 1000:
            return 2015
        if found is None:
            return 1009
        topics = found[1]["topics"]
        if any(one["name"] == name for one in topics.values()):
            return 2013
        topics[self.free(topics)] = {
            "name": name, "partitions": [self._partition() for _ in range(partitions)], "groups": {}, "next": 0,
        }  # fmt: skip
        return 0

    def delete_topic(self, stream: int | str, topic: int | str) -> int:
        found = self.find(self.streams, stream)
        if found is None:
            return 1009
        inner = self.find(found[1]["topics"], topic)
        if inner is None:
            return 2010
        del found[1]["topics"][inner[0]]
        return 0

    def purge_topic(self, stream: int | str, topic: int | str) -> int:
        code, found = self.topic(stream, topic)
        if not code:
            self._purge(found)
        return code

    def create_partitions(self, stream: int | str, topic: int | str, count: int) -> int:
        if not 1 <= count <= 1000:
            return 2015
        code, found = self.topic(stream, topic)
        if not code:
            found["partitions"] += [self._partition() for _ in range(count)]
            self._assign_all(found)
        return code

    def delete_partitions(self, stream: int | str, topic: int | str, count: int) -> int:
        if not 1 <= count <= 1000:
            return 2015
        code, found = self.topic(stream, topic)
        if code:
            return code
        if count > len(found["partitions"]):
            return 2019
        del found["partitions"][len(found["partitions"]) - count :]
        self._assign_all(found)
        return 0

    def send(self, stream: int | str, topic: int | str, partition: int, payloads: list[bytes]) -> int:
        code, found = self.topic(stream, topic)
        if code or partition >= len(found["partitions"]):
            return 20
        found["partitions"][partition]["messages"] += payloads
        return 0

    def store(self, stream: int | str, topic: int | str, partition: int, offset: int, consumer: int | str) -> int:
        code, found = self.topic(stream, topic)
        if code or partition >= len(found["partitions"]):
            return 20
        record = found["partitions"][partition]
        if offset >= len(record["messages"]):
            return 4100
        record["offsets"][consumer] = offset
        return 0

    def forget(self, stream: int | str, topic: int | str, partition: int, consumer: int | str) -> int:
        code, found = self.topic(stream, topic)
        if code or partition >= len(found["partitions"]):
            return 20
        if found["partitions"][partition]["offsets"].pop(consumer, None) is None:
            return 3021
        return 0

    def create_group(self, stream: int | str, topic: int | str, name: str) -> int:
        code, found = self.topic(stream, topic)
        if code:
            return code
        if any(group["name"] == name for group in found["groups"].values()):
            return 5004
        found["groups"][found["next"]] = {"name": name, "member": False, "offsets": {}}
        found["next"] += 1
        return 0

    def _group(self, stream: int | str, topic: int | str, group: int | str) -> tuple[int, dict[str, Any], Any]:
        code, found = self.topic(stream, topic)
        if code:
            return code, {}, None
        inner = self.find(found["groups"], group)
        return (5000, {}, None) if inner is None else (0, found, inner)

    def delete_group(self, stream: int | str, topic: int | str, group: int | str) -> int:
        code, found, inner = self._group(stream, topic, group)
        if not code:
            del found["groups"][inner[0]]
        return code

    def join_group(self, stream: int | str, topic: int | str, group: int | str) -> int:
        code, _, inner = self._group(stream, topic, group)
        if not code:
            inner[1]["member"] = True
        return code

    def leave_group(self, stream: int | str, topic: int | str, group: int | str) -> int:
        code, _, inner = self._group(stream, topic, group)
        if code:
            return code
        if not inner[1]["member"]:
            return 5006
        inner[1]["member"] = False
        return 0

    def store_group(self, stream: int | str, topic: int | str, group: int | str, partition: int, offset: int) -> int:
        code, found, inner = self._group(stream, topic, group)
        if code or partition >= len(found["partitions"]) or not inner[1]["member"]:
            return 20
        if offset >= len(found["partitions"][partition]["messages"]):
            return 4100
        inner[1]["offsets"][partition] = offset
        return 0

    def create_user(self, name: str, password: str) -> int:
        if not 3 <= len(name.encode()) <= 50:
            return 43
        if any(user["name"] == name for user in self.users.values()):
            return 46
        self.users[self.free(self.users)] = {"name": name, "password": password, "tokens": set()}
        return 0

    def delete_user(self, user: int | str) -> int:
        found = self.find(self.users, user)
        if found is None:
            return 20
        if found[0] == 0:
            return 48
        del self.users[found[0]]
        return 0

    def change_password(self, user: int | str, current: str, new: str) -> int:
        found = self.find(self.users, user)
        if found is None:
            return 20
        if found[1]["password"] != current:
            return 42
        found[1]["password"] = new
        return 0

    def create_token(self, name: str) -> int:
        if name in self.users[0]["tokens"]:
            return 51
        self.users[0]["tokens"].add(name)
        return 0

    def delete_token(self, name: str) -> int:
        if name not in self.users[0]["tokens"]:
            return 20
        self.users[0]["tokens"].discard(name)
        return 0

    def lost(self) -> None:
        """The connection ended: its memberships end."""
        for stream in self.streams.values():
            for topic in stream["topics"].values():
                for group in topic["groups"].values():
                    group["member"] = False

    @staticmethod
    def _partition() -> dict[str, Any]:
        return {"messages": [], "offsets": {}}

    def _purge(self, topic: dict[str, Any]) -> None:
        for partition in topic["partitions"]:
            partition["messages"], partition["offsets"] = [], {}
        for group in topic["groups"].values():
            group["offsets"] = {}

    def _assign_all(self, topic: dict[str, Any]) -> None:
        for group in topic["groups"].values():
            group["offsets"] = {
                number: at for number, at in group["offsets"].items() if number < len(topic["partitions"])
            }


Step = tuple[Callable[[Client], object], Callable[[Model], int]]


def draw(random_: random.Random) -> Step:
    """A command for the node and the same for the model."""
    stream, topic, group = random_.choice(PICKED), random_.choice(PICKED), random_.choice(("g", "h", 0, 1))
    name, partition, count = random_.choice(NAMES), random_.randrange(3), random_.choice((0, 1, 1, 2, 1001))
    offset = random_.choice((0, 1, 3, 7, 50))
    consumer = random_.choice((1, 2, "reader"))
    user = random_.choice((0, 1, 2, "iggy", "anna", "bert"))
    new_user, password = random_.choice(("anna", "bert", "xy")), random_.choice(("secret", "other"))
    token = random_.choice(("one", "two"))
    payloads = [b"%d" % random_.randrange(1000) for _ in range(random_.choice((1, 1, 3, 10)))]
    counted = struct.pack("<I", count)
    where = identifier(stream) + identifier(topic)
    steps: list[tuple[int, Step]] = [
        (6, (lambda k: k.change(CREATE_STREAM, text(name)), lambda m: m.create_stream(name))),
        (
            2,
            (
                lambda k: k.change(c.UPDATE_STREAM, identifier(stream) + text(name)),
                lambda m: m.update_stream(stream, name),
            ),
        ),
        (2, (lambda k: k.change(DELETE_STREAM, identifier(stream)), lambda m: m.delete_stream(stream))),
        (1, (lambda k: k.change(PURGE_STREAM, identifier(stream)), lambda m: m.purge_stream(stream))),
        (
            12,
            (
                lambda k: k.change(CREATE_TOPIC, identifier(stream) + counted + text(name)),
                lambda m: m.create_topic(stream, name, count),
            ),
        ),
        (2, (lambda k: c.delete_topic(k, stream, topic), lambda m: m.delete_topic(stream, topic))),
        (1, (lambda k: c.purge_topic(k, stream, topic), lambda m: m.purge_topic(stream, topic))),
        (
            4,
            (
                lambda k: k.change(CREATE_PARTITIONS, where + counted),
                lambda m: m.create_partitions(stream, topic, count),
            ),
        ),
        (
            3,
            (
                lambda k: k.change(c.DELETE_PARTITIONS, where + counted),
                lambda m: m.delete_partitions(stream, topic, count),
            ),
        ),
        (
            30,
            (
                lambda k: k.send(stream, topic, partition, payloads),
                lambda m: m.send(stream, topic, partition, payloads),
            ),
        ),
        (
            15,
            (
                lambda k: k.store_offset(stream, topic, partition, offset, consumer),
                lambda m: m.store(stream, topic, partition, offset, consumer),
            ),
        ),
        (
            5,
            (
                lambda k: k.delete_offset(stream, topic, partition, consumer),
                lambda m: m.forget(stream, topic, partition, consumer),
            ),
        ),
        (
            8,
            (
                lambda k: c.create_group(k, stream, topic, "g" if offset < 3 else "h"),
                lambda m: m.create_group(stream, topic, "g" if offset < 3 else "h"),
            ),
        ),
        (2, (lambda k: c.delete_group(k, stream, topic, group), lambda m: m.delete_group(stream, topic, group))),
        (8, (lambda k: c.join_group(k, stream, topic, group), lambda m: m.join_group(stream, topic, group))),
        (3, (lambda k: c.leave_group(k, stream, topic, group), lambda m: m.leave_group(stream, topic, group))),
        (
            10,
            (
                lambda k: c.store_group_offset(k, stream, topic, group, partition, offset),
                lambda m: m.store_group(stream, topic, group, partition, offset),
            ),
        ),
        (2, (lambda k: c.create_user(k, new_user, password), lambda m: m.create_user(new_user, password))),
        (1, (lambda k: c.delete_user(k, user), lambda m: m.delete_user(user))),
        (
            1,
            (
                lambda k: c.change_password(k, user, password, "third"),
                lambda m: m.change_password(user, password, "third"),
            ),
        ),
        (2, (lambda k: c.create_token(k, token), lambda m: m.create_token(token))),
        (1, (lambda k: c.delete_token(k, token), lambda m: m.delete_token(token))),
    ]
    return random_.choices([step for _, step in steps], [weight for weight, _ in steps])[0]


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


@pytest.mark.parametrize("seed", [1, 2])
def test_random_lives(tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)
    environment = {
        "IGGY_TOPIC_DURABILITY": ("replicated", "persisted")[seed % 2],
        "IGGY_USERS_ARGON2_MEMORY": "64 KiB",
        "IGGY_USERS_ARGON2_ITERATIONS": "1",
    }
    model = Model()
    with Node(tmp_path, environment=environment) as node:
        client = log_in(node, model)
        done = 0
        trail: list[str] = []
        while done < STEPS // 2:
            for _ in range(random_.randint(ROUND // 4, ROUND)):
                ask, expect = draw(random_)
                try:
                    ask(client)
                    code = 0
                except Refused as refused:
                    code = refused.code
                except (Evicted, ConnectionLost) as error:
                    raise AssertionError(f"step {done} of seed {seed}: {error}\n{node.log_tail()}") from error
                wanted = expect(model)
                trail.append(f"{done}: {code} {expect.__code__.co_names}")
                assert code == wanted, (
                    f"step {done} of seed {seed}: {code} instead of {wanted}: {expect.__code__.co_names}\n"
                    + "\n".join(trail[-20:])
                )
                done += 1
            compare(client, model)
            end = random_.choice(("stop", "kill", "reconnect"))
            if end != "reconnect":
                password, model.users[0]["password"] = model.users[0]["password"], "iggy"
                if password != "iggy":
                    c.change_password(client, 0, password, "iggy")
                node.stop() if end == "stop" else node.kill()
                node.start()
            client.close()
            model.lost()
            client = log_in(node, model)
            wait_for_logout(client, model)
            compare(client, model)
        client.close()


def wait_for_logout(client: Client, model: Model) -> None:
    """The logout that the end of a connection causes is on its way: the first look may be too early."""
    for _ in range(200):
        try:
            return compare(client, model)
        except AssertionError:
            client.ping()
    return None
