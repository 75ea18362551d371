"""The sections of the configuration: their keys, and how each is read, bounded and written back.

Owns the list of keys that have an effect. Invariants: a field has the name of its key; bounds are inclusive and stand
here and in the comment of the key in ``config.toml``; defaults stand only there. In memory durations are float
seconds, sizes int bytes, expiries int microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import attrs
import msgspec

from shardsrv import quantities as q
from shardsrv.roster import Roster, parse_roster


@attrs.frozen
class Kind:
    """How one key is read, bounded (inclusive) and written back."""

    parse: Callable[[object], Any]
    write: Callable[[Any], object] = lambda value: value
    lowest: Any = None
    highest: Any = None

    def read(self, value: object) -> Any:
        """The checked value.

        Raises:
            ValueError: with the reason.
        """
        parsed = self.parse(value)
        if (self.lowest is not None and parsed < self.lowest) or (self.highest is not None and parsed > self.highest):
            raise ValueError(f"it must lie in {self.write(self.lowest)} .. {self.write(self.highest)}")
        return parsed


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("it must be true or false")
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("it must be a whole number")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("it must be text (in quotes; a bare number or true/false is not)")
    if not 1 <= len(value.encode()) <= 255:
        raise ValueError("it must be 1 to 255 bytes of text")
    return value


def _path(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("it must be a path")
    return value


def _one_of(*words: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if not isinstance(value, str) or value.lower() not in words:
            raise ValueError(f"it must be one of {', '.join(words)}")
        return value.lower()

    return parse


def _count_of(lowest: int, highest: int) -> Kind:
    return Kind(_count, lowest=lowest, highest=highest)


def _size_of(lowest: str, highest: str) -> Kind:
    return Kind(q.parse_size, q.format_size, q.parse_size(lowest), q.parse_size(highest))


def _duration_of(lowest: str, highest: str) -> Kind:
    return Kind(q.parse_duration, q.format_duration, q.parse_duration(lowest), q.parse_duration(highest))


def _address(value: object) -> str:
    return q.format_address(*q.parse_address(value))


Flag = Annotated[bool, Kind(_bool)]
FilePath = Annotated[str, Kind(_path)]
Durability = Annotated[str, Kind(_one_of("replicated", "persisted"))]


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A table of the file; fields have the names of their keys."""


class Tcp(Section, frozen=True, kw_only=True):
    """[tcp]: the binary protocol over TCP."""

    enabled: Flag
    address: Annotated[str, Kind(_address)]


class Runtime(Section, frozen=True, kw_only=True):
    """[system.runtime]: what exists only while the node runs."""

    path: FilePath


class Logging(Section, frozen=True, kw_only=True):
    """[system.logging]: level, file, archives."""

    path: FilePath
    level: Annotated[str, Kind(_text)]
    file_enabled: Flag
    max_file_size: Annotated[int, _size_of("0", "1 TiB")]
    max_total_size: Annotated[int, _size_of("0", "1024 TiB")]
    rotation_check_interval: Annotated[float, _duration_of("1 s", "365 d")]
    retention: Annotated[float, _duration_of("1 s", "3650 d")]


class Sharding(Section, frozen=True, kw_only=True):
    """[system.sharding]: shards, their cores, the deadlines of their processes."""

    cpu_allocation: Annotated[q.CpuAllocation, Kind(q.parse_cpu_allocation, q.format_cpu_allocation)]
    pin_cores: Flag
    start_deadline: Annotated[float, _duration_of("1 s", "24 h")]
    shutdown_drain_timeout: Annotated[float, _duration_of("1 ms", "600 s")]
    shutdown_join_timeout: Annotated[float, _duration_of("1 ms", "900 s")]


class SystemPartition(Section, frozen=True, kw_only=True):
    """[system.partition]: how polls read."""

    validate_checksum: Flag


def _key(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("it must be text")
    return value


class Encryption(Section, frozen=True, kw_only=True):
    """[system.encryption]: messages at rest."""

    enabled: Flag
    key: Annotated[str, Kind(_key)]


class System(Section, frozen=True, kw_only=True):
    """[system]: the data directory and the processes."""

    path: FilePath
    runtime: Runtime
    logging: Logging
    sharding: Sharding
    partition: SystemPartition
    encryption: Encryption


class MessageBus(Section, frozen=True, kw_only=True):
    """[message_bus]: frames of every transport."""

    max_message_size: Annotated[int, _size_of("4 KiB", "1 GiB")]
    peer_queue_capacity: Annotated[int, _count_of(2, 65_536)]
    reconnect_period: Annotated[float, _duration_of("10 ms", "1 h")]
    handshake_grace: Annotated[float, _duration_of("10 ms", "1 h")]


class Checkpoint(Section, frozen=True, kw_only=True):
    """[metadata.checkpoint]: when a snapshot of the metadata is written."""

    bytes: Annotated[int, _size_of("64 KiB", "16 GiB")]
    interval: Annotated[float, _duration_of("1 s", "24 h")]


class Metadata(Section, frozen=True, kw_only=True):
    """[metadata]: the replicated metadata."""

    prepare_queue_depth: Annotated[int, _count_of(1, 127)]
    clients_table_max: Annotated[int, _count_of(2, 65_536)]
    checkpoint: Checkpoint


class Partition(Section, frozen=True, kw_only=True):
    """[partition]: logs of partitions, and what an acknowledgement waits for."""

    prepare_queue_depth: Annotated[int, _count_of(1, 127)]
    checkpoint_bytes: Annotated[int, _size_of("64 KiB", "64 GiB")]
    durability_floor: Durability
    sync_interval: Annotated[float, _duration_of("1 ms", "10 s")]
    sync_bytes: Annotated[int, _size_of("4 KiB", "16 GiB")]
    unsynced_time_max: Annotated[float, _duration_of("1 ms", "1 h")]
    unsynced_bytes_max: Annotated[int, _size_of("4 KiB", "1 TiB")]
    consumer_offsets_max: Annotated[int, _count_of(1, 1_000_000)]
    deduplication_window_ops: Annotated[int, _count_of(16, 65_536)]


class Topic(Section, frozen=True, kw_only=True):
    """[topic]: what a new topic gets where its creator says nothing."""

    compression_algorithm: Annotated[str, Kind(_one_of("none", "gzip"))]
    message_expiry: Annotated[int, Kind(q.parse_expiry, q.format_expiry, 1, q.NEVER)]
    max_size: Annotated[int, Kind(q.parse_size_limit, q.format_size_limit)]
    segment_size: Annotated[int, _size_of("1 MiB", "1 GiB")]
    durability: Durability
    consumer_offset_durability: Durability
    messages_required_to_save: Annotated[int, _count_of(1, 16_777_216)]
    size_of_messages_required_to_save: Annotated[int, _size_of("1 B", "1 GiB")]
    preallocate_segments: Flag


class Limits(Section, frozen=True, kw_only=True):
    """[limits]: memory, connections, descriptors."""

    connections_max: Annotated[int, _count_of(1, 1_000_000)]
    ingress_bytes_max: Annotated[int, _size_of("4 KiB", "1 TiB")]
    unauthenticated_bytes_max: Annotated[int, _size_of("1 KiB", "16 MiB")]
    arena_bytes: Annotated[int, _size_of("1 MiB", "1 TiB")]
    lane_bytes: Annotated[int, _size_of("4 KiB", "16 MiB")]
    counter_slots: Annotated[int, _count_of(64, 4_194_304)]
    descriptors_reserved: Annotated[int, _count_of(128, 1_000_000)]


class Heartbeat(Section, frozen=True, kw_only=True):
    """[heartbeat]: clients that fell silent."""

    enabled: Flag
    interval: Annotated[float, _duration_of("0", "24 h")]


class Users(Section, frozen=True, kw_only=True):
    """[users]: the cost of a password."""

    argon2_memory: Annotated[int, _size_of("8 KiB", "1 GiB")]
    argon2_iterations: Annotated[int, _count_of(1, 64)]
    argon2_parallelism: Annotated[int, _count_of(1, 16)]


def _tables(value: object) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError("it must be an array of tables, one [[cluster.nodes]] a node")
    return tuple(value)


class ClusterAuth(Section, frozen=True, kw_only=True):
    """[cluster.auth]: the secret that nodes prove to each other."""

    enabled: Flag
    shared_secret: Annotated[str, Kind(_key)]
    previous_shared_secret: Annotated[str, Kind(_key)]


class Cluster(Section, frozen=True, kw_only=True):
    """[cluster]: the name that marks the data directory; the nodes, and how long they wait for each other."""

    enabled: Flag
    name: Annotated[str, Kind(_text)]
    nodes: Annotated[tuple[Any, ...], Kind(_tables, list)]
    """As written: what they mean is looked at only in a cluster (`roster`)."""
    heartbeat_timeout: Annotated[float, _duration_of("10 ms", "1 h")]
    commit_broadcast_interval: Annotated[float, _duration_of("10 ms", "1 h")]
    prepare_retransmit_interval: Annotated[float, _duration_of("10 ms", "1 h")]
    view_change_retransmit_interval: Annotated[float, _duration_of("10 ms", "1 h")]
    view_change_status_timeout: Annotated[float, _duration_of("10 ms", "1 h")]
    request_start_view_retransmit_interval: Annotated[float, _duration_of("10 ms", "1 h")]
    view_probe_attempts_max: Annotated[int, _count_of(1, 100)]
    repair_retry_interval: Annotated[float, _duration_of("10 ms", "1 h")]
    repair_chunk_max: Annotated[int, _count_of(1, 1024)]
    auth: ClusterAuth

    @property
    def roster(self) -> Roster:
        """The nodes, by replica id. Raises `ValueError`; not for a configuration that was built."""
        return parse_roster(self.nodes)


class ConsumerGroupSection(Section, frozen=True, kw_only=True):
    """[consumer_group]: hand-overs."""

    rebalancing_timeout: Annotated[float, _duration_of("1 ms", "24 h")]


class MessageMaintenance(Section, frozen=True, kw_only=True):
    """[data_maintenance.messages]: retention."""

    cleaner_enabled: Flag
    interval: Annotated[float, _duration_of("1 ms", "24 h")]


class DataMaintenance(Section, frozen=True, kw_only=True):
    """[data_maintenance]: what is done to data that is stored."""

    messages: MessageMaintenance


class TokenCleaning(Section, frozen=True, kw_only=True):
    """[personal_access_token.cleaner]: expired tokens."""

    enabled: Flag
    interval: Annotated[float, _duration_of("1 ms", "24 h")]


class PersonalAccessToken(Section, frozen=True, kw_only=True):
    """[personal_access_token]: tokens of users."""

    max_tokens_per_user: Annotated[int, _count_of(1, 100)]
    cleaner: TokenCleaning
