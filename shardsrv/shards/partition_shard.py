"""A shard that owns partitions and client connections.

It keeps a copy of the metadata, made from the state that shard 0 handed over and moved on by the stream of committed entries; `reconciler`
turns its changes into partitions. Requests of its connections go through `router`, `reads` and `polls`.
"""

import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import attrs
import trio

from shardsrv._core import Prepare
from shardsrv.bus import handover
from shardsrv.bus._frame import Frame
from shardsrv.bus.acceptor import format_address
from shardsrv.errors import NotAccepted, OurFault
from shardsrv.plane.metadata import snapshot
from shardsrv.plane.metadata.plane import MetadataPlane
from shardsrv.plane.metadata.state import MetadataState, Partition
from shardsrv.shards import records
from shardsrv.shards.answers import Answers, RemoteOrigin
from shardsrv.shards.clients import Clients
from shardsrv.shards.group import Group
from shardsrv.shards.handed_state import receive_state
from shardsrv.shards.node_facts import NodeFacts
from shardsrv.shards.partition_group import PartitionGroup
from shardsrv.shards.passwords import Passwords
from shardsrv.shards.polls import Polls
from shardsrv.shards.reads import Reads
from shardsrv.shards.reconciler import Reconciler
from shardsrv.shards.router import Router
from shardsrv.shards.sessions import Session, Sessions
from shardsrv.shards.shard import HANDOVER_KEY, Shard
from shardsrv.shards.spawn import ShardContext
from shardsrv.shards.storage import PartitionStorage
from shardsrv.shards.targets import Target, Targets
from shardsrv.shards.topic_defaults import topic_defaults
from shardsrv.vsr.effects import PersistState
from shardsrv.vsr.events import Request
from shardsrv.wire.error_codes import ErrorCode
from shardsrv.wire.groups import pack_group

PARKED_SECONDS = 5.0
"""How long a request waits for a partition that is being made, before it is told that it was not accepted (58)."""


@attrs.define(slots=True, eq=False)
class Parked:
    """A request that waits for this shard to catch up."""

    deadline: float
    again: Callable[[], None]
    refuse: Callable[[], None]


class PartitionShard(Shard):
    """See the module."""

    def __init__(self, context: ShardContext) -> None:
        super().__init__(context)
        config = self.config
        self.poll_bytes_max = config.message_bus.max_message_size // 2
        self.validate_checksum = config.system.partition.validate_checksum
        self.plane = MetadataPlane(MetadataState(), topic_defaults(config))
        addresses = {name: format_address(listener.getsockname()) for name, listener in context.listeners.items()}
        self.groups: dict[int, PartitionGroup] = {}
        self.counters = context.shared.counters
        self.answers = Answers(self.reactor, self.cluster)
        self.passwords = Passwords(
            context.boot.affinity, memory_kib=config.users.argon2_memory // 1024, iterations=config.users.argon2_iterations,
            lanes=config.users.argon2_parallelism,
        )
        self.sessions = Sessions(
            self.answers, self.passwords, trust=self.reactor.set_authenticated, find_user=lambda name: self.plane.state.find_user(name), register=self._register, start=self.start,
            step=self.pump.step,
        )
        floor = 1 if config.partition.durability_floor == "persisted" else 0
        self.targets = Targets(self.plane, context.shard_count, floor)
        self.polls = Polls(
            self.shard, answers=self.answers, targets=self.targets, links=self.links, group_of=self.group_of, park=self.park, broken=self._broken
        )
        self.clients = Clients(self.shard, self.sessions, self.links)
        self.reads = Reads(
            answers=self.answers, plane=self.plane, polls=self.polls, clients=self.clients, facts=NodeFacts(str(context.data), addresses),
            counters=self.read_counters,
        )
        self.router = Router(
            self.shard, answers=self.answers, sessions=self.sessions, targets=self.targets, links=self.links, group_of=self.group_of,
            reads=self.reads, park=self.park,
        )
        self.storage = PartitionStorage(self)
        self.reconciler = Reconciler(self)
        self._parked: deque[Parked] = deque()
        self._handover = context.shared.handover(self.shard)[1]
        self.pump.after_write = self._after_write

    # ------------------------------------------------------------------------------------------------ life

    async def recover(self) -> dict[str, Any]:
        """See `Shard.recover`."""
        self.plane.restore(snapshot.decode(await receive_state(self._handover)))
        self._metadata_moved()
        owned = [owned for owned in self.plane.owned() if self.storage.owner(owned.identity) == self.shard]
        opened = await self.storage.recover(owned)
        self.start(self.storage.write_table)
        await self.reconciler.adopt(opened)
        await self.reconciler.reconcile_all()
        self.start(self.reconciler.run)
        self.start(self._watch_parked)
        return {"partitions": len(self.groups), "doubtful": len(self.storage.doubtful)}

    async def serve(self) -> None:
        """See `Shard.serve`: sockets are handed over from now on."""
        self.reactor.watch(self._handover.fileno(), HANDOVER_KEY, False)

    def in_flight(self) -> int:
        """See `Shard.in_flight`."""
        return (
            self.router.in_flight + self.polls.in_flight + len(self._parked) + self.sessions.verifying
            + sum(group.replica.in_flight + len(group.waiting) for group in self.groups.values())
        )

    async def close(self, clean: bool) -> bool:
        """See `Shard.close`."""
        await self.syncer.round()
        return await self.storage.close()

    # ------------------------------------------------------------------------------------------------ connections

    def on_frame(self, frame: Frame) -> None:
        """See `_net.Handler`."""
        self.router.on_frame(frame)

    def on_close(self, connection: int, reason: int) -> None:
        """See `_net.Handler`."""
        self.router.on_close(connection, reason)

    def on_wake(self, key: int) -> None:
        """See `_net.Handler`."""
        if key != HANDOVER_KEY:
            return
        while (packet := handover.receive_descriptors(self._handover)) is not None:
            note, (fd,) = packet
            try:
                connection = self.reactor.adopt(fd)
            except NotAccepted:
                os.close(fd)
                continue
            self.sessions.opened(connection, note.decode())

    def _register(self, frame: Frame, session: Session, user_id: int) -> None:
        self.router.register(frame, session, user_id)

    # ------------------------------------------------------------------------------------------------ records

    def on_record(self, sender: int, kind: int, head: memoryview, body: memoryview) -> None:
        """See `Shard.on_record`."""
        handle = _RECORDS.get(kind)
        if handle is None:
            raise OurFault(f"record {kind} of shard {sender} to shard {self.shard}")
        handle(self, sender, head, body)

    def _metadata_reply(self, sender: int, head: memoryview, body: memoryview) -> None:
        self.router.metadata_replied(head, body)

    def _committed_record(self, sender: int, head: memoryview, body: memoryview) -> None:
        """The next committed metadata entry: apply it, then let the reconciler make it true before it is told to be applied."""
        prepare = Prepare.load(bytes(head) + bytes(body))
        self.plane.apply(prepare)
        self._metadata_moved()
        self.reconciler.follow(prepare.op, self.plane.take_changes())

    def _metadata_moved(self) -> None:
        op = self.plane.op
        self.router.metadata_op = op
        self.answers.metadata_commit = op

    def _partition_request(self, sender: int, head: memoryview, body: memoryview) -> None:
        record = records.unpack(records.PartitionRequest, head)
        data: Any = self.links.view(sender, record.offset, record.length) if record.length else bytes(body)
        origin = RemoteOrigin(self.links, sender, record.token)
        request = Request(
            record.client, record.session, record.request, record.operation, record.user_id, record.digest, record.durability, data, origin,
            time.time_ns() // 1000,
        )
        self._with_group(
            record, lambda group: group.submit(request), lambda status: origin.refused(records.REFUSED_STATUS, status)
        )

    def _partition_reply(self, sender: int, head: memoryview, body: memoryview) -> None:
        self.router.partition_replied(head, body)

    def _poll_request(self, sender: int, head: memoryview, body: memoryview) -> None:
        record = records.unpack(records.PollRequest, head)

        def refuse(status: int) -> None:
            self.links.send(sender, records.POLL_REPLY, records.PollReply(record.token, status).pack())

        self._with_group(record, lambda group: self.polls.requested(group, sender, record), refuse)

    def _poll_reply(self, sender: int, head: memoryview, body: memoryview) -> None:
        self.polls.poll_replied(head, body)

    def _offset_request(self, sender: int, head: memoryview, body: memoryview) -> None:
        record = records.unpack(records.OffsetRequest, head)

        def refuse(status: int) -> None:
            self.links.send(sender, records.OFFSET_REPLY, records.OffsetReply(record.token, status, 0, 0, 0).pack())

        self._with_group(record, lambda group: self.polls.offset_requested(group, sender, record), refuse)

    def _offset_reply(self, sender: int, head: memoryview, body: memoryview) -> None:
        self.polls.offset_replied(head, body)

    def _clients_request(self, sender: int, head: memoryview, body: memoryview) -> None:
        self.clients.requested(sender, head)

    def _clients_reply(self, sender: int, head: memoryview, body: memoryview) -> None:
        self.clients.replied(head, body)

    def _unbind(self, sender: int, head: memoryview, body: memoryview) -> None:
        client, session = records.UNBIND_HEAD.unpack(head)
        self.sessions.unbind(client, session)

    def _with_group(self, record: Any, use: Callable[[PartitionGroup], None], refuse: Callable[[int], None]) -> None:
        """Run ``use`` with the group that a record of another shard names, when this shard has applied the op at which it was resolved."""
        group = self.groups.get(pack_group(record.stream, record.topic, record.partition))
        if group is not None and group.identity.created_revision == record.created_revision and not group.closed:
            use(group)
        elif self.plane.op < record.epoch or self.reconciler.busy:
            self.park(lambda: self._with_group(record, use, refuse), lambda: refuse(ErrorCode.TRANSIENT_NOT_ACCEPTED))
        else:
            refuse(ErrorCode.RESOURCE_NOT_FOUND)

    # ------------------------------------------------------------------------------------------------ groups

    def group_of(self, target: Target) -> PartitionGroup | None:
        """The group of a target of this shard; None while it is being made."""
        group = self.groups.get(target.group)
        if group is None or group.identity.created_revision != target.identity.created_revision or group.closed:
            return None
        return group

    def park(self, again: Callable[[], None], refuse: Callable[[], None]) -> None:
        """Keep a request until the reconciler has caught up."""
        self._parked.append(Parked(trio.current_time() + PARKED_SECONDS, again, refuse))

    def unpark(self) -> None:
        """The reconciler made progress: parked requests are tried again."""
        parked, self._parked = self._parked, deque()
        for request in parked:
            request.again()

    async def _watch_parked(self) -> None:
        """Refuse what was parked for too long."""
        while True:
            await trio.sleep(PARKED_SECONDS / 5)
            while self._parked and self._parked[0].deadline <= trio.current_time():
                self.pump.step(self._parked.popleft().refuse)

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

    def admits(self, group: Group) -> bool:
        """See `group.Host`: acknowledgements wait while more is unsynced than the bound allows."""
        return not self.syncer.overdue

    def clear_counters(self, slot: int) -> None:
        """A partition of this shard is gone."""
        self.counters.clear(slot)

    def partition_changed(self, group: PartitionGroup, operation: int) -> None:
        """See `PartitionHost`."""
        group.counters_stale = True

    def _after_write(self, group: Group) -> None:
        """A group's entries of this turn are written: background sync, counters, checkpoint."""
        assert isinstance(group, PartitionGroup)
        self.syncer.dirty(group, group.appended_bytes - group.written_bytes)
        group.written_bytes = group.appended_bytes
        if group.counters_stale:
            self.publish_counters(group)
        if group.appended_bytes - group.checkpointed_at >= self.config.partition.checkpoint_bytes:
            self.storage.checkpoint_soon(group)

    def publish_counters(self, group: PartitionGroup) -> None:
        """Write the group's slot of the counters page."""
        group.counters_stale = False
        plane = group.plane
        self.counters.write(
            group.counter_slot, group.identity.created_revision, plane.messages, plane.bytes, plane.committed_offset, plane.first_offset,
            max(1, group.log.segment_count),
        )

    def read_counters(self, partition: Partition) -> tuple[int, int, int, int]:
        """(messages, bytes, current offset, segments) of a partition of any shard; what its owner has not published yet counts as empty."""
        revision, messages, size, current, _, segments = self.counters.read(partition.slot)
        if revision != partition.created_revision:
            return 0, 0, 0, 1
        return messages, size, current, segments


_RECORDS: dict[int, Callable[[PartitionShard, int, memoryview, memoryview], None]] = {
    records.METADATA_REPLY: PartitionShard._metadata_reply,
    records.COMMITTED: PartitionShard._committed_record,
    records.PARTITION_REQUEST: PartitionShard._partition_request,
    records.PARTITION_REPLY: PartitionShard._partition_reply,
    records.POLL_REQUEST: PartitionShard._poll_request,
    records.POLL_REPLY: PartitionShard._poll_reply,
    records.OFFSET_REQUEST: PartitionShard._offset_request,
    records.OFFSET_REPLY: PartitionShard._offset_reply,
    records.CLIENTS_REQUEST: PartitionShard._clients_request,
    records.CLIENTS_REPLY: PartitionShard._clients_reply,
    records.UNBIND: PartitionShard._unbind,
}
