"""The topic options: which keys exist, what their values may be, what is stored and what they mean.

Source: the option catalogue of the released generation (protocol 0.11). `enforce_fsync`, from the generation before, is
accepted and echoed where it was sent, and true means durability persisted; it is neither described nor derived.
Streams and users have empty catalogues.

Invariants: the explicit and the derived options of a topic have no key in common and together hold every key of the
catalogue. On create a value is stored in its canonical kind, on update as it was sent. A value that says "server
default" counts as absent. Everything is a function of the bytes sent and of `TopicDefaults`; after the command is
resolved, of its bytes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import attrs

from shardsrv.errors import InvalidOptionValue, RequestRefused, UnsupportedOptionKey
from shardsrv.plane.metadata.quantities import parse_expiry, parse_size, parse_size_limit
from shardsrv.wire.constants import UNLIMITED, Compression, Durability
from shardsrv.wire.error_codes import ErrorCode
from shardsrv.wire.options import Option
from shardsrv.wire.typed_values import TypedValue, ValueKind

MIB: Final = 1 << 20
GIB: Final = 1 << 30
MIN_SEGMENT_SIZE: Final = MIB
MAX_SEGMENT_SIZE: Final = GIB
SEGMENT_ALIGNMENT: Final = 512
MAX_MESSAGES_TO_SAVE: Final = 1 << 24
MAX_BYTES_TO_SAVE: Final = GIB
MAX_PREALLOCATED: Final = 64 * GIB
"""Bytes that one topic may reserve up front: segment size times partitions."""
ENFORCE_FSYNC: Final = "enforce_fsync"

Values = dict[str, TypedValue]
"""Options by key, in ascending order of the keys."""


@attrs.frozen(slots=True)
class TopicDefaults:
    """What a key is when the client did not send it. Sizes in bytes, expiry in microseconds; UNLIMITED: no limit."""

    compression_algorithm: Compression = Compression.NONE
    message_expiry: int = UNLIMITED
    max_topic_size: int = UNLIMITED
    segment_size: int = GIB
    durability: Durability = Durability.REPLICATED
    consumer_offset_durability: Durability = Durability.REPLICATED
    messages_required_to_save: int = 1024
    size_of_messages_required_to_save: int = MIB
    preallocate_segments: bool = False


@attrs.frozen(slots=True)
class TopicSettings:
    """What the options of a topic mean. `durability` already counts `enforce_fsync`."""

    compression_algorithm: Compression
    message_expiry: int
    max_topic_size: int
    segment_size: int
    durability: Durability
    consumer_offset_durability: Durability
    messages_required_to_save: int
    size_of_messages_required_to_save: int
    preallocate_segments: bool


@attrs.frozen(slots=True)
class OptionSpec:
    """One key. `parse` turns a value into a number (None: the server's default) or raises ValueError; `store` the
    number into the bytes of the canonical `kind`."""

    key: str
    kind: ValueKind
    parse: Callable[[TypedValue], int | None]
    store: Callable[[int], bytes]
    mutable: bool
    description: str

    def read(self, value: TypedValue) -> int | None:
        """The value, or None when it counts as absent. Raises InvalidOptionValue."""
        try:
            return self.parse(value)
        except ValueError as error:
            raise InvalidOptionValue(self.key, value.raw, str(error)) from None

    def canonical(self, value: int) -> TypedValue:
        """The value as it is stored by a create."""
        return TypedValue(self.kind, self.store(value))


def _text(value: TypedValue) -> str:
    return value.raw.decode("utf-8")


def _number(value: TypedValue, width: int) -> int:
    if len(value.raw) != width:
        raise ValueError(f"{width} bytes wanted")
    return int.from_bytes(value.raw, "little")


def _word(words: Mapping[str, int]) -> Callable[[TypedValue], int | None]:
    """A parser for one of `words`, in any letter case."""

    def parse(sent: TypedValue) -> int | None:
        if sent.kind != ValueKind.STRING:
            raise ValueError("a string wanted")
        value = words.get(_text(sent).lower())
        if value is None:
            raise ValueError(f"not one of {', '.join(words)}")
        return value

    return parse


def _parse_compression(sent: TypedValue) -> int | None:
    if sent.kind == ValueKind.UINT8:
        return Compression(_number(sent, 1))
    return _word(_COMPRESSION_WORDS)(sent)


def _quantity(parse_text: Callable[[str], int], check: Callable[[int], bool]) -> Callable[[TypedValue], int | None]:
    """A parser for a u64 or a text; 0 is the server's default."""

    def parse(sent: TypedValue) -> int | None:
        if sent.kind == ValueKind.UINT64:
            value = _number(sent, 8)
        elif sent.kind == ValueKind.STRING:
            value = parse_text(_text(sent))
        else:
            raise ValueError("a 64-bit number or a string wanted")
        if value == 0:
            return None
        if not check(value):
            raise ValueError("out of bounds")
        return value

    return parse


def _parse_messages(sent: TypedValue) -> int | None:
    if sent.kind == ValueKind.UINT32:
        value = _number(sent, 4)
    elif sent.kind == ValueKind.STRING and sent.raw.isdigit():
        value = int(sent.raw)
    else:
        raise ValueError("a 32-bit number or a decimal string wanted")
    if not 1 <= value <= MAX_MESSAGES_TO_SAVE:
        raise ValueError("out of bounds")
    return value


def _parse_bool(sent: TypedValue) -> int | None:
    if sent.kind == ValueKind.BOOL and sent.raw in (b"\x00", b"\x01"):
        return sent.raw[0]
    if sent.kind == ValueKind.STRING and sent.raw in (b"true", b"false"):
        return int(sent.raw == b"true")
    raise ValueError("true or false wanted")


def _store_unsigned(width: int) -> Callable[[int], bytes]:
    return lambda value: value.to_bytes(width, "little")


def _store_word(words: Mapping[str, int]) -> Callable[[int], bytes]:
    spelled = {value: word.encode() for word, value in words.items()}
    return lambda value: spelled[value]


def _any(value: int) -> bool:
    return True


def _is_segment_size(value: int) -> bool:
    return MIN_SEGMENT_SIZE <= value <= MAX_SEGMENT_SIZE and value % SEGMENT_ALIGNMENT == 0


_COMPRESSION_WORDS: Final[dict[str, int]] = {"none": Compression.NONE, "gzip": Compression.GZIP}
_DURABILITY_WORDS: Final[dict[str, int]] = {"replicated": Durability.REPLICATED, "persisted": Durability.PERSISTED}

CATALOG: Final[tuple[OptionSpec, ...]] = (
    OptionSpec(
        "compression_algorithm",
        ValueKind.STRING,
        _parse_compression,
        _store_word(_COMPRESSION_WORDS),
        True,
        "How clients compress payloads: none or gzip",
    ),
    OptionSpec(
        "message_expiry",
        ValueKind.UINT64,
        _quantity(parse_expiry, _any),
        _store_unsigned(8),
        True,
        "Age in microseconds after which messages may be removed, or a duration such as 7 days",
    ),
    OptionSpec(
        "max_topic_size",
        ValueKind.UINT64,
        _quantity(parse_size_limit, _any),
        _store_unsigned(8),
        True,
        "Bytes that the topic may hold, or a size such as 10 GiB; not below the segment size",
    ),
    OptionSpec(
        "segment_size",
        ValueKind.UINT64,
        _quantity(parse_size, _is_segment_size),
        _store_unsigned(8),
        False,
        "Bytes of a segment, or a size such as 128 MiB; a multiple of 512 from 1 MiB to 1 GiB",
    ),
    OptionSpec(
        "durability",
        ValueKind.STRING,
        _word(_DURABILITY_WORDS),
        _store_word(_DURABILITY_WORDS),
        False,
        "What a message must reach before it is acknowledged: replicated or persisted",
    ),
    OptionSpec(
        "consumer_offset_durability",
        ValueKind.STRING,
        _word(_DURABILITY_WORDS),
        _store_word(_DURABILITY_WORDS),
        False,
        "What a consumer offset must reach before it is acknowledged: replicated or persisted",
    ),
    OptionSpec(
        "messages_required_to_save",
        ValueKind.UINT32,
        _parse_messages,
        _store_unsigned(4),
        False,
        "Messages after which unsaved ones are written out, 1 to 16777216",
    ),
    OptionSpec(
        "size_of_messages_required_to_save",
        ValueKind.UINT64,
        _quantity(parse_size, lambda value: value <= MAX_BYTES_TO_SAVE),
        _store_unsigned(8),
        False,
        "Bytes after which unsaved messages are written out, or a size such as 1 MiB; at most 1 GiB",
    ),
    OptionSpec(
        "preallocate_segments",
        ValueKind.BOOL,
        _parse_bool,
        _store_unsigned(1),
        False,
        "Whether the bytes of a segment are reserved when it is opened; at most 64 GiB a topic",
    ),
)
"""The described keys, in the order of describe_options."""

_ACCEPTED: Final[dict[str, OptionSpec]] = {spec.key: spec for spec in CATALOG} | {
    ENFORCE_FSYNC: OptionSpec(ENFORCE_FSYNC, ValueKind.BOOL, _parse_bool, _store_unsigned(1), False, "")
}


def default_of(defaults: TopicDefaults, spec: OptionSpec) -> TypedValue:
    """The value that stands for a key of the catalogue that was not sent."""
    return spec.canonical(int(getattr(defaults, spec.key)))


def resolve_create(options: Iterable[Option], partitions: int, defaults: TopicDefaults) -> tuple[Values, Values]:
    """The explicit options in canonical form and the derived ones, each by key in ascending order.

    Keys are looked at in the order sent; then the rules between keys. Raises UnsupportedOptionKey (4041),
    InvalidOptionValue (4042), RequestRefused (1019: the topic may hold less than a segment).
    """
    explicit: Values = {}
    for option in options:
        spec = _spec_of(option.key)
        value = spec.read(option.value)
        if value is not None:
            explicit[spec.key] = spec.canonical(value)
    derived = {spec.key: default_of(defaults, spec) for spec in CATALOG if spec.key not in explicit}
    if "durability" in derived and _enforces_fsync(explicit):
        derived["durability"] = _ACCEPTED["durability"].canonical(Durability.PERSISTED)
    explicit, derived = _sorted(explicit), _sorted(derived)
    settings = settings_of(explicit, derived)
    check_size(settings.max_topic_size, settings.segment_size)
    if settings.preallocate_segments and settings.segment_size * partitions > MAX_PREALLOCATED:
        raise InvalidOptionValue("preallocate_segments", "true", "segment size times partitions is over 64 GiB")
    return explicit, derived


def check_size(max_topic_size: int, segment_size: int) -> None:
    """Raises RequestRefused (1019) when a topic may hold less than one segment."""
    if max_topic_size < segment_size:
        raise RequestRefused(ErrorCode.INVALID_TOPIC_SIZE, max_topic_size=max_topic_size, segment_size=segment_size)


def check_update(options: Iterable[Option]) -> Values:
    """The options of an update by key, as they were sent, without those that mean the server's default.

    Raises UnsupportedOptionKey (4041, also for a key that an update cannot change), InvalidOptionValue (4042).
    """
    changes: Values = {}
    for option in options:
        spec = _spec_of(option.key)
        if not spec.mutable:
            raise UnsupportedOptionKey(option.key)
        if spec.read(option.value) is not None:
            changes[spec.key] = option.value
    return changes


def update(
    explicit: Mapping[str, TypedValue], derived: Mapping[str, TypedValue], changes: Mapping[str, TypedValue]
) -> tuple[Values, Values]:
    """The options after an update: what was sent becomes explicit, every other key stays as it is."""
    return _sorted({**explicit, **changes}), {key: value for key, value in derived.items() if key not in changes}


def settings_of(explicit: Mapping[str, TypedValue], derived: Mapping[str, TypedValue]) -> TopicSettings:
    """What the options mean. Raises InvalidOptionValue for a key of the catalogue that is missing or has no value."""
    values: dict[str, int] = {}
    for spec in CATALOG:
        stored = explicit.get(spec.key) or derived.get(spec.key)
        value = None if stored is None else spec.read(stored)
        if value is None:
            raise InvalidOptionValue(spec.key, None, "no value")
        values[spec.key] = value
    persisted = _enforces_fsync(explicit)
    return TopicSettings(
        compression_algorithm=Compression(values["compression_algorithm"]),
        message_expiry=values["message_expiry"],
        max_topic_size=values["max_topic_size"],
        segment_size=values["segment_size"],
        durability=Durability.PERSISTED if persisted else Durability(values["durability"]),
        consumer_offset_durability=Durability(values["consumer_offset_durability"]),
        messages_required_to_save=values["messages_required_to_save"],
        size_of_messages_required_to_save=values["size_of_messages_required_to_save"],
        preallocate_segments=bool(values["preallocate_segments"]),
    )


def check_empty(options: Iterable[Option]) -> None:
    """Streams and users have no options: raises UnsupportedOptionKey (4041) for the first one."""
    for option in options:
        raise UnsupportedOptionKey(option.key)


def check_stored(explicit: Mapping[str, TypedValue], derived: Mapping[str, TypedValue]) -> TopicSettings:
    """The settings of stored options. Raises UnsupportedOptionKey or InvalidOptionValue for what is never stored."""
    for key in (*explicit, *derived):
        _spec_of(key)
        if key in explicit and key in derived:
            raise InvalidOptionValue(key, None, "explicit and derived")
    return settings_of(explicit, derived)


def _spec_of(key: str) -> OptionSpec:
    spec = _ACCEPTED.get(key)
    if spec is None:
        raise UnsupportedOptionKey(key)
    return spec


def _enforces_fsync(explicit: Mapping[str, TypedValue]) -> bool:
    value = explicit.get(ENFORCE_FSYNC)
    return value is not None and _ACCEPTED[ENFORCE_FSYNC].read(value) == 1


def _sorted(options: Mapping[str, TypedValue]) -> Values:
    return {key: options[key] for key in sorted(options)}
