"""Whole frames: replies, evictions and requests made from their parts.

Invariants: `size` is the header plus the body; an error status has no body; a reply echoes the request's number,
checksum and operation (as it was committed, see `constants.REPLY_OPERATIONS`).
"""

from __future__ import annotations

import attrs
import xxhash

from shardsrv.errors import EncodeError
from shardsrv.wire.client_headers import EvictionHeader, ReplyHeader, RequestHeader
from shardsrv.wire.codes import COMMANDS
from shardsrv.wire.constants import (
    HEADER_SIZE,
    PROTOCOL_VERSION,
    PROTOCOL_VERSION_MIN,
    REPLY_OPERATIONS,
    ZERO_ID,
    EvictionReason,
    Operation,
    is_partition,
)
from shardsrv.wire.cursor import Buffer
from shardsrv.wire.message import Request
from shardsrv.wire.replies import SUCCESS, refusal


def reply_header(
    request: RequestHeader,
    *,
    status: int = 0,
    body_size: int = 0,
    op: int = 0,
    commit: int = 0,
    timestamp: int | None = None,
    operation: int | None = None,
    client: bytes | None = None,
    cluster: bytes | None = None,
    view: int = 0,
    replica: int = 0,
) -> ReplyHeader:
    """The header of an answer to `request`. What is not given echoes the request, and the operation is the one that is
    committed for it unless there is a status; a refusal before the commit in the result section may keep the request's
    own operation. Raises EncodeError for a body beside an error status."""
    if status and body_size:
        raise EncodeError(what="reply body beside a status", value=body_size)
    if operation is None:
        operation = request.operation if status else REPLY_OPERATIONS.get(request.operation, request.operation)
    return ReplyHeader(
        cluster=request.cluster if cluster is None else cluster,
        size=HEADER_SIZE + body_size,
        view=view,
        replica=replica,
        request_checksum=request.request_checksum,
        client=request.client if client is None else client,
        op=op,
        commit=commit,
        timestamp=request.timestamp if timestamp is None else timestamp,
        request=request.request,
        operation=operation,
        status=status,
    )


def build_reply(request: RequestHeader, status: int = 0, body: Buffer = b"", **fields: int | bytes | None) -> bytes:
    """The frame of an answer: header and body. `fields` as in `reply_header`."""
    header = reply_header(request, status=status, body_size=len(body), **fields)  # type: ignore[arg-type]
    return header.pack() + body


def success_body(payload: Buffer = b"") -> bytes:
    """The body of a result-framed success."""
    return SUCCESS + payload


def refusal_body(code: int) -> bytes:
    """The body of a result-framed refusal."""
    return refusal(code)


def build_eviction(client: bytes, reason: EvictionReason, *, cluster: bytes = ZERO_ID) -> bytes:
    """The frame of an eviction. The protocol window is filled in with reason 14 and only then.

    A client id of zero is not allowed on the wire: callers pass the connection's id when the request had none.
    """
    header = EvictionHeader(cluster=cluster, client=client, reason=reason)
    if reason is EvictionReason.INCOMPATIBLE_PROTOCOL:
        header = attrs.evolve(header, protocol_version=PROTOCOL_VERSION, protocol_version_min=PROTOCOL_VERSION_MIN)
    return header.pack()


def build_request(request: Request, *, client: bytes, session: int, number: int) -> bytes:
    """The frame that a client sends: operation and code from the request's class, checksum as the SDKs stamp it."""
    body = request.encode()
    info = COMMANDS[request.code]
    replicated = info.operation != Operation.NON_REPLICATED
    stamped = replicated and not is_partition(info.operation)
    header = RequestHeader(
        size=HEADER_SIZE + len(body),
        client=client,
        request_checksum=xxhash.xxh3_64_intdigest(body) if stamped else 0,
        request=number,
        operation=info.operation,
        session=session,
        code=0 if replicated else int(request.code),
    )
    return header.pack() + body


def checksum_matches(header: RequestHeader, body: Buffer) -> bool:
    """False when a request carries a body checksum that is not XXH3-64 of its body: to be answered with status 4."""
    return header.request_checksum == 0 or header.request_checksum == xxhash.xxh3_64_intdigest(body)
