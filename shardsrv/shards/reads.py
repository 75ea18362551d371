"""Reads: operation 2, by command code. Answered from this shard's copy of the metadata, or handed to `polls`.

Order (wire-protocol.md 3.8): ping needs no session; the legacy logins are evicted; anything else without a session is
status 40; a code that is not known is status 3, a known one that this version does not serve is status 5.
"""

from collections.abc import Callable

import structlog
import trio

from shardsrv.bus._frame import Frame
from shardsrv.errors import DecodeError, RequestRefused
from shardsrv.plane.metadata import queries
from shardsrv.plane.metadata.permissions import Right, require
from shardsrv.plane.metadata.plane import MetadataPlane
from shardsrv.plane.metadata.records import Counters
from shardsrv.shards.answers import Answers
from shardsrv.shards.archive import Archive
from shardsrv.shards.clients import Clients
from shardsrv.shards.node_facts import NodeFacts
from shardsrv.shards.polls import Polls
from shardsrv.shards.routing import Routing
from shardsrv.shards.session import Session
from shardsrv.wire.codes import COMMANDS, CommandCode
from shardsrv.wire.constants import EvictionReason
from shardsrv.wire.error_codes import ErrorCode
from shardsrv.wire.system import GetClient, GetSnapshot

LEGACY_LOGINS = (CommandCode.LOGIN_USER, CommandCode.LOGIN_WITH_PERSONAL_ACCESS_TOKEN)

Serve = Callable[[Frame, Session], None]


class Reads:
    """Operation 2 on one shard."""

    def __init__(
        self,
        *,
        answers: Answers,
        plane: MetadataPlane,
        polls: Polls,
        clients: Clients,
        facts: NodeFacts,
        counters: Counters,
        routing: Routing,
        archive: Archive,
        log: structlog.stdlib.BoundLogger,
        start: Callable[..., None],
        step: Callable[..., None],
    ) -> None:
        self._answers = answers
        self._plane = plane
        self._polls = polls
        self._clients = clients
        self._facts = facts
        self._counters = counters
        self._archive = archive
        self._log = log
        self._start = start
        self._step = step
        self.archiving = 0
        """Archives that are being made."""
        self._served: dict[int, Serve] = {
            CommandCode.GET_STATS: self._stats,
            CommandCode.GET_CLUSTER_METADATA: self._cluster_metadata,
            CommandCode.DESCRIBE_OPTIONS: self._query,
            CommandCode.GET_ME: self._me,
            CommandCode.GET_CLIENT: self._client,
            CommandCode.GET_CLIENTS: self._all_clients,
            CommandCode.POLL_MESSAGES: polls.poll,
            CommandCode.GET_CONSUMER_OFFSET: polls.get_offset,
            CommandCode.GET_STREAM: self._query,
            CommandCode.GET_STREAMS: self._query,
            CommandCode.GET_TOPIC: self._query,
            CommandCode.GET_TOPICS: self._query,
            CommandCode.GET_USER: self._query,
            CommandCode.GET_USERS: self._query,
            CommandCode.GET_PERSONAL_ACCESS_TOKENS: self._query,
            CommandCode.GET_CONSUMER_GROUP: self._query,
            CommandCode.GET_CONSUMER_GROUPS: self._query,
            CommandCode.SYNC_CONSUMER_GROUP: self._query,
            CommandCode.GET_SNAPSHOT: self._snapshot,
            CommandCode.ATTACH_CONSUMER_SESSION: routing.attach,
            CommandCode.GET_POLL_ROUTING: routing.poll_routing,
            CommandCode.POLL_MESSAGES_ON_PRIMARY: polls.poll,
            CommandCode.GET_CONSUMER_OFFSET_ROUTING: routing.offset_routing,
        }

    def serve(self, frame: Frame, session: Session) -> None:
        """Answer, or hand to who will."""
        code = frame.code
        if code == CommandCode.PING:
            self._answers.read(frame, b"")
        elif code in LEGACY_LOGINS:
            self._answers.evict(frame, EvictionReason.MALFORMED_LOGIN)
        elif not session.bound:
            self._answers.status(frame, ErrorCode.UNAUTHENTICATED)
        elif code in self._served:
            self._guarded(self._served[code], frame, session)
        elif code in COMMANDS:
            self._answers.status(frame, ErrorCode.FEATURE_UNAVAILABLE)
        else:
            self._answers.status(frame, ErrorCode.INVALID_COMMAND)

    def _guarded(self, serve: Serve, frame: Frame, session: Session) -> None:
        try:
            serve(frame, session)
        except DecodeError:
            self._answers.status(frame, ErrorCode.INVALID_COMMAND)
        except RequestRefused as refusal:
            self._answers.status(frame, refusal.code)

    def _require(self, session: Session, right: Right) -> None:
        require(self._plane.state, session.user_id, right)

    def _query(self, frame: Frame, session: Session) -> None:
        self._answers.read(
            frame, self._plane.query(frame.code, frame.body, session.user_id, self._counters, session.member)
        )

    def _cluster_metadata(self, frame: Frame, session: Session) -> None:
        self._answers.read(frame, self._facts.cluster_metadata())

    def _stats(self, frame: Frame, session: Session) -> None:
        self._require(session, Right.SERVER_INFO)
        totals = queries.totals(self._plane.state, self._counters)
        self._clients.count(lambda count: self._answers.read(frame, self._facts.stats(totals, count)))

    def _snapshot(self, frame: Frame, session: Session) -> None:
        request = GetSnapshot.decode(frame.body)
        self._require(session, Right.SERVER_INFO)
        self.archiving += 1
        self._start(self._make_archive, frame, request)

    async def _make_archive(self, frame: Frame, request: GetSnapshot) -> None:
        try:
            archive = await trio.to_thread.run_sync(self._archive.make, request.compression, request.kinds)
        except OSError:
            self._log.exception("the archive could not be made")
            self._step(self._answers.status, frame, ErrorCode.SNAPSHOT_FILE_COMPLETION_FAILED)
        else:
            self._step(self._answers.read, frame, archive)
        finally:
            self.archiving -= 1

    def _me(self, frame: Frame, session: Session) -> None:
        self._answers.read(frame, self._clients.details(session))

    def _client(self, frame: Frame, session: Session) -> None:
        self._require(session, Right.SERVER_INFO)
        try:
            request = GetClient.decode(frame.body)
        except DecodeError:
            # The protocol answers "absent" to a body that names no client (wire-operations.md 1).
            self._answers.read(frame, b"")
            return
        self._clients.find(request.client_id, lambda record: self._answers.read(frame, record))

    def _all_clients(self, frame: Frame, session: Session) -> None:
        self._require(session, Right.SERVER_INFO)
        self._clients.all(lambda found: self._answers.read(frame, found))
