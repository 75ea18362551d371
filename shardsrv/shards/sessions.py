"""Sessions: who is logged in on which connection of this shard, and the login itself.

A connection is *connected* (no session) or *bound* to (client id, session, user). Binding a client id that another
connection holds moves it: the older connection falls back to connected. Credentials are checked on the home shard, in a
thread; only the registration goes to shard 0. Source: wire-protocol.md 3.
"""

import time
from collections.abc import Callable
from typing import Any

from shardsrv import __version__
from shardsrv.bus._frame import Frame
from shardsrv.errors import DecodeError
from shardsrv.shards import tokens
from shardsrv.shards.answers import Answers
from shardsrv.shards.passwords import Passwords, plausible
from shardsrv.shards.session import Session
from shardsrv.wire.constants import PROTOCOL_VERSION, EvictionReason, UserStatus, version_accepted
from shardsrv.wire.frames import success_body
from shardsrv.wire.login import LoginAttempt, LoginReply, decode_login


class Sessions:
    """All connections of this shard."""

    def __init__(
        self,
        answers: Answers,
        passwords: Passwords,
        *,
        trust: Callable[[int, bool], None],
        find_user: Callable[[str], Any],
        find_token: Callable[[str], Any],
        register: Callable[[Frame, Session, int], None],
        start: Callable[..., None],
        step: Callable[..., None],
    ) -> None:
        self._answers = answers
        self._passwords = passwords
        self._trust = trust
        self._find_user = find_user
        self._find_token = find_token
        self._register = register
        self._start = start
        self._step = step
        self.by_connection: dict[int, Session] = {}
        """Every connection of this shard; for looking only."""
        self._by_client: dict[bytes, Session] = {}
        self.verifying = 0
        """Logins whose credentials are being checked."""

    def __len__(self) -> int:
        return len(self.by_connection)

    def all(self) -> list[Session]:
        """Every connection, in the order in which they came."""
        return list(self.by_connection.values())

    def opened(self, connection: int, address: str) -> Session:
        """A connection was adopted."""
        session = Session(connection, address)
        self.by_connection[connection] = session
        return session

    def of(self, connection: int) -> Session:
        """The session of a live connection."""
        return self.by_connection[connection]

    def closed(self, connection: int) -> Session | None:
        """A connection ended; returns its session if it was bound (it must be logged out)."""
        session = self.by_connection.pop(connection, None)
        if session is None or not session.bound:
            return None
        if self._by_client.get(session.client) is session:
            del self._by_client[session.client]
        return session

    def bind(self, session: Session, client: bytes, number: int, user_id: int) -> None:
        """The registration of ``session`` was committed as ``number``."""
        older = self._by_client.get(client)
        if older is not None and older is not session:
            self.release(older)
        if session.bound and session.client != client:
            self._by_client.pop(session.client, None)
        session.client, session.number, session.user_id = client, number, user_id
        if session.connection in self.by_connection:
            self._by_client[client] = session
            self._trust(session.connection, True)

    def unbind(self, client: bytes, number: int) -> None:
        """``client`` was registered on another shard as ``number``: an older binding here ends."""
        session = self._by_client.get(client)
        if session is not None and session.number < number:
            del self._by_client[client]
            self.release(session)

    def of_user(self, user_id: int) -> list[Session]:
        """The bound sessions of a user."""
        return [session for session in self.by_connection.values() if session.bound and session.user_id == user_id]

    def release(self, session: Session) -> None:
        """Back to connected: logged out, or bound elsewhere."""
        if self._by_client.get(session.client) is session:
            del self._by_client[session.client]
        session.number = 0
        session.attached = b""
        session.targets.clear()
        session.balance.clear()
        if session.connection in self.by_connection:
            self._trust(session.connection, False)

    # ------------------------------------------------------------------------------------------------ login

    def login(self, frame: Frame) -> None:
        """Operation 1: check the version and the credentials, then register. The order of checks is the protocol's
        (3.2)."""
        try:
            attempt = decode_login(frame.body)
        except DecodeError:
            self._answers.evict(frame, EvictionReason.MALFORMED_LOGIN)
            return
        if not version_accepted(attempt.prefix.protocol_version):
            self._answers.evict(frame, EvictionReason.INCOMPATIBLE_PROTOCOL)
        elif attempt.password is None:
            self._token(frame, attempt, EvictionReason.MALFORMED_LOGIN)
        else:
            self.verifying += 1
            self._start(self._verify, frame, attempt)

    def _token(self, frame: Frame, attempt: LoginAttempt, otherwise: EvictionReason) -> None:
        """The body read as a token login; ``otherwise`` when it is none."""
        if attempt.token is None:
            self._answers.evict(frame, otherwise)
            return
        found = self._find_token(tokens.digest(attempt.token.token))
        if found is None or tokens.expired(found[1].expiry_at, time.time_ns() // 1000):
            self._answers.evict(frame, EvictionReason.INVALID_TOKEN)
        elif found[0].status != UserStatus.ACTIVE:
            self._answers.evict(frame, EvictionReason.USER_INACTIVE)
        else:
            self._accepted(frame, self.by_connection[frame.connection], found[0].id)

    def _accepted(self, frame: Frame, session: Session, user_id: int) -> None:
        """The credentials are good."""
        if session.bound:
            self.welcome(frame, session, 0, 0)
        else:
            self._register(frame, session, user_id)

    async def _verify(self, frame: Frame, attempt: LoginAttempt) -> None:
        request = attempt.password
        assert request is not None
        user = self._find_user(request.username)
        usable = user is not None and plausible(request.username, request.password)
        accepted = await self._passwords.verify(user.password_hash if usable else None, request.password)
        self._step(self._verified, frame, attempt, accepted)

    def _verified(self, frame: Frame, attempt: LoginAttempt, accepted: bool) -> None:
        self.verifying -= 1
        session = self.by_connection.get(frame.connection)
        assert attempt.password is not None
        user = self._find_user(attempt.password.username)
        if session is None:
            return
        if not accepted or user is None or user.status != UserStatus.ACTIVE:
            self._token(frame, attempt, EvictionReason.INVALID_CREDENTIALS)
        else:
            self._accepted(frame, session, user.id)

    def welcome(self, frame: Frame, session: Session, op: int, timestamp: int) -> None:
        """The login reply (wire-protocol.md 3.3); a second login on a bound connection gets the same session again."""
        reply = LoginReply(session.user_id, session.number, PROTOCOL_VERSION, f"shardsrv {__version__}")
        body = success_body(reply.encode())
        self._answers.reply(
            frame,
            body,
            op=op or session.number,
            commit=op or session.number,
            timestamp=timestamp,
            client=session.client,
        )
