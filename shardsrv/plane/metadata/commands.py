"""Bodies of metadata entries that differ from what the client sent: commands with their configuration filled in.

A resolved command depends on nothing but its own bytes, so that every replica and every shard applies it alike
(architecture, 3.9). All other metadata entries carry the client's body.

| Operation | Body |
|---|---|
| 64 create topic | identifier stream, u32 partitions, name, u32+N explicit, u32+N derived options, u32 created view |
| 65 create partitions | identifier stream, identifier topic, u32 partitions, u32 created view |
| 66 remove member | 16 bytes client id, u64 session |
| 67 complete hand-over | u32 stream, u32 topic, u32 group, u64 its created revision, u32 partition, u64 since |
| 141 create user | name, u32+N password hash, u8 status, u8 has permissions [, u32+N permissions] |
| 144 change password | identifier user, u32+N hash that the current password matched (empty: none), u32+N new hash |
| 146 create token | name, u32+N digest of the token, u64 expiry (a duration, 0 or 2**64-1: never) |

Invariants: a password or a token never reaches the log. Annotations are read at run time: this module does not postpone
them.
"""

from typing import Annotated

import attrs

from shardsrv.wire.codec import Enum8
from shardsrv.wire.constants import UserStatus
from shardsrv.wire.message import Message
from shardsrv.wire.options import ReplyOptions
from shardsrv.wire.permissions import OptionalPermissions
from shardsrv.wire.primitives import U32, U64, ClientId, Ident, Name, Text32


@attrs.frozen
class CreateTopicResolved(Message):
    """Operation 64. Explicit options are canonical; derived ones are every other key of the catalogue."""

    stream: Ident
    partitions_count: U32
    name: Name
    explicit: ReplyOptions
    derived: ReplyOptions
    created_view: U32


@attrs.frozen
class CreatePartitionsResolved(Message):
    """Operation 65."""

    stream: Ident
    topic: Ident
    partitions_count: U32
    created_view: U32


@attrs.frozen
class RemoveMember(Message):
    """Operation 66: a session is gone without a logout: its memberships end, the client table keeps its replies."""

    client: ClientId
    session: U64


@attrs.frozen
class CompleteHandOver(Message):
    """Operation 67: the owner of a partition has committed all that it polled before the hand-over began at `since`."""

    stream: U32
    topic: U32
    group: U32
    created_revision: U64
    partition: U32
    since: U64


@attrs.frozen
class CreateUserResolved(Message):
    """Operation 141 with the hash in the place of the password."""

    username: Name
    password_hash: Text32
    status: Annotated[UserStatus, Enum8(UserStatus)]
    permissions: OptionalPermissions


@attrs.frozen
class ChangePasswordResolved(Message):
    """Operation 144. The entry takes effect only while the user still has `verified_hash`: a change that was committed
    in between makes the current password wrong."""

    user: Ident
    verified_hash: Text32
    new_hash: Text32


@attrs.frozen
class CreateTokenResolved(Message):
    """Operation 146 with the digest in the place of the token, which is only ever in the first reply."""

    name: Name
    digest: Text32
    expiry: U64
