"""A metadata plane driven without consensus: every command becomes the next entry at once.

Passwords are "hashed" by a prefix; timestamps rise by one second an entry. `Copy` applies the same entries elsewhere.
"""

from __future__ import annotations

from typing import Any

from shardsrv._core import Prepare, xxh3
from shardsrv.errors import RequestRefused
from shardsrv.plane.metadata.admission import PasswordResult, PasswordTask, TokenSecret
from shardsrv.plane.metadata.options_catalog import TopicDefaults
from shardsrv.plane.metadata.plane import MetadataPlane
from shardsrv.plane.metadata.state import ROOT_ID, MetadataState
from shardsrv.vsr.events import Request as ReplicaRequest
from shardsrv.wire.constants import METADATA_GROUP
from shardsrv.wire.message import Request
from shardsrv.wire.replies import split_result

START = 1_700_000_000_000_000
SECOND = 1_000_000


def hashed(password: str) -> str:
    """What stands for a password's hash."""
    return f"hash of {password}"


def new_plane(defaults: TopicDefaults | None = None) -> MetadataPlane:
    """A plane with nothing but root (iggy, iggy)."""
    return MetadataPlane(MetadataState.initial("iggy", hashed("iggy")), defaults or TopicDefaults())


def entry(
    op: int, operation: int, body: bytes, user_id: int = ROOT_ID, client: bytes = bytes(16), session: int = 0
) -> Prepare:
    """A committed entry of the metadata log."""
    return Prepare.build(
        cluster=bytes(16),
        view=0,
        replica=0,
        client=client,
        parent=0,
        request_checksum=0,
        request_checksum_high=session,
        op=op,
        commit=op - 1,
        timestamp=START + op * SECOND,
        request=1,
        operation=operation,
        group=METADATA_GROUP,
        user_id=user_id,
        created_revision=0,
        durability=1,
        body=body,
        checksum_body=xxh3(body),
    )


def passwords_for(task: PasswordTask | None) -> PasswordResult | None:
    """The work of a password task, done at once."""
    if task is None:
        return None
    matches = task.stored_hash is not None and task.stored_hash == hashed(task.current)
    return PasswordResult(hashed(task.new), task.stored_hash or "" if matches else "")


class Driver:
    """`log` holds every entry, in order."""

    def __init__(self, plane: MetadataPlane | None = None) -> None:
        self.plane = plane or new_plane()
        self.log: list[Prepare] = []

    def submit(
        self, operation: int, body: bytes, user_id: int = ROOT_ID, client: bytes = bytes(16), session: int = 0
    ) -> bytes:
        """The reply body of a client's command; raises RequestRefused with the status."""
        plane = self.plane
        refusal = plane.refusal(operation, body, user_id)
        if refusal is not None:
            raise refusal
        secrets = passwords_for(plane.password_task(operation, body)) or TokenSecret(f"digest {plane.op}")
        operation, resolved = plane.resolve(operation, body, 0, secrets, user_id)
        op = plane.op + 1
        request = ReplicaRequest(
            client=bytes(16),
            session=1,
            request=1,
            operation=operation,
            user_id=user_id,
            digest=0,
            durability=1,
            body=resolved,
            origin=None,
            now=START,
        )
        stored, checksum_body = plane.prepare(request, op, START)
        prepare = entry(op, operation, stored, user_id, client, session)
        assert prepare.checksum_body == checksum_body
        self.log.append(prepare)
        return plane.apply(prepare)

    def run(
        self,
        operation: int,
        request: Request,
        user_id: int = ROOT_ID,
        client: bytes = bytes(16),
        session: int = 0,
    ) -> tuple[int, bytes]:
        """(code, payload): the status of a refusal before the log, or the result code, or 0 and the payload."""
        try:
            body = self.submit(operation, request.encode(), user_id, client, session)
        except RequestRefused as refusal:
            return refusal.code, b""
        code, payload = split_result(body)
        return code, bytes(payload)


def zero_counters(partition: Any) -> tuple[int, int, int, int]:
    """An empty partition as its owner publishes it."""
    return 0, 0, 0, 1
