"""The requests of the load: one function a kind, each drawing from what exists and sometimes from what does not.

A function gets the client's random stream and a view of one member's metadata (what a client learns by reading) and
returns (operation, body, place); None when nothing fits. Names are few, so that they collide and are used again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import Any, Final

from shardsrv._core import xxh3
from shardsrv.plane.metadata.state import MetadataState
from shardsrv.plane.partition import offsets
from shardsrv.wire.constants import Operation
from shardsrv.wire.consumer_groups import (
    CreateConsumerGroup,
    DeleteConsumerGroup,
    JoinConsumerGroup,
    LeaveConsumerGroup,
)
from shardsrv.wire.options import Option
from shardsrv.wire.permissions import GlobalPermissions, Permissions
from shardsrv.wire.streams import CreateStream, DeleteStream, PurgeStream, UpdateStream
from shardsrv.wire.topics import CreatePartitions, CreateTopic, DeletePartitions, DeleteTopic, PurgeTopic, UpdateTopic
from shardsrv.wire.typed_values import TypedValue
from shardsrv.wire.users import (
    ChangePassword,
    CreatePersonalAccessToken,
    CreateUser,
    DeletePersonalAccessToken,
    DeleteUser,
    UpdatePermissions,
    UpdateUser,
)

Place = tuple[int, int, int]
Made = tuple[int, bytes, Place | None]

STREAMS: Final = 2
TOPICS: Final = 2
PARTITIONS: Final = 3
_BATCH: Final = struct.Struct("<QQQQQQI")
_SEALED: Final = struct.Struct("<QQQQQI")
_FRAME: Final = struct.Struct("<16sIIIIQ")


def batch(ids: list[bytes], payload: bytes) -> bytes:
    """A batch as a client sends it: one message an id, all with the same payload."""
    frames, seals = [], []
    for index, identity in enumerate(ids):
        rest = _FRAME.pack(identity, index, 0, 0, len(payload), 0) + payload
        seal = xxh3(rest).to_bytes(8, "little")
        seals.append(seal)
        frames.append(seal + rest)
    body = b"".join(frames)
    length = 256 + len(body)
    seal = xxh3(_SEALED.pack(0, 0, 0, 1_000_000, length, len(ids)) + b"".join(seals))
    return _BATCH.pack(0, 0, 0, 1_000_000, length, seal, len(ids)).ljust(256, b"\0") + body


def send_body(place: Place, sent: bytes, count: int) -> bytes:
    """The body of a send around a batch: stream, topic, partition by number."""
    stream, topic, partition = place
    target = struct.pack("<BBIBBIBBI", 1, 4, stream, 1, 4, topic, 2, 4, partition) + struct.pack("<I", count)
    return struct.pack("<I", len(target)) + target + sent


def places(state: MetadataState) -> list[Place]:
    """Every partition that exists."""
    return [(topic_id[0], topic_id[1], partition.id) for topic_id, partition in _partitions(state)]


def _partitions(state: MetadataState) -> list[tuple[tuple[int, int], Any]]:
    return [((identity.stream, identity.topic), partition) for _, partition, identity in state.all_partitions()]


class Requests:
    """Draws requests of one client."""

    def __init__(self, random: Random, client: int, persisted: float) -> None:
        self._random = random
        self._client = client
        self._persisted = persisted
        self._messages = 0
        self.held: Place | None = None
        """The partition that a burst goes on sending to."""

    def make(self, kind: str, state: MetadataState) -> Made | None:
        """A request of a kind; None when nothing fits."""
        return _MAKERS[kind](self, state)

    def _stream(self, state: MetadataState) -> int:
        known = sorted(state.streams)
        return self._random.choice(known) if known and self._random.random() < 0.95 else self._random.randrange(STREAMS)

    def _topic(self, state: MetadataState) -> tuple[int, int]:
        stream = self._stream(state)
        known = sorted(state.streams[stream].topics) if stream in state.streams else []
        topic = self._random.choice(known) if known and self._random.random() < 0.95 else self._random.randrange(TOPICS)
        return stream, topic

    def _place(self, state: MetadataState) -> Place | None:
        known = places(state)
        return self._random.choice(known) if known else None

    # --- partitions --------------------------------------------------------------------------------------------------

    def _send(self, state: MetadataState) -> Made | None:
        known = places(state)
        place = self.held if self.held in known else self._random.choice(known) if known else None
        if place is None:
            return None
        self.held = place
        count = self._random.choice((1, 1, 1, 2, 5))
        size = self._random.choice((8, 60, 60, 200, 3000))
        ids = []
        for _ in range(count):
            self._messages += 1
            ids.append((self._client << 64 | self._messages).to_bytes(16, "little"))
        return int(Operation.SEND_MESSAGES), send_body(place, batch(ids, bytes(size)), count), place

    def _store_offset(self, state: MetadataState) -> Made | None:
        place = self._place(state)
        if place is None:
            return None
        kind = self._random.choice((offsets.CONSUMER, offsets.GROUP))
        store = (kind, self._random.randrange(2), self._random.randrange(4), self._random.randrange(20))
        return int(Operation.STORE_CONSUMER_OFFSET), offsets.encode_stores([store]), place

    def _delete_offset(self, state: MetadataState) -> Made | None:
        place = self._place(state)
        if place is None:
            return None
        key = (self._random.choice((offsets.CONSUMER, offsets.GROUP)), self._random.randrange(4))
        return int(Operation.DELETE_CONSUMER_OFFSET), offsets.encode_keys([key]), place

    # --- metadata ----------------------------------------------------------------------------------------------------

    def _create_stream(self, state: MetadataState) -> Made:
        return int(Operation.CREATE_STREAM), CreateStream(f"s{self._random.randrange(STREAMS)}").encode(), None

    def _update_stream(self, state: MetadataState) -> Made:
        name = f"s{self._random.randrange(STREAMS + 1)}"
        return int(Operation.UPDATE_STREAM), UpdateStream(self._stream(state), name).encode(), None

    def _delete_stream(self, state: MetadataState) -> Made:
        return int(Operation.DELETE_STREAM), DeleteStream(self._stream(state)).encode(), None

    def _purge_stream(self, state: MetadataState) -> Made:
        return int(Operation.PURGE_STREAM), PurgeStream(self._stream(state)).encode(), None

    def _create_topic(self, state: MetadataState) -> Made:
        stream = self._stream(state)
        word = "persisted" if self._random.random() < self._persisted else "replicated"
        options = (Option("durability", TypedValue.text(word)),)
        count = self._random.randrange(1, PARTITIONS)
        body = CreateTopic(stream, count, f"t{self._random.randrange(TOPICS)}", options).encode()
        return int(Operation.CREATE_TOPIC), body, None

    def _update_topic(self, state: MetadataState) -> Made:
        stream, topic = self._topic(state)
        body = UpdateTopic(stream, topic, f"t{self._random.randrange(TOPICS + 1)}").encode()
        return int(Operation.UPDATE_TOPIC), body, None

    def _delete_topic(self, state: MetadataState) -> Made:
        return int(Operation.DELETE_TOPIC), DeleteTopic(*self._topic(state)).encode(), None

    def _purge_topic(self, state: MetadataState) -> Made:
        return int(Operation.PURGE_TOPIC), PurgeTopic(*self._topic(state)).encode(), None

    def _create_partitions(self, state: MetadataState) -> Made | None:
        stream, topic = self._topic(state)
        found = state.streams.get(stream)
        if found is not None and topic in found.topics and len(found.topics[topic].partitions) >= PARTITIONS:
            return self._delete_partitions(state)
        return int(Operation.CREATE_PARTITIONS), CreatePartitions(stream, topic, 1).encode(), None

    def _delete_partitions(self, state: MetadataState) -> Made:
        return int(Operation.DELETE_PARTITIONS), DeletePartitions(*self._topic(state), 1).encode(), None

    def _create_group(self, state: MetadataState) -> Made:
        body = CreateConsumerGroup(*self._topic(state), f"g{self._random.randrange(2)}").encode()
        return int(Operation.CREATE_CONSUMER_GROUP), body, None

    def _delete_group(self, state: MetadataState) -> Made:
        body = DeleteConsumerGroup(*self._topic(state), self._random.randrange(3)).encode()
        return int(Operation.DELETE_CONSUMER_GROUP), body, None

    def _join_group(self, state: MetadataState) -> Made:
        body = JoinConsumerGroup(*self._topic(state), f"g{self._random.randrange(2)}").encode()
        return int(Operation.JOIN_CONSUMER_GROUP), body, None

    def _leave_group(self, state: MetadataState) -> Made:
        body = LeaveConsumerGroup(*self._topic(state), f"g{self._random.randrange(2)}").encode()
        return int(Operation.LEAVE_CONSUMER_GROUP), body, None

    def _user(self) -> str:
        return f"user{self._random.randrange(3)}"

    def _create_user(self, state: MetadataState) -> Made:
        return int(Operation.CREATE_USER), CreateUser(self._user(), "secret", 1).encode(), None

    def _update_user(self, state: MetadataState) -> Made:
        return int(Operation.UPDATE_USER), UpdateUser(self._user(), self._user(), 1).encode(), None

    def _delete_user(self, state: MetadataState) -> Made:
        return int(Operation.DELETE_USER), DeleteUser(self._user()).encode(), None

    def _change_password(self, state: MetadataState) -> Made:
        body = ChangePassword(self._user(), "secret", self._random.choice(("secret", "other"))).encode()
        return int(Operation.CHANGE_PASSWORD), body, None

    def _update_permissions(self, state: MetadataState) -> Made:
        rights = Permissions(GlobalPermissions(read_streams=self._random.random() < 0.5))
        return int(Operation.UPDATE_PERMISSIONS), UpdatePermissions(self._user(), rights).encode(), None

    def _create_token(self, state: MetadataState) -> Made:
        body = CreatePersonalAccessToken(f"token{self._random.randrange(3)}", 0).encode()
        return int(Operation.CREATE_PERSONAL_ACCESS_TOKEN), body, None

    def _delete_token(self, state: MetadataState) -> Made:
        body = DeletePersonalAccessToken(f"token{self._random.randrange(3)}").encode()
        return int(Operation.DELETE_PERSONAL_ACCESS_TOKEN), body, None


_MAKERS: Final[dict[str, Callable[[Requests, MetadataState], Made | None]]] = {
    name.removeprefix("_"): maker
    for name, maker in vars(Requests).items()
    if name.startswith("_") and not name.startswith("__") and name not in ("_stream", "_topic", "_place", "_user")
}
