"""Configuration: sources and their order, kinds and bounds, refusals that name key, value and way out."""

import tomllib
from pathlib import Path

import pytest

from shardsrv import quantities as q
from shardsrv.config import (
    SECRETS,
    Config,
    Notice,
    check_root_credentials,
    effective_keys,
    load,
    root_credentials,
    set_default_root_credentials,
)
from shardsrv.config_sources import REMOVED_KEYS, embedded, find_file, leaves, typed
from shardsrv.errors import ConfigurationError


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def of_file(tmp_path: Path, text: str, **environment: str) -> tuple[Config, tuple[Notice, ...]]:
    path = tmp_path / "given.toml"
    path.write_text(text)
    return load(str(path), environment)


def test_embedded_defaults_are_valid_and_quiet() -> None:
    config, notices = load(environment={})
    assert notices == ()
    assert config.tcp.address == "127.0.0.1:8090"
    assert config.message_bus.max_message_size == 64 * 1024**2
    assert config.partition.sync_interval == 0.01
    assert config.topic.message_expiry == q.NEVER
    with pytest.raises(AttributeError):
        config.tcp.address = "127.0.0.1:1"  # type: ignore[misc]


def test_every_effective_key_has_a_default_and_a_comment_near_it() -> None:
    text = (Path(__file__).parents[2] / "shardsrv" / "config.toml").read_text()
    defaults = dict(leaves(embedded()))
    for key in effective_keys():
        assert key in defaults
        section, _, name = key.rpartition(".")
        body = text.split(f"[{section}]\n", 1)[1].split("\n[", 1)[0]
        assert body.index("#") < body.index(f"{name} = "), key


def test_later_sources_win_key_by_key(tmp_path: Path) -> None:
    config, _ = of_file(
        tmp_path,
        '[tcp]\naddress = "127.0.0.1:1001"\n[system]\npath = "from_file"\n',
        IGGY_SYSTEM_PATH="from_environment",
    )
    assert (config.tcp.address, config.system.path, config.tcp.enabled) == ("127.0.0.1:1001", "from_environment", True)
    config, _ = load(None, {"IGGY_SYSTEM_PATH": "x"}, {"system.path": ("from_option", "--data")})
    assert config.system.path == "from_option"


def test_the_file_may_be_named_by_the_environment_and_lie_in_a_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "server.toml").write_text("[metadata]\nclients_table_max = 7\n")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    config, notices = load(environment={"IGGY_CONFIG_PATH": "server.toml"})
    assert config.metadata.clients_table_max == 7
    assert notices[0].event == "Found configuration file"


def test_a_named_file_that_is_missing_is_not_replaced_by_defaults() -> None:
    with pytest.raises(ConfigurationError, match="no such file"):
        find_file("nowhere.toml")


def test_dot_env_adds_and_never_overrides(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text('# note\nexport IGGY_SYSTEM_PATH="dotted"\nIGGY_TCP_ADDRESS=127.0.0.1:7\n')
    config, _ = load(environment={"IGGY_TCP_ADDRESS": "127.0.0.1:8"})
    assert (config.system.path, config.tcp.address) == ("dotted", "127.0.0.1:8")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("TRUE", True),
        ("12", 12),
        ("-3", -3),
        ("1.5", 1.5),
        ('[a, "b", 3]', ["a", "b", 3]),
        ("0..4", "0..4"),
        ("64 MiB", "64 MiB"),
        ("127.0.0.1:80", "127.0.0.1:80"),
    ],
)
def test_variables_are_typed_by_their_text(text: str, value: object) -> None:
    assert typed(text) == value and type(typed(text)) is type(value)


def test_empty_variables_are_not_set() -> None:
    config, notices = load(environment={"IGGY_TCP_ADDRESS": ""})
    assert config.tcp.address == "127.0.0.1:8090" and notices == ()


def test_an_unknown_variable_is_a_warning_with_the_nearest_name() -> None:
    _, (notice,) = load(environment={"IGGY_TCP_ADRESS": "x"})
    assert notice.level == "warning" and "'IGGY_TCP_ADRESS'" in notice.event
    assert str(notice.fields["similar"]).startswith("IGGY_TCP_ADDRESS")


def test_names_of_the_harness_are_known() -> None:
    environment = {
        "IGGY_ROOT_USERNAME": "iggy",
        "IGGY_ROOT_PASSWORD": "iggy",
        "IGGY_SYSTEM_SHARDING_CPU_ALLOCATION": "0..4",
        "IGGY_SHARD_RUNTIME_CAPACITY": "256",
        "IGGY_HTTP_ADDRESS": "127.0.0.1:3000",
        "IGGY_QUIC_ENABLED": "false",
        "IGGY_CLUSTER_NODES_0_PORTS_TCP_REPLICA": "9090",
        "IGGY_CLUSTER_NODES_0_ADVERTISED_ADDRESSES_1_CLIENT_CIDR": "10.0.0.0/8",
        "IGGY_CONNECTORS_SINK_X": "1",
    }
    config, notices = load(environment=environment)
    assert not [notice for notice in notices if notice.level == "warning"]
    assert config.tree["cluster"]["nodes"] == [
        {"advertised_addresses": [{}, {"client_cidr": "10.0.0.0/8"}], "ports": {"tcp_replica": 9090}}
    ]


def test_an_inert_key_is_accepted_and_named_once(tmp_path: Path) -> None:
    _, notices = of_file(tmp_path, "[http]\nenabled = true\n[quic]\nmax_concurrent_bidi_streams = 2\n")
    (notice,) = [notice for notice in notices if "no effect" in notice.event]
    assert notice.fields["keys"] == "http.enabled, quic.max_concurrent_bidi_streams"


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ('[tcp]\nadress = "x"', "tcp.adress", "did you mean tcp.address?"),
        ("[tpc]\nenabled = true", "tpc.enabled", "did you mean tcp.enabled?"),
        ("[[cluster.nodes]]\nnaem = 'x'", "cluster.nodes.*.naem", "did you mean cluster.nodes.*.name?"),
        ("tcp = 1", "tcp", "unknown"),
        ("[tcp.address]\nhost = 'x'", "tcp.address.host", "unknown"),
    ],
)
def test_an_unknown_key_in_the_file_is_refused_with_the_nearest(
    tmp_path: Path, text: str, key: str, reason: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        of_file(tmp_path, text)
    assert refused.value.key == key
    assert reason in refused.value.reason and "given.toml" in refused.value.reason


@pytest.mark.parametrize("key", sorted(REMOVED_KEYS))
def test_removed_keys_refuse_from_file_and_environment(tmp_path: Path, key: str) -> None:
    section, _, name = key.rpartition(".")
    table = f"[{section}]\n" if section else ""
    with pytest.raises(ConfigurationError, match="no longer exists") as refused:
        of_file(tmp_path, f"{table}{name} = 1\n")
    assert refused.value.key == key
    with pytest.raises(ConfigurationError, match="no longer exists"):
        load(environment={"IGGY_" + key.replace(".", "_").upper(): "1"})


def test_a_table_below_a_removed_key_refuses_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no longer exists"):
        of_file(tmp_path, "[system.message_deduplication]\nenabled = true\n")


@pytest.mark.parametrize(
    ("variable", "value", "key", "reason"),
    [
        ("IGGY_TCP_ADDRESS", "localhost:80", "tcp.address", "literal IP"),
        ("IGGY_TCP_ADDRESS", "127.0.0.1", "tcp.address", "ip:port"),
        ("IGGY_TCP_ENABLED", "yes", "tcp.enabled", "true or false"),
        ("IGGY_SYSTEM_PATH", "12", "system.path", "must be a path"),
        ("IGGY_CLUSTER_NAME", "12", "cluster.name", "must be text"),
        ("IGGY_METADATA_PREPARE_QUEUE_DEPTH", "128", "metadata.prepare_queue_depth", "1 .. 127"),
        ("IGGY_MESSAGE_BUS_MAX_MESSAGE_SIZE", "12 parsecs", "message_bus.max_message_size", "not a size"),
        # S2-25: a chunk of a state transfer has a header of 256 bytes beside it.
        *(
            ("IGGY_MESSAGE_BUS_MAX_MESSAGE_SIZE", size, "message_bus.max_message_size", "4 KiB .. 1 GiB")
            for size in ("255 B", "256 B", "257 B", "4095 B", "2 GiB")
        ),
        ("IGGY_PARTITION_SYNC_INTERVAL", "10", "partition.sync_interval", "with a unit"),
        ("IGGY_PARTITION_DURABILITY_FLOOR", "maybe", "partition.durability_floor", "replicated, persisted"),
        ("IGGY_SYSTEM_SHARDING_CPU_ALLOCATION", "4..4", "system.sharding.cpu_allocation", "empty"),
        ("IGGY_SYSTEM_LOGGING_LEVEL", "loud", "system.logging.level", "trace, debug"),
        ("IGGY_CLUSTER_ENABLED", "true", "cluster.enabled", "cluster.nodes must name"),
        ("IGGY_CLUSTER_TLS_ENABLED", "true", "cluster.tls.enabled", "private network"),
        ("IGGY_CLUSTER_REPAIR_CHUNK_MAX", "256", "cluster.repair_chunk_max", "message_bus.peer_queue_capacity"),
        ("IGGY_TCP_TLS_ENABLED", "true", "tcp.tls.enabled", "TLS"),
        ("IGGY_SYSTEM_SEGMENT_ARCHIVE_EXPIRED", "true", "system.segment.archive_expired", "not supported"),
        ("IGGY_LIMITS_INGRESS_BYTES_MAX", "1 MiB", "limits.ingress_bytes_max", "max_message_size"),
        ("IGGY_LIMITS_ARENA_BYTES", "1 MiB", "limits.arena_bytes", "ingress_bytes_max"),
        ("IGGY_LIMITS_LANE_BYTES", "5000", "limits.lane_bytes", "power of two"),
        ("IGGY_PARTITION_UNSYNCED_TIME_MAX", "1 ms", "partition.unsynced_time_max", "sync_interval"),
        ("IGGY_TOPIC_MAX_SIZE", "1 MiB", "topic.max_size", "segment_size"),
        ("IGGY_TOPIC_SEGMENT_SIZE", "1048577", "topic.segment_size", "512"),
        ("IGGY_HEARTBEAT_INTERVAL", "0", "heartbeat.interval", "above 0"),
        ("IGGY_SYSTEM_LOGGING_MAX_FILE_SIZE", "5 GB", "system.logging.max_file_size", "max_total_size"),
        ("IGGY_SYSTEM_SHARDING_SHUTDOWN_JOIN_TIMEOUT", "1 s", "system.sharding.shutdown_join_timeout", "drain"),
        ("IGGY_USERS_ARGON2_PARALLELISM", "17", "users.argon2_parallelism", "1 .. 16"),
    ],
)
def test_a_bad_value_is_refused_with_key_value_reason_and_origin(
    variable: str, value: str, key: str, reason: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(environment={variable: value})
    assert refused.value.key == key
    assert refused.value.value == typed(value)
    assert reason in refused.value.reason and variable in refused.value.reason


def test_a_bad_key_of_encryption_is_refused_without_being_shown() -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(environment={"IGGY_SYSTEM_ENCRYPTION_ENABLED": "true", "IGGY_SYSTEM_ENCRYPTION_KEY": "s3cret"})
    assert refused.value.key == "system.encryption.key" and "32 bytes" in refused.value.reason
    assert "s3cret" not in str(refused.value)


def test_current_configuration_is_complete_bound_and_without_secrets(tmp_path: Path) -> None:
    environment = {variable: "s3cret" for key in SECRETS if (variable := "IGGY_" + key.replace(".", "_").upper())}
    environment |= {"IGGY_TCP_ADDRESS": "127.0.0.1:0", "IGGY_HTTP_ADDRESS": "127.0.0.1:3999"}
    config, notices = load(environment=environment)
    path = tmp_path / "current_config.toml"
    config.write_current(path, {"tcp": "127.0.0.1:40123"})
    text = path.read_text()
    written = tomllib.loads(text)
    assert "s3cret" not in text and "s3cret" not in repr(notices)
    assert written["tcp"]["address"] == "127.0.0.1:40123"
    assert written["http"]["address"] == "127.0.0.1:3999"
    assert {key for key, _ in leaves(written)} == {key for key, _ in leaves(embedded())} - set(SECRETS)
    again, _ = load(str(path), {})
    assert again.partition == config.partition and again.limits == config.limits and again.topic == config.topic
    assert [entry.name for entry in tmp_path.iterdir()] == ["current_config.toml"]


@pytest.mark.parametrize("text", ["1h 30m", "500ms", "7d", "10us", "0", "1ns"])
def test_durations_and_their_text_are_inverse(text: str) -> None:
    assert q.format_duration(q.parse_duration(text)) == text


@pytest.mark.parametrize("text", ["", "h", "1", "1 lightyear", "1h30", "-1s", "1.5s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        q.parse_duration(text)


@pytest.mark.parametrize(("text", "size"), [("64 MiB", 67108864), ("500MB", 500_000_000), ("1.5 kib", 1536), ("7", 7)])
def test_sizes_and_their_text_are_inverse(text: str, size: int) -> None:
    assert q.parse_size(text) == size == q.parse_size(q.format_size(size))


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1.0001 KB", "9223372036854775808", "1 EiB", True, None])
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="size"):
        q.parse_size(text)


@pytest.mark.parametrize(
    ("text", "microseconds"), [("never_expire", q.NEVER), ("none", q.NEVER), ("server_default", 0), ("1 s", 10**6)]
)
def test_expiries(text: str, microseconds: int) -> None:
    assert q.parse_expiry(text) == microseconds == q.parse_expiry(q.format_expiry(microseconds))


def test_a_pair_of_root_credentials_is_taken_and_not_shown() -> None:
    root = root_credentials({"IGGY_ROOT_USERNAME": "admin", "IGGY_ROOT_PASSWORD": "pa55word"})
    assert (root.username, root.password, root.generated) == ("admin", "pa55word", False)
    assert "pa55word" not in repr(root)


def test_without_root_credentials_they_are_generated() -> None:
    first, second = root_credentials({}), root_credentials({})
    assert first.generated and first.username == "iggy" and 20 <= len(first.password) <= 39
    assert first.password != second.password
    with pytest.raises(ConfigurationError, match="new cluster"):
        root_credentials({}, required=True)


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"IGGY_ROOT_USERNAME": "admin"}, "as a pair"),
        ({"IGGY_ROOT_PASSWORD": "pa55word"}, "as a pair"),
        ({"IGGY_ROOT_USERNAME": "ab", "IGGY_ROOT_PASSWORD": "pa55word"}, r"3..=50 characters long; got 2"),
        ({"IGGY_ROOT_USERNAME": "abc", "IGGY_ROOT_PASSWORD": "p" * 101}, r"3..=100 characters long; got 101"),
    ],
)
def test_half_or_badly_sized_root_credentials_are_refused(environment: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as refused:
        check_root_credentials(environment)
    assert "pa55word" not in str(refused.value)


def test_default_root_credentials_fill_only_what_is_unset() -> None:
    environment = {"IGGY_ROOT_USERNAME": "admin"}
    notice = set_default_root_credentials(environment)
    assert environment == {"IGGY_ROOT_USERNAME": "admin", "IGGY_ROOT_PASSWORD": "iggy"}
    assert notice.level == "warning" and "development" in notice.event
    assert "ignored" in set_default_root_credentials(environment).event
