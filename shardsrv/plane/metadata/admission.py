"""What is decided about a metadata command before it becomes an entry: whether it is well formed, and what it resolves
to.

Invariants: a refusal here is a status, not a result, and leaves nothing in the log; what needs the state as of the
entry (names, ids, rights) is left to `apply`, with one exception that clients expect as a status: an update that lets
a known topic hold less than a segment (1019). A resolved body depends on its own bytes alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs

from shardsrv.errors import DecodeError, InvalidOptionValue, OurFault, RequestRefused, UnsupportedOptionKey
from shardsrv.plane.metadata import options_catalog, tokens
from shardsrv.plane.metadata.commands import (
    ChangePasswordResolved,
    CreatePartitionsResolved,
    CreateTokenResolved,
    CreateTopicResolved,
    CreateUserResolved,
)
from shardsrv.plane.metadata.options_catalog import TopicDefaults
from shardsrv.plane.metadata.state import ROOT_ID, MetadataState
from shardsrv.wire.constants import Operation, UserStatus
from shardsrv.wire.consumer_groups import (
    CreateConsumerGroup,
    DeleteConsumerGroup,
    JoinConsumerGroup,
    LeaveConsumerGroup,
)
from shardsrv.wire.cursor import Buffer
from shardsrv.wire.error_codes import ErrorCode
from shardsrv.wire.message import Request
from shardsrv.wire.options import options_of
from shardsrv.wire.streams import CreateStream, DeleteStream, PurgeStream, UpdateStream
from shardsrv.wire.topics import (
    CreatePartitions,
    CreateTopic,
    DeletePartitions,
    DeleteTopic,
    PurgeTopic,
    UpdateTopic,
)
from shardsrv.wire.users import (
    ChangePassword,
    CreatePersonalAccessToken,
    CreateUser,
    DeletePersonalAccessToken,
    DeleteUser,
    UpdatePermissions,
    UpdateUser,
)

MAX_PARTITIONS_PER_REQUEST: Final = 1000


@attrs.frozen(slots=True)
class PasswordTask:
    """Slow work on passwords, to be done before a command is resolved: hash `new`; and, when `stored_hash` is not
    None, see whether `current` matches it."""

    new: str
    current: str = ""
    stored_hash: str | None = None


@attrs.frozen(slots=True)
class PasswordResult:
    """`new_hash` of the new password; `verified_hash`: the stored hash that the current one matched, else empty."""

    new_hash: str
    verified_hash: str = ""


@attrs.frozen(slots=True)
class TokenSecret:
    """The digest under which a new token is kept."""

    digest: str


@attrs.frozen(slots=True)
class Context:
    """What is looked at beside the request. `view` is the metadata view; `secrets` what was hashed beforehand."""

    state: MetadataState
    defaults: TopicDefaults
    view: int = 0
    secrets: PasswordResult | TokenSecret | None = None
    user_id: int = ROOT_ID


def check(context: Context, operation: int, body: Buffer) -> Request:
    """The decoded request of a client's operation. Raises RequestRefused with the status: 3 undecodable, 4041, 4042,
    1019, 2015, and 5 for an operation that this release does not offer."""
    kind = REQUESTS.get(operation)
    if kind is None:
        raise RequestRefused(ErrorCode.FEATURE_UNAVAILABLE, operation=operation)
    try:
        request = kind.decode(body)
        checker = _CHECKS.get(operation)
        if checker is not None:
            checker(context, request)
    except (DecodeError, UnsupportedOptionKey, InvalidOptionValue) as error:
        raise RequestRefused(error.code, **error.facts()) from None
    return request


def resolve(context: Context, operation: int, body: Buffer) -> tuple[int, bytes]:
    """The operation and body that enter the log. Raises RequestRefused as `check` does, OurFault when passwords that
    the command needs were not prepared."""
    request = check(context, operation, body)
    resolver = _RESOLVERS.get(operation)
    return (operation, bytes(body)) if resolver is None else resolver(context, request)


def password_task(state: MetadataState, operation: int, body: Buffer) -> PasswordTask | None:
    """The work on passwords that a command needs, or None. Raises RequestRefused (3)."""
    try:
        if operation == Operation.CREATE_USER:
            return PasswordTask(CreateUser.decode(body).password)
        if operation == Operation.CHANGE_PASSWORD:
            request = ChangePassword.decode(body)
            user = state.find_user(request.user)
            stored = None if user is None else user.password_hash
            return PasswordTask(request.new_password, request.current_password, stored)
    except DecodeError as error:
        raise RequestRefused(error.code, **error.facts()) from None
    return None


def _check_count(count: int, lowest: int) -> None:
    if not lowest <= count <= MAX_PARTITIONS_PER_REQUEST:
        raise RequestRefused(ErrorCode.TOO_MANY_PARTITIONS, partitions=count)


def _check_create_topic(context: Context, request: CreateTopic) -> None:
    options_catalog.resolve_create(request.options, min(request.partitions_count, 1), context.defaults)
    _check_count(request.partitions_count, 0)
    options_catalog.resolve_create(request.options, request.partitions_count, context.defaults)


def _check_update_topic(context: Context, request: UpdateTopic) -> None:
    changes = options_catalog.check_update(request.options)
    stream = context.state.find_stream(request.stream)
    topic = None if stream is None else stream.find_topic(request.topic)
    if topic is not None and "max_topic_size" in changes:
        settings = options_catalog.settings_of(*options_catalog.update(topic.explicit, topic.derived, changes))
        options_catalog.check_size(settings.max_topic_size, settings.segment_size)


def _check_no_options(context: Context, request: CreateStream | UpdateStream | CreateUser | UpdateUser) -> None:
    options_catalog.check_empty(request.options)


def _check_some_partitions(context: Context, request: CreatePartitions | DeletePartitions) -> None:
    _check_count(request.partitions_count, 1)


def _resolve_create_topic(context: Context, request: CreateTopic) -> tuple[int, bytes]:
    explicit, derived = options_catalog.resolve_create(request.options, request.partitions_count, context.defaults)
    resolved = CreateTopicResolved(
        request.stream, request.partitions_count, request.name, options_of(explicit), options_of(derived), context.view
    )
    return Operation.CREATE_TOPIC_WITH_ASSIGNMENTS, resolved.encode()


def _resolve_create_partitions(context: Context, request: CreatePartitions) -> tuple[int, bytes]:
    resolved = CreatePartitionsResolved(request.stream, request.topic, request.partitions_count, context.view)
    return Operation.CREATE_PARTITIONS_WITH_ASSIGNMENTS, resolved.encode()


def _resolve_create_user(context: Context, request: CreateUser) -> tuple[int, bytes]:
    status = UserStatus.INACTIVE if request.status == UserStatus.INACTIVE else UserStatus.ACTIVE
    resolved = CreateUserResolved(request.username, _passwords(context).new_hash, status, request.permissions)
    return Operation.CREATE_USER, resolved.encode()


def _resolve_change_password(context: Context, request: ChangePassword) -> tuple[int, bytes]:
    passwords = _passwords(context)
    resolved = ChangePasswordResolved(request.user, passwords.verified_hash, passwords.new_hash)
    return Operation.CHANGE_PASSWORD, resolved.encode()


def _resolve_create_token(context: Context, request: CreatePersonalAccessToken) -> tuple[int, bytes]:
    if not isinstance(context.secrets, TokenSecret):
        raise OurFault("a command that creates a token is resolved without its digest")
    resolved = CreateTokenResolved(request.name, context.secrets.digest, request.expiry)
    return Operation.CREATE_PERSONAL_ACCESS_TOKEN, resolved.encode()


def _check_create_token(context: Context, request: CreatePersonalAccessToken) -> None:
    user = context.state.users.get(context.user_id)
    if user is None or request.name not in user.tokens:
        # A name that is taken is refused by the entry, and a repeat by the client table: both are 51.
        tokens.check_count(context.state, context.user_id)


def _passwords(context: Context) -> PasswordResult:
    if not isinstance(context.secrets, PasswordResult):
        raise OurFault("a command with passwords is resolved without their hashes")
    return context.secrets


REQUESTS: Final[dict[int, type[Request]]] = {
    Operation.CREATE_STREAM: CreateStream,
    Operation.UPDATE_STREAM: UpdateStream,
    Operation.DELETE_STREAM: DeleteStream,
    Operation.PURGE_STREAM: PurgeStream,
    Operation.CREATE_TOPIC: CreateTopic,
    Operation.UPDATE_TOPIC: UpdateTopic,
    Operation.DELETE_TOPIC: DeleteTopic,
    Operation.PURGE_TOPIC: PurgeTopic,
    Operation.CREATE_PARTITIONS: CreatePartitions,
    Operation.DELETE_PARTITIONS: DeletePartitions,
    Operation.CREATE_USER: CreateUser,
    Operation.UPDATE_USER: UpdateUser,
    Operation.DELETE_USER: DeleteUser,
    Operation.CHANGE_PASSWORD: ChangePassword,
    Operation.UPDATE_PERMISSIONS: UpdatePermissions,
    Operation.CREATE_PERSONAL_ACCESS_TOKEN: CreatePersonalAccessToken,
    Operation.DELETE_PERSONAL_ACCESS_TOKEN: DeletePersonalAccessToken,
    Operation.CREATE_CONSUMER_GROUP: CreateConsumerGroup,
    Operation.DELETE_CONSUMER_GROUP: DeleteConsumerGroup,
    Operation.JOIN_CONSUMER_GROUP: JoinConsumerGroup,
    Operation.LEAVE_CONSUMER_GROUP: LeaveConsumerGroup,
}
"""The operations of clients that become metadata entries."""

_CHECKS: Final[dict[int, Callable[[Context, Any], None]]] = {
    Operation.CREATE_STREAM: _check_no_options,
    Operation.UPDATE_STREAM: _check_no_options,
    Operation.CREATE_USER: _check_no_options,
    Operation.UPDATE_USER: _check_no_options,
    Operation.CREATE_TOPIC: _check_create_topic,
    Operation.UPDATE_TOPIC: _check_update_topic,
    Operation.CREATE_PARTITIONS: _check_some_partitions,
    Operation.DELETE_PARTITIONS: _check_some_partitions,
    Operation.CREATE_PERSONAL_ACCESS_TOKEN: _check_create_token,
}

_RESOLVERS: Final[dict[int, Callable[[Context, Any], tuple[int, bytes]]]] = {
    Operation.CREATE_TOPIC: _resolve_create_topic,
    Operation.CREATE_PARTITIONS: _resolve_create_partitions,
    Operation.CREATE_USER: _resolve_create_user,
    Operation.CHANGE_PASSWORD: _resolve_change_password,
    Operation.CREATE_PERSONAL_ACCESS_TOKEN: _resolve_create_token,
}
