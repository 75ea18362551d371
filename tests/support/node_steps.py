"""Random steps for a node and its model: each is a command for the one and the same command for the other.

Most steps name what exists, so that most have an effect; the others name anything. Weights keep a few streams with a
few topics alive for long enough that offsets, groups and messages gather in them.
"""

import random
import struct
from collections.abc import Callable
from typing import Any

from tests.support import commands as c
from tests.support.batches import Message
from tests.support.client import Client
from tests.support.frames import (
    BY_OFFSET,
    CREATE_PARTITIONS,
    CREATE_STREAM,
    CREATE_TOPIC,
    DELETE_STREAM,
    FIRST,
    LAST,
    NEXT,
    PURGE_STREAM,
    identifier,
    text,
)
from tests.support.node_model import Model, Outcome

NAMES = ("a", "b", "c", "é")
PICKED = (*NAMES, 0, 1, 2)
EXISTING = 0.85
"""Share of names that are taken from what exists."""

Step = tuple[Callable[[Client], object], Callable[[Model], Outcome]]
Weighted = tuple[float, Step]


class Draw:
    """What one step is about: the names and numbers that its command may use."""

    def __init__(self, dice: random.Random, model: Model) -> None:
        self.dice = dice
        self.stream, streams = self._pick(model.streams, PICKED)
        self.topic, topics = self._pick(streams.get("topics", {}), PICKED)
        self.group, _ = self._pick(topics.get("groups", {}), ("g", "h", 0, 1))
        self.user, _ = self._pick(model.users, (0, 1, 2, "iggy", "anna", "bert"))
        partitions = topics.get("partitions", [])
        self.partition = dice.randrange(len(partitions)) if partitions and self._existing() else dice.randrange(3)
        messages = partitions[self.partition]["messages"] if self.partition < len(partitions) else []
        self.offset = dice.randrange(len(messages)) if messages and self._existing() else dice.choice((0, 7, 50, 999))
        self.name, self.new_group = dice.choice(NAMES), dice.choice(("g", "h"))
        self.consumer = dice.choice((1, 2, "reader"))
        self.auto_commit, self.most = dice.random() < 0.5, dice.choice((1, 4, 1000))

    def _existing(self) -> bool:
        return self.dice.random() < EXISTING

    def _pick(self, among: dict[int, dict[str, Any]], otherwise: tuple[int | str, ...]) -> tuple[int | str, dict]:
        """(id or name, record) of something that exists, or any name and an empty record."""
        if not among or not self._existing():
            return self.dice.choice(otherwise), {}
        key = self.dice.choice(list(among))
        return self.dice.choice((key, among[key]["name"])), among[key]


def draw(dice: random.Random, model: Model) -> Step:
    """One step. What the node answers counts where the model's outcome is a list or None."""
    it = Draw(dice, model)
    steps = [*_streams(it), *_topics(it), *_messages(it), *_offsets(it), *_groups(it), *_users(it)]
    return dice.choices([step for _, step in steps], [weight for weight, _ in steps])[0]


def _streams(it: Draw) -> list[Weighted]:
    stream, name = it.stream, it.name
    where = identifier(stream)
    return [
        (3, (lambda k: k.change(CREATE_STREAM, text(name)), lambda m: m.create_stream(name))),
        (1, (lambda k: k.change(c.UPDATE_STREAM, where + text(name)), lambda m: m.update_stream(stream, name))),
        (0.3, (lambda k: k.change(DELETE_STREAM, where), lambda m: m.delete_stream(stream))),
        (0.3, (lambda k: k.change(PURGE_STREAM, where), lambda m: m.purge_stream(stream))),
    ]


def _topics(it: Draw) -> list[Weighted]:
    stream, topic, name = it.stream, it.topic, it.name
    count = it.dice.choice((0, 1, 1, 2, 3, 1001))
    fewer = it.dice.choice((0, 1, 1, 1, 2, 1001))
    body = identifier(stream) + struct.pack("<I", count) + text(name)
    where = identifier(stream) + identifier(topic)
    return [
        (5, (lambda k: k.change(CREATE_TOPIC, body), lambda m: m.create_topic(stream, name, count))),
        (1, (lambda k: c.update_topic(k, stream, topic, name, {}), lambda m: m.update_topic(stream, topic, name))),
        (0.7, (lambda k: c.delete_topic(k, stream, topic), lambda m: m.delete_topic(stream, topic))),
        (0.7, (lambda k: c.purge_topic(k, stream, topic), lambda m: m.purge_topic(stream, topic))),
        (
            2,
            (
                lambda k: k.change(CREATE_PARTITIONS, where + struct.pack("<I", count)),
                lambda m: m.create_partitions(stream, topic, count),
            ),
        ),
        (
            2,
            (
                lambda k: c.delete_partitions(k, stream, topic, fewer),
                lambda m: m.delete_partitions(stream, topic, fewer),
            ),
        ),
    ]


def _messages(it: Draw) -> list[Weighted]:
    place, offset, consumer = (it.stream, it.topic, it.partition), it.offset, it.consumer
    payloads = [b"%d" % it.dice.randrange(1000) for _ in range(it.dice.choice((1, 1, 3, 10)))]
    strategy = it.dice.choice((FIRST, LAST, BY_OFFSET, NEXT, NEXT))
    most, auto = it.most, it.auto_commit
    return [
        (25, (lambda k: k.send(*place, payloads), lambda m: m.send(*place, payloads))),
        (
            15,
            (
                lambda k: polled(
                    k.poll(*place, strategy=strategy, value=offset, count=most, auto_commit=auto, consumer=consumer)
                ),
                lambda m: m.poll(*place, consumer, strategy, offset, most, auto),
            ),
        ),
    ]


def _offsets(it: Draw) -> list[Weighted]:
    place, offset, consumer = (it.stream, it.topic, it.partition), it.offset, it.consumer
    return [
        (12, (lambda k: k.store_offset(*place, offset, consumer), lambda m: m.store(*place, offset, consumer))),
        (3, (lambda k: k.delete_offset(*place, consumer), lambda m: m.forget(*place, consumer))),
        (6, (lambda k: as_list(k.get_offset(*place, consumer)), lambda m: m.stored(*place, consumer))),
    ]


def _groups(it: Draw) -> list[Weighted]:
    place, partition, offset, new = (it.stream, it.topic, it.group), it.partition, it.offset, it.new_group
    most, auto = it.most, it.auto_commit
    return [
        (5, (lambda k: c.create_group(k, *place[:2], new), lambda m: m.create_group(*place[:2], new))),
        (0.7, (lambda k: c.delete_group(k, *place), lambda m: m.delete_group(*place))),
        (6, (lambda k: c.join_group(k, *place), lambda m: m.join_group(*place))),
        (2, (lambda k: c.leave_group(k, *place), lambda m: m.leave_group(*place))),
        (
            8,
            (
                lambda k: c.store_group_offset(k, *place, partition, offset),
                lambda m: m.store_group(*place, partition, offset),
            ),
        ),
        (
            12,
            (
                lambda k: polled(c.poll_group(k, *place, partition, count=most, auto_commit=auto)),
                lambda m: m.poll_group(*place, partition, most, auto),
            ),
        ),
    ]


def _users(it: Draw) -> list[Weighted]:
    user, password = it.user, it.dice.choice(("secret", "other", "iggy"))
    new_user, new_password, token = it.dice.choice(("anna", "bert", "xy")), "third", it.dice.choice(("one", "two"))
    return [
        (2, (lambda k: c.create_user(k, new_user, password), lambda m: m.create_user(new_user, password))),
        (1, (lambda k: c.delete_user(k, user), lambda m: m.delete_user(user))),
        (
            1,
            (
                lambda k: c.change_password(k, user, password, new_password),
                lambda m: m.change_password(user, password, new_password),
            ),
        ),
        (2, (lambda k: c.create_token(k, token), lambda m: m.create_token(token))),
        (1, (lambda k: c.delete_token(k, token), lambda m: m.delete_token(token))),
    ]


def polled(messages: list[Message] | None) -> list[bytes] | None:
    """The payloads of a poll."""
    return None if messages is None else [message.payload for message in messages]


def as_list(offset: int | None) -> list[bytes]:
    """A stored offset as the model gives it."""
    return [] if offset is None else [b"%d" % offset]
