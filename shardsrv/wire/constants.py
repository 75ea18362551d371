"""Numbers of the frame protocol: sizes, limits, protocol version, commands, operations, eviction reasons.

Source: the frame layout and the operation table of the protocol. Invariants: every enumeration is closed (an unknown
byte is a DecodeError, see `shardsrv.wire.codec`); the sets of operations below are disjoint where they say so.
"""

from __future__ import annotations

import enum
from typing import Final

HEADER_SIZE: Final = 256
"""Bytes of every header; the smallest frame."""

MAX_FRAME_SIZE: Final = 64 * 1024 * 1024
"""Default limit of `size`, header included; clients refuse replies above it."""

MAX_OP: Final = 2**62 - 1
"""Ops, commits, sessions, request numbers and timestamps stay at or below this, so that no addition overflows."""

MAX_VIEW: Final = 2**31 - 1
"""A frame between members names no view above this: whoever takes the view from it can still write the next one."""

METADATA_GROUP: Final = 1 << 63
"""Group id of the metadata plane."""

ZERO_ID: Final = bytes(16)
"""A client or cluster id that is not set."""

AUTO_COMMIT_CLIENT: Final = b"\xff" * 16
"""Client id of offsets that polls commit by themselves."""

PARTITION_RESYNC: Final = 0xFFFFFFFF
"""partition_id of an empty poll that tells a group member to ask for its assignment again."""

NO_USER: Final = 0xFFFFFFFF
"""user_id of a connection that is not logged in, in client records."""

UNLIMITED: Final = 2**64 - 1
"""Message expiry never, topic size unlimited, token expiry never; 0 means the server's default in the same fields."""


def pack_version(major: int, minor: int, patch: int) -> int:
    """A protocol version as the u32 that logins carry: major<<20 | minor<<10 | patch."""
    return major << 20 | minor << 10 | patch


PROTOCOL_VERSION: Final = pack_version(0, 11, 0)
PROTOCOL_VERSION_MIN: Final = pack_version(0, 11, 0)


def version_accepted(client: int) -> bool:
    """True when a client's protocol version is inside the window: any patch of the server's minor version."""
    return client >= PROTOCOL_VERSION_MIN and client >> 10 <= PROTOCOL_VERSION >> 10


class Command(enum.IntEnum):
    """Header byte 60."""

    RESERVED = 0
    PING = 1
    PONG = 2
    PING_CLIENT = 3
    PONG_CLIENT = 4
    REQUEST = 5
    PREPARE = 6
    PREPARE_OK = 7
    REPLY = 8
    COMMIT = 9
    START_VIEW_CHANGE = 10
    DO_VIEW_CHANGE = 11
    START_VIEW = 12
    EVICTION = 13
    REPLICA_HELLO = 14
    REPLICA_CHALLENGE = 15
    REPLICA_FINISH = 16
    REQUEST_START_VIEW = 17
    REQUEST_PREPARES = 18
    REPAIR_PREPARE = 19
    REPAIR_DONE = 20
    RANGE_EVICTED = 21
    REQUEST_STATE_TRANSFER = 22
    STATE_TRANSFER_TARGET = 23
    REQUEST_STATE_CHUNK = 24
    STATE_CHUNK = 25
    FORWARD_REGISTER = 26
    FORWARD_REGISTER_RESULT = 27
    FORWARD_LOGOUT = 28
    FORWARD_LOGOUT_RESULT = 29


class Operation(enum.IntEnum):
    """Operation byte of Request (176), Reply and Prepare (208), PrepareOk (192).

    192 and 193 are of this server alone: entries of a partition's log that a committed purge or truncation puts there.
    """

    RESERVED = 0
    REGISTER = 1
    NON_REPLICATED = 2
    LOGOUT = 3
    CREATE_TOPIC_WITH_ASSIGNMENTS = 64
    CREATE_PARTITIONS_WITH_ASSIGNMENTS = 65
    REMOVE_CONSUMER_GROUP_MEMBER = 66
    COMPLETE_CONSUMER_GROUP_REVOCATION = 67
    TRUNCATE_PARTITION = 68
    CREATE_STREAM = 128
    UPDATE_STREAM = 129
    DELETE_STREAM = 130
    PURGE_STREAM = 131
    CREATE_TOPIC = 132
    UPDATE_TOPIC = 133
    DELETE_TOPIC = 134
    PURGE_TOPIC = 135
    CREATE_PARTITIONS = 136
    DELETE_PARTITIONS = 137
    DELETE_SEGMENTS = 138
    CREATE_CONSUMER_GROUP = 139
    DELETE_CONSUMER_GROUP = 140
    CREATE_USER = 141
    UPDATE_USER = 142
    DELETE_USER = 143
    CHANGE_PASSWORD = 144
    UPDATE_PERMISSIONS = 145
    CREATE_PERSONAL_ACCESS_TOKEN = 146
    DELETE_PERSONAL_ACCESS_TOKEN = 147
    JOIN_CONSUMER_GROUP = 148
    LEAVE_CONSUMER_GROUP = 149
    SEND_MESSAGES = 160
    STORE_CONSUMER_OFFSET = 161
    DELETE_CONSUMER_OFFSET = 162
    PURGE_PARTITION = 192
    TRUNCATE_PARTITION_LOG = 193

    @property
    def is_internal(self) -> bool:
        """Never from a client: a request that carries it is evicted."""
        return is_internal(self)

    @property
    def is_metadata(self) -> bool:
        """Enters the log of the metadata plane."""
        return is_metadata(self)

    @property
    def is_partition(self) -> bool:
        """Enters the log of a partition."""
        return is_partition(self)

    @property
    def is_result_framed(self) -> bool:
        """The reply body begins with a result section (a register reply only when its body is not empty)."""
        return is_result_framed(self)


def is_internal(operation: int) -> bool:
    """See Operation.is_internal; True for the whole ranges 64..127 and 192..255, defined or not."""
    return 64 <= operation <= 127 or operation >= 192


def is_metadata(operation: int) -> bool:
    """See Operation.is_metadata. Delete segments (138) is in neither plane: it enters the log as 68."""
    return operation in (1, 3) or 64 <= operation <= 68 or (128 <= operation <= 149 and operation != 138)


def is_partition(operation: int) -> bool:
    """See Operation.is_partition."""
    return 160 <= operation <= 162 or 192 <= operation <= 193


def is_result_framed(operation: int) -> bool:
    """See Operation.is_result_framed."""
    return operation in (1, 161, 162) or 64 <= operation <= 68 or (128 <= operation <= 149 and operation != 138)


KNOWN_OPERATIONS: Final = frozenset(int(operation) for operation in Operation)
"""For membership tests on a raw byte; 0 is in it, so test for it apart."""

REPLY_OPERATIONS: Final[dict[int, Operation]] = {
    Operation.CREATE_TOPIC: Operation.CREATE_TOPIC_WITH_ASSIGNMENTS,
    Operation.CREATE_PARTITIONS: Operation.CREATE_PARTITIONS_WITH_ASSIGNMENTS,
    Operation.DELETE_SEGMENTS: Operation.TRUNCATE_PARTITION,
}
"""Operations that are committed, and answered, as another one."""


class EvictionReason(enum.IntEnum):
    """Byte 255 of an Eviction."""

    NO_SESSION = 1
    CLIENT_RELEASE_TOO_LOW = 2
    CLIENT_RELEASE_TOO_HIGH = 3
    INVALID_REQUEST_OPERATION = 4
    INVALID_REQUEST_BODY = 5
    INVALID_REQUEST_BODY_SIZE = 6
    SESSION_TOO_LOW = 7
    SESSION_RELEASE_MISMATCH = 8
    INVALID_CREDENTIALS = 9
    INVALID_TOKEN = 10
    USER_INACTIVE = 11
    SESSION_ERROR = 12
    STALE_CLIENT = 13
    INCOMPATIBLE_PROTOCOL = 14
    MALFORMED_LOGIN = 15


class ConsumerKind(enum.IntEnum):
    CONSUMER = 1
    GROUP = 2


class PartitioningKind(enum.IntEnum):
    BALANCED = 1
    PARTITION_ID = 2
    MESSAGES_KEY = 3


class PollingKind(enum.IntEnum):
    OFFSET = 1
    TIMESTAMP = 2
    FIRST = 3
    LAST = 4
    NEXT = 5


class AckLevel(enum.IntEnum):
    """What an offset write waits for: the local write, or a quorum."""

    NO_ACK = 0
    QUORUM = 1


class Compression(enum.IntEnum):
    NONE = 1
    GZIP = 2


class UserStatus(enum.IntEnum):
    ACTIVE = 1
    INACTIVE = 2


class Transport(enum.IntEnum):
    TCP = 1
    QUIC = 2
    HTTP = 3
    WEBSOCKET = 4


class SnapshotCompression(enum.IntEnum):
    STORED = 1
    DEFLATED = 2
    BZIP2 = 3
    ZSTD = 4
    LZMA = 5
    XZ = 6


class SnapshotKind(enum.IntEnum):
    FILESYSTEM_OVERVIEW = 1
    PROCESS_LIST = 2
    RESOURCE_USAGE = 3
    TEST = 4
    SERVER_LOGS = 5
    SERVER_CONFIG = 6
    ALL = 100


class OptionsScope(enum.IntEnum):
    TOPIC = 1
    STREAM = 2
    USER = 3


class NodeRole(enum.IntEnum):
    LEADER = 0
    FOLLOWER = 1


class NodeStatus(enum.IntEnum):
    HEALTHY = 0
    STARTING = 1
    STOPPING = 2
    UNREACHABLE = 3
    MAINTENANCE = 4


class Durability(enum.IntEnum):
    """What an op must reach before it is acknowledged."""

    REPLICATED = 0
    PERSISTED = 1


class AckedAs(enum.IntEnum):
    """What a PrepareOk vouches for: the entry is in the log, or on stable storage; or that it was refused for its
    time."""

    APPENDED = 0
    SYNCED = 1
    CLOCK_REFUSED = 2
