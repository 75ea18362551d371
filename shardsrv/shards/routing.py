"""Routing to the primary: codes 14, 103, 104 and 123 (wire-0.11.md 1.2, 1.3).

Clients of the released generation send them when the roster has more than one node; a node alone answers them all the
same: it is the primary of everything. In a cluster the answer names the node that leads the partition, as far as this
shard knows: for partitions of other shards the one that leads the metadata, which mostly is the same. A connection that
is *attached* polls and stores offsets as the group member whose session it names; it neither makes a membership nor
prolongs one. Whether it may is asked of shard 0, which has the client table.
"""

from collections.abc import Callable

from shardsrv.bus._frame import Frame
from shardsrv.errors import RequestRefused
from shardsrv.plane.metadata.groups import may_commit, may_poll
from shardsrv.plane.metadata.permissions import Right
from shardsrv.shards import records
from shardsrv.shards.answers import Answers
from shardsrv.shards.consumer_groups import ConsumerGroups
from shardsrv.shards.links import Links
from shardsrv.shards.node_facts import NodeFacts
from shardsrv.shards.partition_group import PartitionGroup
from shardsrv.shards.session import Session
from shardsrv.shards.target import Target
from shardsrv.shards.targets import Targets
from shardsrv.vsr.quorum import primary_of
from shardsrv.vsr.status import NORMAL
from shardsrv.wire.constants import ConsumerKind
from shardsrv.wire.error_codes import ErrorCode
from shardsrv.wire.messages import GetPollRouting
from shardsrv.wire.offsets import GetConsumerOffsetRouting
from shardsrv.wire.system import AttachConsumerSession, AttachRecord, RoutingReply


class Routing:
    """See the module. Its requests raise `DecodeError` and `RequestRefused`, which `Reads` answers."""

    def __init__(
        self,
        *,
        answers: Answers,
        targets: Targets,
        links: Links,
        groups: ConsumerGroups,
        facts: NodeFacts,
        group_of: Callable[[Target], PartitionGroup | None],
        shard: int,
    ) -> None:
        self._answers = answers
        self._targets = targets
        self._links = links
        self._groups = groups
        self._facts = facts
        self._group_of = group_of
        self._shard = shard
        self._waiting: dict[int, tuple[Frame, Session, bytes]] = {}
        self._token = 0

    @property
    def in_flight(self) -> int:
        """Attachments that shard 0 has not decided yet."""
        return len(self._waiting)

    def attach(self, frame: Frame, session: Session) -> None:
        """Code 14. Status 58 while this shard is behind the watermark, 40 for a session that is not the user's
        present one."""
        request = AttachConsumerSession.decode(frame.body)
        if request.metadata_watermark > self._answers.metadata_commit:
            raise RequestRefused(ErrorCode.TRANSIENT_NOT_ACCEPTED, watermark=request.metadata_watermark)
        self._token += 1
        self._waiting[self._token] = (frame, session, request.client_id)
        head = records.ATTACH_REQUEST_HEAD.pack(self._token, request.client_id, request.session, session.user_id)
        self._links.send(0, records.ATTACH_REQUEST, head)

    def attach_replied(self, head: memoryview, body: memoryview) -> None:
        """Shard 0 decided."""
        token, allowed = records.ATTACH_REPLY_HEAD.unpack(head)
        frame, session, client = self._waiting.pop(token)
        if allowed and session.bound:
            session.attached = client
            self._answers.read(frame, b"")
        else:
            self._answers.status(frame, ErrorCode.UNAUTHENTICATED)

    def poll_routing(self, frame: Frame, session: Session) -> None:
        """Code 103: the fence of a poll."""
        self._route(frame, session, GetPollRouting.decode(frame.body), may_poll)

    def offset_routing(self, frame: Frame, session: Session) -> None:
        """Code 123: the fence of an offset write."""
        self._route(frame, session, GetConsumerOffsetRouting.decode(frame.body), may_commit)

    def _route(
        self,
        frame: Frame,
        session: Session,
        request: GetPollRouting | GetConsumerOffsetRouting,
        owns: Callable[..., bool],
    ) -> None:
        key = self._targets.offset_key(request.stream, request.topic, request.consumer)
        if request.consumer.kind == ConsumerKind.GROUP and request.partition is None and key is not None:
            partition = self._targets.only_partition(request.stream, request.topic, key, session.member)
        else:
            partition = request.partition
        target = self._targets.partition(session, request.stream, request.topic, partition or 0, Right.POLL)
        if request.consumer.kind == ConsumerKind.GROUP:
            group = None if key is None else self._groups.find(target.identity, key)
            if group is None:
                raise RequestRefused(ErrorCode.CONSUMER_GROUP_ID_NOT_FOUND)
            if not owns(group, session.member, target.identity.partition):
                raise RequestRefused(ErrorCode.CONSUMER_GROUP_PARTITION_NOT_OWNED, partition=target.identity.partition)
        primary = self._primary(target)
        if primary is None:
            raise RequestRefused(ErrorCode.TRANSIENT_NOT_ACCEPTED)
        record = AttachRecord(session.client, session.number, self._answers.metadata_commit)
        self._answers.read(frame, RoutingReply(record, self._facts.nodes[primary]).encode())

    def _primary(self, target: Target) -> int | None:
        """The node that leads a partition; None while nobody is known to."""
        if target.owner != self._shard:
            return self._facts.leader
        group = self._group_of(target)
        if group is None or group.replica.status != NORMAL:
            return None
        return primary_of(group.replica.view, len(self._facts.nodes))
