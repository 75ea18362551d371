"""Metadata requests of the connections of one shard: they go to shard 0, and their answers come back.

Commands with a secret are finished here before they leave: passwords are hashed in a thread, the text of a token is
made, and what goes to shard 0 is the resolved command, which holds a hash or a digest only. The text of a token waits
beside its request and is put behind the reply of the first success; a repeat is answered 51 by the client table,
because nobody has the text any more.
"""

from collections.abc import Callable

import attrs

from shardsrv.bus._frame import Frame
from shardsrv.errors import DecodeError, RequestRefused
from shardsrv.plane.metadata.admission import PasswordResult, PasswordTask, TokenSecret
from shardsrv.plane.metadata.plane import MetadataPlane
from shardsrv.shards import records, tokens
from shardsrv.shards.answers import Answers, FrameOrigin
from shardsrv.shards.links import Links
from shardsrv.shards.passwords import Passwords
from shardsrv.shards.session import Session
from shardsrv.shards.sessions import Sessions
from shardsrv.wire.constants import MAX_OP, ZERO_ID, Operation
from shardsrv.wire.error_codes import ErrorCode
from shardsrv.wire.replies import SUCCESS
from shardsrv.wire.users import CreatePersonalAccessToken, RawTokenReply

WITH_PASSWORD = (Operation.CREATE_USER, Operation.CHANGE_PASSWORD)

BODY_MAX = 1 << 20
"""Bytes of a command's body. An entry goes through the arena of shard 0 to every shard and stays in the log, so frames
of their own limit (64 MiB) would be too large; the largest of real commands are permissions of some KiB."""


@attrs.define(slots=True, eq=False)
class Waiting:
    """A request that shard 0 is working on. ``token`` is the text of a token that the request creates."""

    frame: Frame
    session: Session
    user_id: int = 0
    token: str = ""


class MetadataRequests:
    """See the module."""

    def __init__(
        self,
        *,
        answers: Answers,
        sessions: Sessions,
        links: Links,
        plane: MetadataPlane,
        passwords: Passwords,
        tokens_max: int,
        start: Callable[..., None],
        step: Callable[..., None],
    ) -> None:
        self._answers = answers
        self._sessions = sessions
        self._links = links
        self._plane = plane
        self._passwords = passwords
        self._tokens_max = tokens_max
        self._start = start
        self._step = step
        self._waiting: dict[int, Waiting] = {}
        self._token = 0
        self._hashing = 0

    @property
    def in_flight(self) -> int:
        """Requests that are not answered yet."""
        return len(self._waiting) + self._hashing

    def serve(self, frame: Frame, session: Session) -> None:
        """A command of a bound session. Status 3 for one that is larger than any command is."""
        operation = frame.operation
        if len(frame.body) > BODY_MAX:
            self._answers.status(frame, ErrorCode.INVALID_COMMAND)
        elif operation == Operation.CREATE_PERSONAL_ACCESS_TOKEN:
            self._create_token(frame, session)
        elif operation in WITH_PASSWORD:
            self._with_password(frame, session)
        else:
            self._submit(frame, Waiting(frame, session), operation, frame.body)

    def register(self, frame: Frame, session: Session, user_id: int) -> None:
        """Credentials were accepted: register the client id on the metadata group."""
        record = records.MetadataRequest(
            self._wait(Waiting(frame, session, user_id)),
            frame.client,
            0,
            0,
            frame.request_checksum,
            user_id,
            Operation.REGISTER,
            1,
            0,
        )
        self._links.send(0, records.METADATA_REQUEST, record.pack())

    def logout(self, frame: Frame, session: Session) -> None:
        """Operation 3 of a bound session."""
        record = records.MetadataRequest(
            self._wait(Waiting(frame, session)),
            session.client,
            session.number,
            frame.request,
            0,
            session.user_id,
            Operation.LOGOUT,
            1,
            0,
        )
        self._links.send(0, records.METADATA_REQUEST, record.pack())

    def ended(self, client: bytes, number: int, user_id: int) -> None:
        """A session ended without a request: its socket closed, its user is gone, or it fell silent."""
        record = records.MetadataRequest(0, client, number, MAX_OP, 0, user_id, Operation.LOGOUT, 0, 0)
        self._links.send(0, records.METADATA_REQUEST, record.pack())

    def internal(self, operation: int, body: bytes) -> None:
        """A command of the node itself, resolved; nobody waits for its answer."""
        record = records.MetadataRequest(0, ZERO_ID, 0, 0, 0, 0, operation, 0, 1)
        self._links.send(0, records.METADATA_REQUEST, record.pack(), body)

    # ------------------------------------------------------------------------------------------------ secrets

    def _create_token(self, frame: Frame, session: Session) -> None:
        try:
            name = CreatePersonalAccessToken.decode(frame.body).name
        except DecodeError as error:
            self._answers.status(frame, error.code)
            return
        user = self._plane.state.users.get(session.user_id)
        if user is not None and len(user.tokens) >= self._tokens_max and name not in user.tokens:
            self._answers.status(frame, ErrorCode.PERSONAL_ACCESS_TOKENS_LIMIT_REACHED)
            return
        text = tokens.mint()
        self._resolved(frame, Waiting(frame, session, token=text), TokenSecret(tokens.digest(text)))

    def _with_password(self, frame: Frame, session: Session) -> None:
        try:
            self._plane.check(frame.operation, frame.body, session.user_id)
            task = self._plane.password_task(frame.operation, frame.body)
        except RequestRefused as refusal:
            self._answers.status(frame, refusal.code)
            return
        assert task is not None, "the command has a password"
        self._hashing += 1
        self._start(self._hash, frame, session, task)

    async def _hash(self, frame: Frame, session: Session, task: PasswordTask) -> None:
        verified, new_hash = await self._passwords.change(task.stored_hash, task.current, task.new)
        result = PasswordResult(new_hash, task.stored_hash if verified and task.stored_hash is not None else "")
        self._step(self._hashed, frame, session, result)

    def _hashed(self, frame: Frame, session: Session, result: PasswordResult) -> None:
        self._hashing -= 1
        self._resolved(frame, Waiting(frame, session), result)

    def _resolved(self, frame: Frame, waiting: Waiting, secret: PasswordResult | TokenSecret) -> None:
        try:
            operation, body = self._plane.resolve(frame.operation, frame.body, 0, secret, waiting.session.user_id)
        except RequestRefused as refusal:
            self._answers.status(frame, refusal.code)
            return
        self._submit(frame, waiting, operation, body, 1)

    # ------------------------------------------------------------------------------------------------ shard 0

    def _submit(
        self, frame: Frame, waiting: Waiting, operation: int, body: bytes | memoryview, resolved: int = 0
    ) -> None:
        session = waiting.session
        record = records.MetadataRequest(
            self._wait(waiting),
            session.client,
            session.number,
            frame.request,
            frame.request_checksum,
            session.user_id,
            operation,
            1,
            resolved,
        )
        try:
            self._links.send(0, records.METADATA_REQUEST, record.pack(), body)
        except MemoryError:
            del self._waiting[record.token]
            self._answers.status(frame, ErrorCode.TRANSIENT_NOT_ACCEPTED)

    def _wait(self, waiting: Waiting) -> int:
        self._token += 1
        self._waiting[self._token] = waiting
        return self._token

    def replied(self, head: memoryview, body: memoryview) -> None:
        """Shard 0 answered."""
        reply = records.unpack(records.MetadataReply, head)
        waiting = self._waiting.pop(reply.token)
        frame, session = waiting.frame, waiting.session
        if reply.outcome != records.DONE:
            logout = frame.operation == Operation.LOGOUT and reply.outcome == records.REFUSED_RESULT
            outcome = records.REFUSED_STATUS if logout else reply.outcome
            FrameOrigin(self._answers, frame, session.client).refused(outcome, reply.status)
        elif reply.operation == Operation.REGISTER:
            self._sessions.bind(session, frame.client, reply.op, waiting.user_id)
            self._sessions.welcome(frame, session, reply.op, reply.timestamp)
        elif reply.operation == Operation.LOGOUT:
            self._answers.reply(
                frame, b"", op=reply.op, commit=reply.op, timestamp=reply.timestamp, client=session.client
            )
            self._sessions.release(session)
        else:
            payload = bytes(body)
            if waiting.token and payload == SUCCESS:
                payload += RawTokenReply(waiting.token).encode()
            self._answers.reply(
                frame,
                payload,
                op=reply.op,
                commit=reply.op,
                timestamp=reply.timestamp,
                operation=reply.operation,
                client=session.client,
            )
