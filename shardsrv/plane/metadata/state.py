"""The replicated metadata: streams, topics, partitions, consumer groups, users and their tokens.

Invariants:
- It changes only by applying committed entries in op order, or as a whole by a snapshot. It reads no clock and no
  configuration.
- Ids are the lowest free numbers from 0; names are unique among their siblings and compared byte by byte.
- Partition ids of a topic are 0..n-1: created at the tail, deleted from the tail.
- `created_revision` is the metadata op that created a thing. Ids are reused, revisions are not (architecture, 2).
- A partition has a counter slot, the lowest free one when it was created, on every shard the same.
- What can be computed from the rest (indexes by name, pools of free numbers, topic settings) is not in a snapshot and
  not in `==`.
- Root is user 0, made with the state; it is never deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from shardsrv.plane.metadata.numbers import LowestFree
from shardsrv.plane.metadata.options_catalog import TopicSettings, Values
from shardsrv.wire.constants import UserStatus
from shardsrv.wire.groups import MAX_STREAMS, MAX_TOPICS, pack_group
from shardsrv.wire.options import encode_options, options_of
from shardsrv.wire.permissions import GLOBAL_FLAGS, GlobalPermissions, Permissions
from shardsrv.wire.primitives import Identifier

ROOT_ID: Final = 0
ROOT_CREATED_AT: Final = 1
ALL_GLOBAL: Final = Permissions(GlobalPermissions(**dict.fromkeys(GLOBAL_FLAGS, True)))
MAX_USERS: Final = 2**32 - 1
MAX_SLOTS: Final = 2**31
"""More than any number of partitions; a bound for checking what a snapshot says."""

Membership = tuple[int, int, int]
"""(stream, topic, consumer group) of a client's membership."""


@attrs.frozen(slots=True, order=True)
class PartitionIdentity:
    """The name of a partition in every frame, file and counter: ids with the op that created it."""

    stream: int
    topic: int
    partition: int
    created_revision: int

    @property
    def group(self) -> int:
        """The consensus group of the three ids (u64)."""
        return pack_group(self.stream, self.topic, self.partition)


@attrs.define(slots=True)
class Partition:
    """`created_view` is the metadata view in which it was created; `slot` the index of its counters."""

    id: int
    created_revision: int
    created_at: int
    created_view: int
    slot: int


@attrs.frozen(slots=True)
class HandOver:
    """A partition that its owner still holds but no longer polls: it goes to the member `successor` once the owner
    has committed what it polled. `since` is the op that began it and tells it from earlier ones."""

    partition: int
    successor: int
    since: int


@attrs.define(slots=True)
class Member:
    """A session (`client`, 16 bytes, and `session`, the op of its register) in a consumer group. `partitions` are those
    it owns, ascending; `pending` those of them that it is handing over, ascending by partition."""

    id: int
    client: bytes
    session: int
    partitions: list[int] = attrs.field(factory=list)
    pending: list[HandOver] = attrs.field(factory=list)

    @property
    def pollable(self) -> list[int]:
        """The partitions that it owns and does not hand over."""
        leaving = {hand_over.partition for hand_over in self.pending}
        return [partition for partition in self.partitions if partition not in leaving]


@attrs.define(slots=True)
class ConsumerGroup:
    """`generation` rises with every change of an assignment. Members by member id; a session has one membership."""

    id: int
    name: str
    created_revision: int
    generation: int = 0
    members: dict[int, Member] = attrs.field(factory=dict)

    def ordered_members(self) -> list[Member]:
        """Members in ascending order of their ids."""
        return [self.members[number] for number in sorted(self.members)]

    def find_member(self, client: bytes) -> Member | None:
        """The membership of a session's client id."""
        for member in self.members.values():
            if member.client == client:
                return member
        return None


@attrs.define(slots=True)
class Topic:
    """`explicit` and `derived` are the options by key; together they hold the whole catalogue. `purge_generation` is
    the op of the last purge (0: never)."""

    id: int
    name: str
    created_at: int
    created_revision: int
    explicit: Values
    derived: Values
    settings: TopicSettings = attrs.field(eq=False)
    purge_generation: int = 0
    partitions: list[Partition] = attrs.field(factory=list)
    next_group_id: int = 0
    groups: dict[int, ConsumerGroup] = attrs.field(factory=dict)
    group_ids: dict[str, int] = attrs.field(factory=dict, eq=False)
    _option_blocks: tuple[bytes, bytes] | None = attrs.field(default=None, eq=False, init=False)

    @property
    def option_blocks(self) -> tuple[bytes, bytes]:
        """The options as blocks of the protocol, explicit and derived, sorted by key; encoded once."""
        if self._option_blocks is None:
            self._option_blocks = encode_options(options_of(self.explicit)), encode_options(options_of(self.derived))
        return self._option_blocks

    def set_options(self, explicit: Values, derived: Values, settings: TopicSettings) -> None:
        """Takes over other options and what they mean."""
        self.explicit, self.derived, self.settings = explicit, derived, settings
        self._option_blocks = None

    def purge_generation_of(self, partition: Partition) -> int:
        """The generation that a partition's log must have reached; 0 for one that was created after the purge."""
        return self.purge_generation if partition.created_revision < self.purge_generation else 0

    def ordered_groups(self) -> list[ConsumerGroup]:
        """Consumer groups in ascending id order."""
        return [self.groups[number] for number in sorted(self.groups)]

    def find_group(self, identifier: Identifier) -> ConsumerGroup | None:
        """The consumer group with this id or name."""
        number = self.group_ids.get(identifier) if isinstance(identifier, str) else identifier
        return None if number is None else self.groups.get(number)


@attrs.define(slots=True)
class Stream:
    """Topics by id."""

    id: int
    name: str
    created_at: int
    created_revision: int
    topics: dict[int, Topic] = attrs.field(factory=dict)
    topic_ids: dict[str, int] = attrs.field(factory=dict, eq=False)
    topic_numbers: LowestFree = attrs.field(factory=lambda: LowestFree(MAX_TOPICS), eq=False)

    def find_topic(self, identifier: Identifier) -> Topic | None:
        """The topic with this id or name."""
        number = self.topic_ids.get(identifier) if isinstance(identifier, str) else identifier
        return None if number is None else self.topics.get(number)

    def ordered_topics(self) -> list[Topic]:
        """Topics in ascending id order."""
        return [self.topics[number] for number in sorted(self.topics)]


@attrs.define(slots=True)
class Token:
    """A personal access token: `digest` is the hex of the hash of its text, `expiry_at` microseconds (0: never)."""

    name: str
    digest: str
    expiry_at: int


@attrs.define(slots=True)
class User:
    """`password_hash` is the encoded hash (Argon2), never the password. Tokens by name."""

    id: int
    username: str
    created_at: int
    status: UserStatus
    password_hash: str
    permissions: Permissions | None = None
    tokens: dict[str, Token] = attrs.field(factory=dict)


@attrs.define(slots=True)
class MetadataState:
    """Everything that is replicated, and the indexes over it: ids by name, users by token, groups by client."""

    streams: dict[int, Stream] = attrs.field(factory=dict)
    users: dict[int, User] = attrs.field(factory=dict)
    stream_ids: dict[str, int] = attrs.field(factory=dict, eq=False)
    user_ids: dict[str, int] = attrs.field(factory=dict, eq=False)
    token_owners: dict[str, int] = attrs.field(factory=dict, eq=False)
    memberships: dict[bytes, list[Membership]] = attrs.field(factory=dict, eq=False)
    stream_numbers: LowestFree = attrs.field(factory=lambda: LowestFree(MAX_STREAMS), eq=False)
    user_numbers: LowestFree = attrs.field(factory=lambda: LowestFree(MAX_USERS), eq=False)
    slots: LowestFree = attrs.field(factory=lambda: LowestFree(MAX_SLOTS), eq=False)

    @classmethod
    def initial(cls, root_username: str, root_password_hash: str) -> MetadataState:
        """The state before op 1: nothing but the root user."""
        state = cls()
        root = User(ROOT_ID, root_username, ROOT_CREATED_AT, UserStatus.ACTIVE, root_password_hash, ALL_GLOBAL)
        state.users[state.user_numbers.take()] = root
        state.user_ids[root_username] = ROOT_ID
        return state

    @classmethod
    def assemble(cls, streams: list[Stream], users: list[User]) -> MetadataState:
        """A state of checked records, with the indexes and pools made again."""
        state = cls({stream.id: stream for stream in streams}, {user.id: user for user in users})
        for stream in streams:
            stream.topic_ids = {topic.name: topic.id for topic in stream.topics.values()}
            stream.topic_numbers = LowestFree(MAX_TOPICS, stream.topics)
            for topic in stream.topics.values():
                topic.group_ids = {group.name: group.id for group in topic.groups.values()}
        state.stream_ids = {stream.name: stream.id for stream in streams}
        state.user_ids = {user.username: user.id for user in users}
        state.token_owners = {token.digest: user.id for user in users for token in user.tokens.values()}
        for stream, topic in state.all_topics():
            for group in topic.groups.values():
                for member in group.members.values():
                    place = (stream.id, topic.id, group.id)
                    state.memberships.setdefault(member.client, []).append(place)
        state.stream_numbers = LowestFree(MAX_STREAMS, state.streams)
        state.user_numbers = LowestFree(MAX_USERS, state.users)
        state.slots = LowestFree(MAX_SLOTS, [partition.slot for _, partition, _ in state.all_partitions()])
        return state

    def find_stream(self, identifier: Identifier) -> Stream | None:
        """The stream with this id or name."""
        number = self.stream_ids.get(identifier) if isinstance(identifier, str) else identifier
        return None if number is None else self.streams.get(number)

    def find_user(self, identifier: Identifier) -> User | None:
        """The user with this id or name."""
        number = self.user_ids.get(identifier) if isinstance(identifier, str) else identifier
        return None if number is None else self.users.get(number)

    def find_token(self, digest: str) -> tuple[User, Token] | None:
        """The token with this digest, and its user; whether it has expired is the caller's to see."""
        user = self.users.get(self.token_owners.get(digest, -1))
        if user is None:
            return None
        return next(((user, token) for token in user.tokens.values() if token.digest == digest), None)

    def memberships_of(self, client: bytes) -> list[Membership]:
        """The consumer groups that a client id is in, ascending."""
        return sorted(self.memberships.get(client, ()))

    def ordered_streams(self) -> list[Stream]:
        """Streams in ascending id order."""
        return [self.streams[number] for number in sorted(self.streams)]

    def ordered_users(self) -> list[User]:
        """Users in ascending id order."""
        return [self.users[number] for number in sorted(self.users)]

    def all_topics(self) -> Iterator[tuple[Stream, Topic]]:
        """Every topic with its stream, in ascending order of ids."""
        for stream in self.ordered_streams():
            for topic in stream.ordered_topics():
                yield stream, topic

    def all_partitions(self) -> Iterator[tuple[Topic, Partition, PartitionIdentity]]:
        """Every partition with its topic and identity, in ascending order of ids."""
        for stream, topic in self.all_topics():
            for partition in topic.partitions:
                yield topic, partition, identity_of(stream, topic, partition)


def identity_of(stream: Stream, topic: Topic, partition: Partition) -> PartitionIdentity:
    """The identity of a partition record."""
    return PartitionIdentity(stream.id, topic.id, partition.id, partition.created_revision)
