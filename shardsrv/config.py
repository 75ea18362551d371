"""The configuration: typed, frozen, read once, handed down; no module reads a file or the environment by itself.

Owns the keys that have an effect, their bounds, and the relations between them. Invariants: a `Config` that exists is
valid; defaults, units and reasons stand in ``config.toml`` beside this file and nowhere else; a key of the reference
server without an effect here stays in `Config.tree`, so that the written configuration is complete; secrets never
leave. In memory durations are float seconds, sizes int bytes, expiries int microseconds.
"""

from __future__ import annotations

import base64
import binascii
import os
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from shardsrv.config_schema import (
    Cluster,
    ConsumerGroupSection,
    DataMaintenance,
    Heartbeat,
    Kind,
    Limits,
    MessageBus,
    Metadata,
    Partition,
    PersonalAccessToken,
    System,
    Tcp,
    Topic,
    Users,
)
from shardsrv.config_sources import Merged, Notice, Tree, dot_env, embedded, find_file, leaves, merge
from shardsrv.errors import ConfigurationError
from shardsrv.root_user import RootCredentials, check_root_credentials, root_credentials, set_default_root_credentials

__all__ = [
    "LEVELS",
    "SECRETS",
    "Config",
    "Notice",
    "RootCredentials",
    "build",
    "check_root_credentials",
    "dot_env",
    "effective_keys",
    "load",
    "log_level",
    "relations",
    "root_credentials",
    "set_default_root_credentials",
    "to_toml",
]


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set, one attribute a section. `tree` holds the merged text of all keys, also of the
    inert.
    """

    tcp: Tcp
    system: System
    message_bus: MessageBus
    metadata: Metadata
    partition: Partition
    topic: Topic
    limits: Limits
    heartbeat: Heartbeat
    users: Users
    consumer_group: ConsumerGroupSection
    data_maintenance: DataMaintenance
    personal_access_token: PersonalAccessToken
    cluster: Cluster
    tree: Tree

    def write_current(self, path: Path, bound_addresses: Mapping[str, str]) -> None:
        """Write the effective configuration to `path` (temporary file, rename), without secrets.

        Args:
            path: normally ``<data>/runtime/current_config.toml``; its presence says that clients can connect.
            bound_addresses: transport to the address it really listens on, which replaces ``<transport>.address``.
        """
        merged = Merged(_copy_of(self.tree))
        for key, value in _written(self, ""):
            merged.put(key, value, "")
        for transport, address in bound_addresses.items():
            # The ports of a cluster stand in its roster, as they are.
            if transport != "tcp_replica":
                merged.put(f"{transport}.address", address, "")
        for key in SECRETS:
            _drop(merged.tree, key)
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text(to_toml(merged.tree), encoding="utf-8")
        os.replace(temporary, path)


SECRETS = (
    "http.jwt.encoding_secret",
    "http.jwt.decoding_secret",
    "system.encryption.key",
    "cluster.auth.shared_secret",
    "cluster.auth.previous_shared_secret",
)
"""Keys that are never written, logged or shown."""

MUST_BE_FALSE = {
    "cluster.tls.enabled": "TLS between nodes is not part of this version; use a private network",
    "tcp.tls.enabled": "TLS is not part of this version; put a TLS proxy in front",
    "system.segment.archive_expired": "archiving is not supported; set it to false",
    "system.recovery.recreate_missing_state": "state is never invented; set it to false",
}
"""Keys that would be a broken promise if they were ignored."""


def load(
    file: str | None = None,
    environment: Mapping[str, str] | None = None,
    options: Mapping[str, tuple[object, str]] | None = None,
) -> tuple[Config, tuple[Notice, ...]]:
    """The configuration of this run and what to log about it.

    Args:
        file: path given by ``--config``; without it IGGY_CONFIG_PATH; without both only defaults.
        environment: variables to read; a ``.env`` file adds to them and overrides none. Default: the process's.
        options: key -> (value, name of the option), the strongest source.

    Raises:
        ConfigurationError: with key, value and a reason that says where it was set.
    """
    given = dict(os.environ if environment is None else environment)
    variables = {**dot_env(given), **given}
    named = file or variables.get("IGGY_CONFIG_PATH") or None
    merged = merge(find_file(named) if named else None, variables, options or {})
    if named:
        merged.notices.insert(0, Notice("info", "Found configuration file", {"path": named}))
    config = build(merged)
    return config, (*merged.notices, *_inert(merged), *_overrides(merged))


def build(merged: Merged) -> Config:
    """Interpret and check a merged tree.

    Raises:
        ConfigurationError: a value of the wrong kind, outside its bounds, or contradicting another key.
    """
    config: Config = _section(Config, merged, "")
    for key, reason in MUST_BE_FALSE.items():
        value = _lookup(merged.tree, key)
        if value is not False:
            raise ConfigurationError(key, value, f"{reason} ({merged.origin(key)})")
    if config.cluster.enabled:
        try:
            config.cluster.roster  # noqa: B018 (it raises for a roster that does not hold)
        except ValueError as error:
            raise ConfigurationError("cluster.nodes", None, f"{error} ({merged.origin('cluster.nodes')})") from error
    for key, holds, reason in relations(config):
        if not holds:
            shown = "******" if key in SECRETS else _lookup(merged.tree, key)
            raise ConfigurationError(key, shown, f"{reason} ({merged.origin(key)})")
    return config


def relations(config: Config) -> list[tuple[str, bool, str]]:
    """(key, whether it holds, reason when it does not) of every rule that binds two keys."""
    log, sharding, partition, limits = config.system.logging, config.system.sharding, config.partition, config.limits
    return [
        (
            "system.logging.max_file_size",
            log.max_total_size == 0 or log.max_file_size <= log.max_total_size,
            "it must not be above system.logging.max_total_size",
        ),
        ("system.logging.level", log_level(log.level) is not None, f"it must name one of {', '.join(LEVELS)}"),
        (
            "system.sharding.shutdown_join_timeout",
            sharding.shutdown_join_timeout >= sharding.shutdown_drain_timeout,
            "it must not be below system.sharding.shutdown_drain_timeout",
        ),
        (
            "partition.unsynced_time_max",
            partition.unsynced_time_max >= partition.sync_interval,
            "it must not be below partition.sync_interval, or every acknowledgement would wait",
        ),
        (
            "partition.unsynced_bytes_max",
            partition.unsynced_bytes_max >= partition.sync_bytes,
            "it must not be below partition.sync_bytes, or acknowledgements would wait for a sync nobody starts",
        ),
        (
            "limits.ingress_bytes_max",
            limits.ingress_bytes_max >= config.message_bus.max_message_size,
            "it must not be below message_bus.max_message_size, or the largest frame could never be received",
        ),
        (
            "limits.arena_bytes",
            limits.arena_bytes >= limits.ingress_bytes_max,
            "it must not be below limits.ingress_bytes_max, which it has to hold",
        ),
        ("limits.lane_bytes", limits.lane_bytes & (limits.lane_bytes - 1) == 0, "it must be a power of two"),
        ("topic.segment_size", config.topic.segment_size % 512 == 0, "it must be a multiple of 512 bytes"),
        (
            "topic.max_size",
            config.topic.max_size >= config.topic.segment_size,
            "it must not be below topic.segment_size",
        ),
        (
            "heartbeat.interval",
            config.heartbeat.interval > 0 or not config.heartbeat.enabled,
            "it must be above 0 while heartbeat.enabled is true",
        ),
        (
            "system.encryption.key",
            not config.system.encryption.enabled or is_encryption_key(config.system.encryption.key),
            "it must be the base64 text of 32 bytes while system.encryption.enabled is true",
        ),
        (
            "users.argon2_memory",
            config.users.argon2_memory >= 8 * 1024 * config.users.argon2_parallelism,
            "it must be at least 8 KiB for each of users.argon2_parallelism",
        ),
        (
            "cluster.repair_chunk_max",
            config.cluster.repair_chunk_max < config.message_bus.peer_queue_capacity,
            "it must be below message_bus.peer_queue_capacity, or an answer of repair would not fit into a link",
        ),
        *(cluster_relations(config) if config.cluster.enabled else ()),
    ]


def cluster_relations(config: Config) -> list[tuple[str, bool, str]]:
    """As `relations`: the rules of a cluster, which hold while cluster.enabled is true."""
    cluster, auth = config.cluster, config.cluster.auth
    secret, previous = auth.shared_secret.encode(), auth.previous_shared_secret.encode()
    return [
        (
            "cluster.enabled",
            len(cluster.nodes) >= 2,
            "cluster.nodes must name every node of the cluster, two or more",
        ),
        ("tcp.enabled", config.tcp.enabled, "it must be true while cluster.enabled is true"),
        (
            "cluster.heartbeat_timeout",
            cluster.heartbeat_timeout >= 4 * cluster.commit_broadcast_interval,
            "it must be at least four times cluster.commit_broadcast_interval, or a quiet moment would elect",
        ),
        (
            "cluster.view_change_status_timeout",
            cluster.view_change_status_timeout >= 4 * cluster.view_change_retransmit_interval,
            "it must be at least four times cluster.view_change_retransmit_interval",
        ),
        (
            "cluster.auth.shared_secret",
            len(secret) >= SECRET_BYTES_MIN if auth.enabled or secret else True,
            f"it must have at least {SECRET_BYTES_MIN} bytes while cluster.auth.enabled is true",
        ),
        (
            "cluster.auth.previous_shared_secret",
            not previous or (len(previous) >= SECRET_BYTES_MIN and previous != secret),
            f"it must have at least {SECRET_BYTES_MIN} bytes and differ from cluster.auth.shared_secret",
        ),
    ]


SECRET_BYTES_MIN = 32


def is_encryption_key(text: str) -> bool:
    """Whether ``text`` is the base64 text of a key of AES-256."""
    try:
        return len(base64.b64decode(text, validate=True)) == ENCRYPTION_KEY_BYTES
    except binascii.Error:
        return False


ENCRYPTION_KEY_BYTES = 32
LEVELS = ("trace", "debug", "info", "warn", "error", "off")


def log_level(text: str) -> str | None:
    """The level of a filter such as ``info`` or ``warn,server=debug``: its first part without a target, or None."""
    for part in text.lower().split(","):
        word = {"warning": "warn"}.get(part.strip(), part.strip())
        if word in LEVELS:
            return word
    return None


# --- building and writing --------------------------------------------------------------------------------------------


def _section(struct: type, merged: Merged, prefix: str) -> Any:
    values: dict[str, Any] = {}
    for name, hint in _fields(struct):
        path = f"{prefix}{name}"
        if name == "tree" and not prefix:
            values[name] = merged.tree
        elif isinstance(hint, Kind):
            value = _lookup(merged.tree, path)
            try:
                values[name] = hint.read(value)
            except ValueError as error:
                raise ConfigurationError(path, value, f"{error} ({merged.origin(path)})") from error
        else:
            values[name] = _section(hint, merged, f"{path}.")
    return struct(**values)


def _fields(struct: type) -> list[tuple[str, Any]]:
    """(name, its `Kind`, or the struct of a subsection) of every field, in order."""
    hints = typing.get_type_hints(struct, include_extras=True)
    return [
        (name, next((mark for mark in getattr(hints[name], "__metadata__", ()) if isinstance(mark, Kind)), hints[name]))
        for name in struct.__struct_fields__  # type: ignore[attr-defined]
    ]


def _written(struct: Any, prefix: str) -> list[tuple[str, object]]:
    """(path, value as a file holds it) of every key of a built section."""
    rows: list[tuple[str, object]] = []
    for name, hint in _fields(type(struct)):
        value = getattr(struct, name)
        if isinstance(hint, Kind):
            rows.append((f"{prefix}{name}", hint.write(value)))
        elif name != "tree" or prefix:
            rows += _written(value, f"{prefix}{name}.")
    return rows


def effective_keys(struct: type = Config, prefix: str = "") -> list[str]:
    """Every key that has an effect."""
    keys: list[str] = []
    for name, hint in _fields(struct):
        if isinstance(hint, Kind):
            keys.append(f"{prefix}{name}")
        elif name != "tree" or prefix:
            keys += effective_keys(hint, f"{prefix}{name}.")
    return keys


def _inert(merged: Merged) -> list[Notice]:
    effective = (*effective_keys(), *MUST_BE_FALSE)
    defaults = dict(leaves(embedded()))
    inert = [
        key
        for key in merged.origins
        if key not in effective and _lookup(merged.tree, key) not in (defaults.get(key), False, [])
    ]
    return [Notice("info", "These keys have no effect yet", {"keys": ", ".join(sorted(inert))})] if inert else []


def _overrides(merged: Merged) -> list[Notice]:
    notices = []
    for key, origin in merged.origins.items():
        if origin.startswith("environment variable "):
            name = origin.removeprefix("environment variable ")
            shown = "******" if key in SECRETS else _lookup(merged.tree, key)
            notices.append(Notice("info", f"{name} value changed to: {shown} from environment variable"))
    return notices


def _lookup(tree: Mapping[str, Any], path: str) -> Any:
    found: Any = tree
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _drop(tree: Tree, path: str) -> None:
    *sections, name = path.split(".")
    _lookup(tree, ".".join(sections)).pop(name, None)


def _copy_of(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _copy_of(inner) for name, inner in value.items()}
    return [_copy_of(inner) for inner in value] if isinstance(value, list) else value


def to_toml(tree: Mapping[str, Any], prefix: str = "") -> str:
    """TOML text of nested tables: scalars first, then a section for each table; arrays of tables are written inline."""
    scalars = [f"{name} = {_toml_value(value)}\n" for name, value in tree.items() if not isinstance(value, Mapping)]
    sections = [
        f"\n[{prefix}{name}]\n{to_toml(value, f'{prefix}{name}.')}"
        for name, value in tree.items()
        if isinstance(value, Mapping)
    ]
    return "".join(scalars + sections)


def _toml_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {_toml_value(inner)}" for name, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(inner) for inner in value) + "]"
    return msgspec.json.encode(str(value)).decode().replace("\x7f", "\\u007f")
