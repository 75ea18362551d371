"""The option catalogue: values in every accepted kind, bounds, defaults, what is stored and what it means."""

from __future__ import annotations

import pytest

from shardsrv.errors import InvalidOptionValue, RequestRefused, UnsupportedOptionKey
from shardsrv.plane.metadata import options_catalog as catalog
from shardsrv.plane.metadata.options_catalog import GIB, MIB, TopicDefaults
from shardsrv.plane.metadata.quantities import parse_duration, parse_expiry, parse_size, parse_size_limit
from shardsrv.wire.constants import UNLIMITED, Compression, Durability
from shardsrv.wire.options import Option
from shardsrv.wire.typed_values import TypedValue, Value, ValueKind

SECOND = 1_000_000
KEYS = [spec.key for spec in catalog.CATALOG]


def option(key: str, value: Value, kind: ValueKind | None = None) -> Option:
    if kind is None:
        kind = (
            ValueKind.BOOL
            if isinstance(value, bool)
            else ValueKind.UINT64
            if isinstance(value, int)
            else ValueKind.STRING
        )
    return Option(key, TypedValue.of(kind, value))


def created(*options: Option, partitions: int = 1, defaults: TopicDefaults | None = None) -> catalog.TopicSettings:
    return catalog.settings_of(*catalog.resolve_create(options, partitions, defaults or TopicDefaults()))


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("7 days", 7 * 86_400 * SECOND),
        ("2h", 7_200 * SECOND),
        ("1day 1h 1m 1s", 90_061 * SECOND),
        ("90s", 90 * SECOND),
        ("1M", 2_630_016 * SECOND),
        ("1m", 60 * SECOND),
        ("1year", 31_557_600 * SECOND),
        ("500 ms", 500_000),
        ("1500ns", 1),
        ("0s", 0),
        (" 3h ", 10_800 * SECOND),
        ("2weeks", 14 * 86_400 * SECOND),
    ],
)
def test_durations(text: str, microseconds: int) -> None:
    assert parse_duration(text) == parse_expiry(text) == microseconds


@pytest.mark.parametrize(
    "text", ["", " ", "nope", "5", "h", "2 fortnights", "2h!", "-1s", "1.5h", "2H", "99999999999999y"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2097152", 2 * MIB),
        ("2MiB", 2 * MIB),
        ("2 mib", 2 * MIB),
        ("1 GiB", GIB),
        ("10GB", 10**10),
        ("1.5 KiB", 1536),
        ("1k", 1000),
        ("5b", 5),
        ("0.3KB", 300),
        ("16 EiB", None),
        ("-1", None),
        ("", None),
        ("abc", None),
        ("1 GiBs", None),
        ("1.2.3", None),
        ("18446744073709551615", UNLIMITED),
        ("18446744073709551616", None),
        ("٣", None),
    ],
)
def test_sizes(text: str, size: int | None) -> None:
    if size is None:
        with pytest.raises(ValueError):
            parse_size(text)
    else:
        assert parse_size(text) == parse_size_limit(text) == size


def test_words_for_limits() -> None:
    assert [parse_expiry(word) for word in ("never_expire", "none", "unlimited", "UNLIMITED")] == [UNLIMITED] * 4
    assert parse_expiry("server_default") == parse_expiry("0") == parse_size_limit("server_default") == 0
    assert parse_size_limit("unlimited") == UNLIMITED


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        (option("compression_algorithm", "GZIP"), option("compression_algorithm", "gzip")),
        (option("compression_algorithm", 2, ValueKind.UINT8), option("compression_algorithm", "gzip")),
        (option("message_expiry", "2h"), option("message_expiry", 7_200 * SECOND)),
        (option("message_expiry", 5), option("message_expiry", 5)),
        (option("max_topic_size", "unlimited"), option("max_topic_size", UNLIMITED)),
        (option("segment_size", "2 MiB"), option("segment_size", 2 * MIB)),
        (option("durability", "Persisted"), option("durability", "persisted")),
        (option("consumer_offset_durability", "REPLICATED"), option("consumer_offset_durability", "replicated")),
        (option("messages_required_to_save", "10"), option("messages_required_to_save", 10, ValueKind.UINT32)),
        (option("size_of_messages_required_to_save", "4KiB"), option("size_of_messages_required_to_save", 4096)),
        (option("preallocate_segments", "true"), option("preallocate_segments", True)),
        (option("enforce_fsync", "false"), option("enforce_fsync", False)),
    ],
)
def test_a_create_stores_the_canonical_kind(sent: Option, stored: Option) -> None:
    explicit, derived = catalog.resolve_create([sent], 1, TopicDefaults())
    assert explicit == {stored.key: stored.value}
    assert sorted({*explicit, *derived} - {"enforce_fsync"}) == sorted(KEYS)
    assert list(derived) == sorted(derived)


@pytest.mark.parametrize(
    "sent",
    [
        option("message_expiry", 0),
        option("message_expiry", "server_default"),
        option("message_expiry", "0s"),
        option("max_topic_size", 0),
        option("max_topic_size", "server_default"),
        option("segment_size", 0),
        option("segment_size", "0"),
        option("size_of_messages_required_to_save", 0),
    ],
)
def test_the_servers_default_counts_as_absent(sent: Option) -> None:
    defaults = TopicDefaults(message_expiry=77, segment_size=4 * MIB, max_topic_size=8 * MIB)
    explicit, derived = catalog.resolve_create([sent], 1, defaults)
    assert explicit == {}
    assert catalog.settings_of(explicit, derived) == created(defaults=defaults)
    assert created(defaults=defaults).message_expiry == 77


@pytest.mark.parametrize(
    "sent",
    [
        option("compression_algorithm", "snappy"),
        option("compression_algorithm", 3, ValueKind.UINT8),
        option("compression_algorithm", 1),
        option("message_expiry", "nope"),
        option("message_expiry", 5, ValueKind.UINT32),
        option("message_expiry", True),
        option("max_topic_size", "big"),
        option("segment_size", "abc"),
        option("segment_size", 1),
        option("segment_size", "5GiB"),
        option("segment_size", MIB + 1),
        option("segment_size", MIB - 512),
        option("durability", "none"),
        option("durability", 1),
        option("consumer_offset_durability", "x"),
        option("messages_required_to_save", 0, ValueKind.UINT32),
        option("messages_required_to_save", "0"),
        option("messages_required_to_save", 2**24 + 1, ValueKind.UINT32),
        option("messages_required_to_save", 5),
        option("messages_required_to_save", "ten"),
        option("size_of_messages_required_to_save", GIB + 1),
        option("preallocate_segments", "2"),
        option("preallocate_segments", "True"),
        option("enforce_fsync", "maybe"),
        Option("enforce_fsync", TypedValue(ValueKind.BOOL, b"\x02")),
        Option("segment_size", TypedValue(ValueKind.UINT64, b"\x00")),
        Option("message_expiry", TypedValue(ValueKind.STRING, b"\xff")),
    ],
)
def test_a_bad_value_is_4042(sent: Option) -> None:
    with pytest.raises(InvalidOptionValue) as refusal:
        created(sent)
    assert (refusal.value.code, refusal.value.key) == (4042, sent.key)


def test_an_unknown_key_is_4041_and_keys_are_looked_at_in_order() -> None:
    with pytest.raises(UnsupportedOptionKey) as unknown:
        created(option("replication_factor", "1"), option("segment_size", "abc"))
    assert (unknown.value.code, unknown.value.key) == (4041, "replication_factor")
    with pytest.raises(InvalidOptionValue):
        created(option("segment_size", "abc"), option("replication_factor", "1"))


def test_a_topic_holds_at_least_a_segment() -> None:
    with pytest.raises(RequestRefused) as refusal:
        created(option("max_topic_size", 1000))
    assert refusal.value.code == 1019
    with pytest.raises(RequestRefused):
        created(option("max_topic_size", 2 * MIB - 1), option("segment_size", 2 * MIB))
    assert created(option("max_topic_size", 2 * MIB), option("segment_size", 2 * MIB)).max_topic_size == 2 * MIB


def test_what_is_reserved_up_front_is_bounded() -> None:
    reserve = option("preallocate_segments", True)
    assert created(reserve, partitions=64).preallocate_segments
    with pytest.raises(InvalidOptionValue):
        created(reserve, partitions=65)
    assert not created(partitions=1000).preallocate_segments


@pytest.mark.parametrize(
    ("sent", "durability"),
    [
        ([], Durability.REPLICATED),
        ([option("durability", "persisted")], Durability.PERSISTED),
        ([option("enforce_fsync", True)], Durability.PERSISTED),
        ([option("enforce_fsync", "false")], Durability.REPLICATED),
        ([option("enforce_fsync", False), option("durability", "persisted")], Durability.PERSISTED),
        ([option("durability", "replicated"), option("enforce_fsync", "true")], Durability.PERSISTED),
        ([option("consumer_offset_durability", "persisted")], Durability.REPLICATED),
    ],
)
def test_enforce_fsync_is_echoed_and_means_persisted(sent: list[Option], durability: Durability) -> None:
    explicit, derived = catalog.resolve_create(sent, 1, TopicDefaults())
    assert list(explicit) == sorted(option.key for option in sent)
    assert "enforce_fsync" not in derived
    settings = catalog.settings_of(explicit, derived)
    assert settings.durability == durability
    if "durability" in derived:
        assert derived["durability"] == TypedValue.text(durability.name.lower())
    offsets = any(option.key == "consumer_offset_durability" for option in sent)
    assert settings.consumer_offset_durability == (Durability.PERSISTED if offsets else Durability.REPLICATED)


def test_an_update_moves_what_was_sent_and_leaves_the_rest() -> None:
    explicit, derived = catalog.resolve_create([option("message_expiry", "1h")], 1, TopicDefaults())
    changes = catalog.check_update([option("max_topic_size", "2GiB"), option("message_expiry", 0)])
    assert changes == {"max_topic_size": TypedValue.text("2GiB")}
    after, rest = catalog.update(explicit, derived, changes)
    assert after == {"max_topic_size": TypedValue.text("2GiB"), "message_expiry": explicit["message_expiry"]}
    assert list(after) == sorted(after)
    assert rest == {key: value for key, value in derived.items() if key != "max_topic_size"}
    settings = catalog.settings_of(after, rest)
    assert (settings.max_topic_size, settings.message_expiry) == (2 * GIB, 3_600 * SECOND)
    assert settings.compression_algorithm == Compression.NONE


@pytest.mark.parametrize("key", [key for key in KEYS if not key.startswith(("compression", "message_expiry", "max_"))])
def test_other_keys_cannot_be_updated(key: str) -> None:
    with pytest.raises(UnsupportedOptionKey):
        catalog.check_update([option(key, "1")])


def test_catalogue_of_the_released_generation() -> None:
    assert KEYS == [
        "compression_algorithm",
        "message_expiry",
        "max_topic_size",
        "segment_size",
        "durability",
        "consumer_offset_durability",
        "messages_required_to_save",
        "size_of_messages_required_to_save",
        "preallocate_segments",
    ]
    assert [spec.key for spec in catalog.CATALOG if spec.mutable] == KEYS[:3]
    for spec in catalog.CATALOG:
        default = catalog.default_of(TopicDefaults(), spec)
        assert default.kind == spec.kind
        assert spec.read(default) == int(getattr(TopicDefaults(), spec.key))
