"""Values for every field codec of the wire, and messages made of them: one strategy per codec, none per message."""

from __future__ import annotations

from typing import Any

import attrs
from hypothesis import strategies as st

from shardsrv.wire import codec as codecs
from shardsrv.wire.consumer_groups import GroupDetailsReply
from shardsrv.wire.login import LoginReply
from shardsrv.wire.message import Message, Nested, table
from shardsrv.wire.options import Option, Options32, OptionsToEnd
from shardsrv.wire.permissions import (
    GlobalPermissions,
    OptionalInReply,
    Permissions,
    Permissions32,
    StreamPermissions,
    TopicPermissions,
)
from shardsrv.wire.primitives import (
    Consumer,
    ConsumerCodec,
    ConsumerKind,
    IdBytes,
    IdentifierCodec,
    OptionalPartitionCodec,
    Partitioning,
    PartitioningCodec,
    PartitioningKind,
    PollingKind,
    PollingStrategy,
    PollingStrategyCodec,
)
from shardsrv.wire.streams import StreamDetailsReply
from shardsrv.wire.system import ClientDetailsReply
from shardsrv.wire.topics import TopicDetailsReply
from shardsrv.wire.typed_values import TypedValue

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)


def text(shortest: int, longest: int) -> st.SearchStrategy[str]:
    """Text whose UTF-8 form has shortest..longest bytes."""
    assert shortest <= 1 and longest >= 255, "four bytes a character fit whatever the text is"
    return st.text(min_size=shortest, max_size=12) | st.just("n" * 255)


IDENTIFIERS: st.SearchStrategy[int | str] = U32 | text(1, 255)
TYPED = st.builds(TypedValue, st.integers(1, 255), st.binary(min_size=1, max_size=20) | st.just(b"v" * 255))
OPTIONS = st.lists(st.builds(Option, text(1, 255), TYPED), max_size=4, unique_by=lambda option: option.key).map(tuple)
FLAGS = st.booleans()
PERMISSIONS = st.builds(
    Permissions,
    st.builds(GlobalPermissions, *[FLAGS] * 10),
    st.dictionaries(
        U32,
        st.builds(
            StreamPermissions,
            *[FLAGS] * 6,
            st.dictionaries(U32, st.builds(TopicPermissions, *[FLAGS] * 4), max_size=3),
        ),
        max_size=3,
    ),
)
PARTITIONINGS = (
    st.just(Partitioning(PartitioningKind.BALANCED))
    | st.builds(Partitioning.to_partition, U32)
    | st.builds(Partitioning, st.just(PartitioningKind.MESSAGES_KEY), st.binary(min_size=1, max_size=255))
)


def values_of(codec: Any) -> st.SearchStrategy[Any]:
    """Values that `codec` writes."""
    match codec:
        case codecs.UInt(width=width):
            return st.integers(0, 256**width - 1)
        case codecs.Float32():
            return st.floats(width=32, allow_nan=False)
        case codecs.Flag():
            return FLAGS
        case codecs.Enum8(kind=kind):
            return st.sampled_from(kind)
        case codecs.Blob(shortest=shortest, longest=longest):
            return st.binary(min_size=shortest, max_size=min(longest, 40))
        case codecs.Text(blob=blob):
            return text(blob.shortest, blob.longest)
        case codecs.Rest():
            return st.binary(max_size=40)
        case codecs.Optional(item=item):
            return st.none() | values_of(item)
        case codecs.Counted(item=item) | codecs.UntilEnd(item=item):
            return st.lists(values_of(item), max_size=3).map(tuple)
        case Nested(kind=kind):
            return messages_of(kind)
    return SPECIAL[type(codec)]


SPECIAL: dict[type, st.SearchStrategy[Any]] = {
    IdBytes: st.binary(min_size=16, max_size=16),
    IdentifierCodec: IDENTIFIERS,
    ConsumerCodec: st.builds(Consumer, st.sampled_from(ConsumerKind), IDENTIFIERS),
    OptionalPartitionCodec: st.none() | U32,
    PartitioningCodec: PARTITIONINGS,
    PollingStrategyCodec: st.builds(PollingStrategy, st.sampled_from(PollingKind), U64),
    OptionsToEnd: OPTIONS,
    Options32: OPTIONS,
    Permissions32: PERMISSIONS,
    OptionalInReply: st.none() | PERMISSIONS,
}

COUNTED_BY_RECORD = {
    ClientDetailsReply: ("client", "consumer_groups_count", "consumer_groups"),
    StreamDetailsReply: ("stream", "topics_count", "topics"),
    TopicDetailsReply: ("topic", "partitions_count", "partitions"),
    GroupDetailsReply: ("group", "members_count", "members"),
}
"""Replies whose record says how many items follow it."""


def messages_of(kind: type[Message]) -> st.SearchStrategy[Any]:
    """Messages of one class that keep its rules."""
    made: st.SearchStrategy[Any] = st.builds(kind, *[values_of(codec) for _, codec, _ in table(kind)])
    if kind in COUNTED_BY_RECORD:
        return made.map(_counted)
    if kind is LoginReply:
        return made.filter(lambda reply: reply.session != 0)
    return made


def _counted(reply: Any) -> Any:
    record, count, items = COUNTED_BY_RECORD[type(reply)]
    fixed = attrs.evolve(getattr(reply, record), **{count: len(getattr(reply, items))})
    return attrs.evolve(reply, **{record: fixed})
