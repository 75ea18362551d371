"""A shard that owns partitions and client connections.

It keeps a copy of the metadata, made from the state that shard 0 handed over and moved on by the stream of committed
entries; `reconciler` turns its changes into partitions. Requests of its connections go through `router`, `reads` and
`polls`.
"""

import os
from collections.abc import Callable, Iterable
from time import time_ns
from typing import Any

from shardsrv._core import Prepare
from shardsrv.bus import handover
from shardsrv.bus._frame import Frame
from shardsrv.bus.acceptor import format_address
from shardsrv.errors import NotAccepted, OurFault
from shardsrv.plane.metadata import snapshot
from shardsrv.plane.metadata.changes import UserDeleted
from shardsrv.plane.metadata.plane import MetadataPlane
from shardsrv.plane.metadata.state import MetadataState, Partition
from shardsrv.shards import records
from shardsrv.shards.answers import Answers
from shardsrv.shards.archive import Archive
from shardsrv.shards.clients import Clients
from shardsrv.shards.consumer_groups import ConsumerGroups
from shardsrv.shards.disk_space import DiskSpace
from shardsrv.shards.encryption import Cipher
from shardsrv.shards.forwarding import request_of
from shardsrv.shards.group import Group
from shardsrv.shards.handed_state import is_state, link_of, read_state, receive_state
from shardsrv.shards.heartbeats import Heartbeats
from shardsrv.shards.metadata_copy import MetadataCopy
from shardsrv.shards.metadata_requests import MetadataRequests
from shardsrv.shards.node_facts import NodeFacts
from shardsrv.shards.offset_writes import OffsetWrites
from shardsrv.shards.parking import Parking
from shardsrv.shards.partition_group import PartitionGroup
from shardsrv.shards.partition_writes import PartitionWrites
from shardsrv.shards.passwords import Passwords
from shardsrv.shards.polls import Polls
from shardsrv.shards.pump import ConnectionHandler
from shardsrv.shards.reads import Reads
from shardsrv.shards.reconciler import Reconciler
from shardsrv.shards.remote_requests import REQUESTS, RemoteRequests
from shardsrv.shards.retention import Retention
from shardsrv.shards.router import Router
from shardsrv.shards.routing import Routing
from shardsrv.shards.segment_deletes import SegmentDeletes
from shardsrv.shards.session import Session
from shardsrv.shards.sessions import Sessions
from shardsrv.shards.shard import HANDOVER_KEY, LINKS_KEY, Shard
from shardsrv.shards.spawn import ShardContext
from shardsrv.shards.storage import PartitionStorage
from shardsrv.shards.target import Target
from shardsrv.shards.targets import Targets
from shardsrv.shards.topic_defaults import topic_defaults
from shardsrv.store.group_key import owner_shard
from shardsrv.vsr.effects import PersistState
from shardsrv.vsr.events import Request
from shardsrv.vsr.transfer_effects import Restored
from shardsrv.wire.constants import EvictionReason, Operation
from shardsrv.wire.error_codes import ErrorCode
from shardsrv.wire.forward_headers import ForwardRequestHeader


class PartitionShard(Shard):
    """See the module."""

    def __init__(self, context: ShardContext) -> None:
        super().__init__(context)
        config = self.config
        self.poll_bytes_max = config.message_bus.max_message_size // 2
        self.validate_checksum = config.system.partition.validate_checksum
        self.plane = MetadataPlane(MetadataState(), topic_defaults(config))
        self.copy = MetadataCopy(self.plane, applied=self._metadata_applied, replaced=self._metadata_replaced)
        addresses = {name: format_address(listener.getsockname()) for name, listener in context.listeners.items()}
        self.groups: dict[int, PartitionGroup] = {}
        self.counters = context.shared.counters
        self.checkpoint_bytes = config.partition.checkpoint_bytes
        self.shares_counters = context.shard_count > 2
        self.disk_space = DiskSpace(str(context.data), context.shard_count)
        self._by_slot: dict[int, PartitionGroup] = {}
        self.answers = Answers(self.reactor, self.cluster)
        self.passwords = Passwords.of(context.boot.affinity, config.users)
        encryption = config.system.encryption
        cipher = Cipher.of(encryption.key) if encryption.enabled else None
        start, step = self.start, self.pump.step
        self.sessions = Sessions(
            self.answers,
            self.passwords,
            trust=self.reactor.set_authenticated,
            find_user=lambda name: self.plane.state.find_user(name),
            find_token=lambda digest: self.plane.state.find_token(digest),
            register=self._register,
            start=start,
            step=step,
        )
        floor = 1 if config.partition.durability_floor == "persisted" else 0
        self.targets = Targets(self.plane, context.shard_count, floor)
        self.metadata = MetadataRequests(
            answers=self.answers,
            sessions=self.sessions,
            links=self.links,
            plane=self.plane,
            passwords=self.passwords,
            tokens_max=config.personal_access_token.max_tokens_per_user,
            start=start,
            step=step,
        )
        self.consumer_groups = ConsumerGroups(
            self,
            submit=self.metadata.internal,
            mine=lambda group: owner_shard(group, context.shard_count) == self.shard,
            step=step,
            timeout=config.consumer_group.rebalancing_timeout,
            durability=lambda group: self.targets.offset_durability(group.settings),
        )
        self.polls = Polls(
            self.shard,
            answers=self.answers,
            targets=self.targets,
            links=self.links,
            group_of=self.group_of,
            park=self.park,
            broken=self._broken,
            groups=self.consumer_groups,
            cipher=cipher,
            start=start,
            step=step,
        )
        facts = NodeFacts(str(context.data), addresses, context)
        self.clients = Clients(
            self.shard, self.sessions, self.links, lambda client: self.plane.state.memberships_of(client)
        )
        self.routing = Routing(
            answers=self.answers,
            targets=self.targets,
            links=self.links,
            groups=self.consumer_groups,
            facts=facts,
            group_of=self.group_of,
            shard=self.shard,
        )
        self.reads = Reads(
            answers=self.answers,
            plane=self.plane,
            polls=self.polls,
            clients=self.clients,
            facts=facts,
            counters=self.read_counters,
            routing=self.routing,
            archive=Archive(
                context.data, context.data / config.system.runtime.path, context.data / config.system.logging.path
            ),
            log=self.log,
            start=start,
            step=step,
        )
        self.writes = PartitionWrites(
            self.shard, answers=self.answers, links=self.links, group_of=self.group_of, park=self.park
        )
        self.retention = Retention(self, config.data_maintenance.messages.interval, step, start)
        self.router = Router(
            answers=self.answers,
            sessions=self.sessions,
            targets=self.targets,
            reads=self.reads,
            writes=self.writes,
            offsets=OffsetWrites(
                self.shard,
                answers=self.answers,
                targets=self.targets,
                groups=self.consumer_groups,
                write=self.writes.write,
            ),
            segments=SegmentDeletes(
                self.shard,
                answers=self.answers,
                targets=self.targets,
                writes=self.writes,
                group_of=self.group_of,
                delete=self.retention.delete,
                park=self.park,
            ),
            metadata=self.metadata,
            cipher=cipher,
            start=start,
            step=step,
        )
        self.heartbeats = Heartbeats(self, config.heartbeat.interval, evict=self._evict_silent, step=step)
        self.remote_requests = RemoteRequests(self)
        self._answered: dict[int, Callable[[memoryview, memoryview], None]] = {
            records.METADATA_REPLY: self.metadata.replied,
            records.ATTACH_REPLY: self.routing.attach_replied,
            records.COMMITTED: self.copy.committed,
            records.PARTITION_REPLY: self.writes.replied,
            records.POLL_REPLY: self.polls.poll_replied,
            records.OFFSET_REPLY: self.polls.offset_replied,
            records.CLIENTS_REPLY: self.clients.replied,
            records.UNBIND: self._unbind,
            records.ROSTER: facts.roster_told,
            records.RESTORED: self.copy.announced,
            records.CAME_BACK: self._came_back,
        }
        self.storage = PartitionStorage(self)
        self.reconciler = Reconciler(self)
        self.parking = Parking()
        self._handover = context.shared.handover(self.shard)[1]
        self.pump.handler = ConnectionHandler(self.router.on_frame, self.router.on_close, self.on_wake)

    # ------------------------------------------------------------------------------------------------ life

    async def recover(self) -> dict[str, Any]:
        """See `Shard.recover`."""
        payload, self.storage.reconciled_through = await receive_state(self._handover)
        self.plane.restore(snapshot.decode(payload))
        self._metadata_moved()
        owned = [owned for owned in self.plane.owned() if self.storage.owner(owned.identity) == self.shard]
        opened = await self.storage.recover(owned, self.plane.op)
        self.start(self.storage.write_table)
        await self.reconciler.adopt(opened)
        await self.reconciler.reconcile_all()
        self.start(self.reconciler.run)
        self.start(self.parking.watch, self.pump)
        self.consumer_groups.reconcile_all()
        self.start(self.consumer_groups.run)
        if self.config.data_maintenance.messages.cleaner_enabled:
            self.start(self.retention.run)
        if self.config.heartbeat.enabled:
            self.start(self.heartbeats.run)
        return {"partitions": len(self.groups), "doubtful": len(self.storage.doubtful)}

    async def serve(self) -> None:
        """See `Shard.serve`: sockets are handed over from now on."""
        self.reactor.watch(self._handover.fileno(), HANDOVER_KEY, False)
        if self.peering is not None:
            self.peering.serve(LINKS_KEY)

    def in_flight(self) -> int:
        """See `Shard.in_flight`."""
        return (
            self.router.in_flight
            + self.writes.in_flight
            + self.metadata.in_flight
            + self.routing.in_flight
            + self.retention.deleting
            + self.polls.in_flight
            + len(self.parking)
            + self.sessions.verifying
            + self.reads.archiving
            + (0 if self.peering is None else self.peering.forwarding.in_flight)
            + sum(group.replica.in_flight + len(group.waiting) for group in self.groups.values())
        )

    async def close(self, clean: bool) -> bool:
        """See `Shard.close`."""
        await self.syncer.close()
        return await self.storage.close()

    # ------------------------------------------------------------------------------------------------ connections

    def on_wake(self, key: int) -> None:
        """See `_net.Handler`."""
        if key != HANDOVER_KEY:
            super().on_wake(key)
            return
        while (packet := handover.receive_descriptors(self._handover)) is not None:
            note, (fd,) = packet
            if is_state(note):
                self.copy.came(read_state(fd))
                continue
            peer = link_of(note)
            try:
                if peer is None:
                    self.sessions.opened(self.reactor.adopt(fd), note.decode())
                elif self.peering is not None:
                    self.peering.links.adopt(peer, fd)
            except (NotAccepted, OSError):
                os.close(fd)

    def _register(self, frame: Frame, session: Session, user_id: int) -> None:
        self.metadata.register(frame, session, user_id)

    def _evict_silent(self, session: Session) -> None:
        """A member of a consumer group sent nothing for too long."""
        self.answers.evict_unasked(session.connection, session.client, EvictionReason.STALE_CLIENT)
        self._end_session(session)

    def _end_session(self, session: Session) -> None:
        """A session ends by the node's will: its connection stays, and may log in again."""
        self.metadata.ended(session.client, session.number, session.user_id)
        self.sessions.release(session)

    # ------------------------------------------------------------------------------------------------ records

    def on_record(self, sender: int, kind: int, head: memoryview, body: memoryview) -> None:
        """See `Shard.on_record`."""
        if kind in REQUESTS:
            self.remote_requests.take(sender, kind, head, body)
            return
        handle = self._answered.get(kind)
        if handle is None:
            raise OurFault(f"record {kind} of shard {sender} to shard {self.shard}")
        handle(head, body)

    def _unbind(self, head: memoryview, body: memoryview) -> None:
        client, session = records.UNBIND_HEAD.unpack(head)
        self.sessions.unbind(client, session)

    def _came_back(self, head: memoryview, body: memoryview) -> None:
        """What is created from now on is new on this node as well (`shards.rejoin`)."""
        self.storage.came_back(records.TOKEN.unpack(head)[0])

    def _metadata_replaced(self) -> None:
        """A whole state took the place of this shard's metadata."""
        self._metadata_moved()
        for session in self.sessions.all():
            if session.bound and session.user_id not in self.plane.state.users:
                self._end_session(session)
        self.reconciler.follow_state(self.plane.op)

    def _metadata_applied(self, prepare: Prepare) -> None:
        """An entry is applied: let the reconciler make it true before it is told to be applied."""
        if self.peering is not None and prepare.operation == Operation.REGISTER:
            # The client may be bound on another node now.
            self.sessions.unbind(prepare.client, prepare.op)
        self._metadata_moved()
        changes = self.consumer_groups.follow(self.plane.take_changes())
        for change in changes:
            if isinstance(change, UserDeleted):
                for session in self.sessions.of_user(change.user_id):
                    self._end_session(session)
        self.reconciler.follow(prepare.op, [change for change in changes if not isinstance(change, UserDeleted)])

    def _metadata_moved(self) -> None:
        op = self.plane.op
        self.router.metadata_op = op
        self.answers.metadata_commit = op

    # ------------------------------------------------------------------------------------------------ groups

    def group_at(self, group: int, revision: int) -> Group | None:
        """See `PeeringHost`."""
        found = self.groups.get(group)
        return found if found is not None and found.identity.created_revision == revision else None

    def member_groups(self) -> Iterable[Group]:
        """See `PeeringHost`."""
        return self.groups.values()

    def ticked(self, now: int) -> None:
        """See `PeeringHost`: purges that metadata wants go into the logs of the partitions that this node leads."""
        self.reconciler.ask_purges(now)

    def forwarded(self, header: ForwardRequestHeader, body: Any, origin: Any) -> None:
        """See `forwarding.ForwardHost`."""
        group = self.group_at(header.group, header.created_revision)
        if group is None:
            # The other node has made the partition before this one.
            self.park(
                lambda: self.forwarded(header, body, origin),
                lambda: origin.refused(records.REFUSED_STATUS, ErrorCode.TRANSIENT_NOT_ACCEPTED),
            )
        else:
            group.submit(request_of(header, body, origin, time_ns() // 1000))

    def pass_on(self, group: PartitionGroup, request: Request) -> bool:
        """See `PartitionHost`."""
        if self.peering is None:
            return False
        forwarding, replica = self.peering.forwarding, group.replica
        return forwarding.takes(
            replica,
            request.origin,
            group.refusal,
            lambda: group.submit(request),
            lambda peer: forwarding.pass_request(peer, replica.identity, request, group.refusal),
        )

    def restored(self, group: Group, effect: Restored) -> None:
        """See `Shard.restored`."""
        assert isinstance(group, PartitionGroup)
        group.restored(effect.checksum)
        self.publish_counters(group)

    def group_of(self, target: Target) -> PartitionGroup | None:
        """The group of a target of this shard; None while it is being made."""
        group = self.groups.get(target.group)
        if group is None or group.identity.created_revision != target.identity.created_revision or group.closed:
            return None
        return group

    def park(self, again: Callable[[], None], refuse: Callable[[], None]) -> None:
        """Keep a request until the reconciler has caught up."""
        self.parking.park(again, refuse)

    def unpark(self) -> None:
        """The reconciler made progress: parked requests are tried again."""
        self.consumer_groups.partitions_made()
        self.parking.unpark()

    def persist_state(self, group: Group, effect: PersistState) -> None:
        """See `group.Host`."""
        assert isinstance(group, PartitionGroup)
        self.storage.persist_state(group, effect)

    def fenced(self, group: Group, error: Exception) -> None:
        """See `group.Host`: one partition is out of service, the shard goes on."""
        assert isinstance(group, PartitionGroup)
        self.log.error("partition fenced", partition=str(group.identity), error=str(error))
        self.storage.mark_fenced(group)

    def _broken(self, group: PartitionGroup, error: Exception) -> None:
        """A poll met damage."""
        self.log.error("a poll met damage", partition=str(group.identity), error=str(error))

    def frontier_moved(self, group: Group, checksum: int) -> None:
        """See `group.Host`."""
        assert isinstance(group, PartitionGroup)
        self.storage.synced(group, checksum)

    def lower_frontier(self, group: Group, op: int) -> None:
        """See `group.Host`."""
        assert isinstance(group, PartitionGroup)
        self.storage.lower_frontier(group, op)

    def trusted(self, group: Group) -> None:
        """See `group.Host`."""
        assert isinstance(group, PartitionGroup)
        self.storage.trusted(group)

    def clear_counters(self, slot: int) -> None:
        """A partition of this shard is gone."""
        self._by_slot.pop(slot, None)
        self.counters.clear(slot)

    def partition_changed(self, group: PartitionGroup, operation: int) -> None:
        """See `PartitionHost`."""
        if operation == Operation.STORE_CONSUMER_OFFSET:
            self.consumer_groups.stored(group)
        elif operation == Operation.PURGE_PARTITION:
            self.reconciler.purge_applied(group)

    def partition_rolled(self, group: PartitionGroup) -> None:
        """See `PartitionHost`."""
        group.segments_seen = group.log.segment_count
        self.retention.rolled(group)

    def checkpoint_soon(self, group: PartitionGroup) -> None:
        """See `PartitionHost`."""
        self.storage.checkpoint_soon(group)

    def publish_counters(self, group: PartitionGroup) -> None:
        """Write the group's slot of the counters page, where other shards read it."""
        self._by_slot[group.counter_slot] = group
        messages, size, current, segments = counters_of(group)
        self.counters.write(
            group.counter_slot,
            group.identity.created_revision,
            messages,
            size,
            current,
            group.plane.first_offset,
            segments,
        )

    def read_counters(self, partition: Partition) -> tuple[int, int, int, int]:
        """(messages, bytes, current offset, segments) of a partition of any shard; what its owner has not published
        yet counts as empty."""
        group = self._by_slot.get(partition.slot)
        if group is not None and group.identity.created_revision == partition.created_revision:
            return counters_of(group)
        revision, messages, size, current, _, segments = self.counters.read(partition.slot)
        if revision != partition.created_revision:
            return 0, 0, 0, 1
        return messages, size, current, segments


def counters_of(group: PartitionGroup) -> tuple[int, int, int, int]:
    """(messages, bytes, current offset, segments) of a partition of this shard; it counts at least one segment
    (wire-operations.md 4)."""
    plane = group.plane
    return plane.messages, plane.bytes, plane.committed_offset, max(1, group.log.segment_count)
