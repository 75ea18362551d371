"""Shard 0: the metadata group, its checkpoints, and the door for new connections.

Recovery: superblock, snapshot, log, in that order, each verified before it is believed (`store.recovery`). The
recovered state is handed to the other shards through a memfd; from then on they follow the stream of committed entries.
"""

import os
import socket
import time
from collections.abc import Iterable
from typing import Any

import trio

from shardsrv.bus import handover
from shardsrv.bus._frame import Frame
from shardsrv.bus.acceptor import Acceptor
from shardsrv.errors import DiskFault, OurFault
from shardsrv.plane.metadata.commands import RemoveMember
from shardsrv.shards import records
from shardsrv.shards.answers import NOBODY
from shardsrv.shards.checkpointer import MetadataCheckpointer
from shardsrv.shards.group import Group, lower_frontier
from shardsrv.shards.handed_state import link_note, send_state
from shardsrv.shards.link_tasks import LinkAcceptor
from shardsrv.shards.listeners import REPLICA
from shardsrv.shards.metadata_group import MetadataGroup, MetadataOrigin
from shardsrv.shards.metadata_recovery import recover_metadata
from shardsrv.shards.metadata_transfer import MetadataTransferDriver
from shardsrv.shards.node_facts import NO_LEADER
from shardsrv.shards.rejoin import came_back
from shardsrv.shards.shard import LINKS_KEY, Shard
from shardsrv.shards.spawn import ShardContext
from shardsrv.shards.tokens import TokenCleaner
from shardsrv.store.boot import BootRecord
from shardsrv.store.group_key import METADATA
from shardsrv.store.superblock import Superblock
from shardsrv.vsr.effects import PersistState
from shardsrv.vsr.events import PersistFailed, Request
from shardsrv.vsr.policy import PERSISTED
from shardsrv.vsr.quorum import primary_of
from shardsrv.vsr.status import NORMAL
from shardsrv.vsr.transfer_effects import Restored
from shardsrv.wire.constants import MAX_OP, METADATA_GROUP, ZERO_ID, Operation
from shardsrv.wire.error_codes import ErrorCode
from shardsrv.wire.forward_headers import ForwardRequestHeader

RECONCILED_OPS = 16
"""Metadata ops between two records of how far the partitions of this node are made,"""
RECONCILED_PAUSE = 1_000_000
"""or microseconds, whichever comes first."""


class MetadataShard(Shard):
    """See the module."""

    def __init__(self, context: ShardContext) -> None:
        super().__init__(context)
        self.group: MetadataGroup
        self.checkpointer: MetadataCheckpointer
        self._boot: BootRecord
        self._superblock: Superblock
        self._accepted = 0
        self._roster_told = b""
        self._reconciled = 0
        self._reconciled_due = 0
        self._forgotten = context.prepared.forgotten
        """Whether the node was begun anew and has not come back yet."""
        self._trusted_op: int | None = None
        """The entry up to which metadata was applied when it was trusted again; None before."""
        self._handing = trio.Lock()

    async def recover(self) -> dict[str, Any]:
        """See `Shard.recover`."""
        recovered = await recover_metadata(self)
        self._boot, self._superblock = recovered.boot, recovered.superblock
        self.group = MetadataGroup(self, recovered.replica, recovered.plane, recovered.log)
        self.group.applied_checksum = recovered.applied_checksum
        self._reconciled = recovered.reconciled_through
        checkpoint = self.config.metadata.checkpoint
        self.checkpointer = MetadataCheckpointer(
            self, recovered.checkpoint_op, log_bytes=checkpoint.bytes, interval=checkpoint.interval
        )
        if self.peering is not None:
            self.group.forwarding = self.peering.forwarding
            self.group.transfer = MetadataTransferDriver(
                self.disk, self.directory.metadata, recovered.log, self.cluster
            )
        self.pump.step(self.group.carry_out, recovered.effects)
        while self.peering is None and self.group.replica.status != NORMAL:
            await self.checkpointer.recorded()
        payload = self.checkpointer.encode()
        for peer in self.links.peers:
            await send_state(self.context.shared.handover(peer)[0], payload, self._known_through)
        state = recovered.plane.state
        return {
            "op": self.group.replica.commit_min,
            "replayed": recovered.recovery.replayed,
            "streams": len(state.streams),
        }

    async def serve(self) -> None:
        """Accept connections until the shard drains."""
        self.start(self.checkpointer.run)
        cleaner = self.config.personal_access_token.cleaner
        if cleaner.enabled:
            self.start(TokenCleaner(self.group.plane, self.group.submit, self.pump.step, cleaner.interval).run)
        if self.peering is None:
            self.pump.step(self._end_memberships)
        else:
            self.peering.serve(LINKS_KEY)
        for transport, listener in self.context.listeners.items():
            self.start(self._meet_nodes if transport == REPLICA else self._accept, listener)

    async def _meet_nodes(self, listener: socket.socket) -> None:
        """Accept links of other nodes."""
        assert self.peering is not None, "only a cluster has this listener"
        acceptor = LinkAcceptor(
            self.peering.identity,
            self.peering.births,
            grace=self.config.message_bus.handshake_grace,
            give=self._give_link,
            start=self.start,
            log=self.log,
        )
        await acceptor.run(listener)

    async def _give_link(self, peer: int, shard: int, descriptor: int) -> None:
        """Pass the socket of a link on to the shard that it is for. Raises OSError when it is dead."""
        assert self.peering is not None, "only a cluster has links"
        if shard == self.shard:
            self.peering.adopt(peer, os.dup(descriptor))
            return
        link = self.context.shared.handover(shard)[0]
        while not handover.send_descriptors(link, link_note(peer), (descriptor,)):
            await trio.lowlevel.wait_writable(link)

    def _end_memberships(self) -> None:
        """Every connection of the life before is gone, and with it the right to be a member of a consumer group."""
        now = time.time_ns() // 1000
        table = self.group.replica.table
        assert table is not None, "the metadata group has a client table"
        for client in sorted(self.group.plane.state.memberships):
            entry = table.get(client)
            session = entry.epoch if entry is not None else 0
            body = RemoveMember(client, session).encode()
            self.group.submit(
                Request(ZERO_ID, 0, 0, Operation.REMOVE_CONSUMER_GROUP_MEMBER, 0, 0, PERSISTED, body, NOBODY, now)
            )

    async def _accept(self, listener: socket.socket) -> None:
        """Hand each new socket to the next partition shard in turn."""
        acceptor = Acceptor()
        peers = self.links.peers
        while not self.draining:
            await trio.lowlevel.wait_readable(listener)
            for fd, address in acceptor.accept_all(listener):
                link = self.context.shared.handover(peers[self._accepted % len(peers)])[0]
                self._accepted += 1
                try:
                    while not handover.send_descriptors(link, address.encode(), (fd,)):
                        await trio.lowlevel.wait_writable(link)
                finally:
                    os.close(fd)

    def in_flight(self) -> int:
        """See `Shard.in_flight`."""
        passed_on = 0 if self.peering is None else self.peering.forwarding.in_flight
        return self.group.replica.in_flight + passed_on

    async def close(self, clean: bool) -> bool:
        """See `Shard.close`."""
        await self.syncer.close()
        if self.group.fault is not None:
            return False
        await trio.to_thread.run_sync(self._boot.mark_clean)
        return True

    # ------------------------------------------------------------------------------------------------ records

    def on_record(self, sender: int, kind: int, head: memoryview, body: memoryview) -> None:
        """See `Shard.on_record`."""
        if kind == records.METADATA_REQUEST:
            self._request(sender, records.unpack(records.MetadataRequest, head), bytes(body))
        elif kind == records.ATTACH_REQUEST:
            token, client, session, user_id = records.ATTACH_REQUEST_HEAD.unpack(head)
            allowed = self.group.attachable(client, session, user_id)
            self.links.send(sender, records.ATTACH_REPLY, records.ATTACH_REPLY_HEAD.pack(token, allowed))
        elif kind == records.APPLIED:
            self.group.applied(sender, records.TOKEN.unpack(head)[0])
        else:
            raise OurFault(f"record {kind} of shard {sender} to shard 0")

    def _request(self, sender: int, record: records.MetadataRequest, body: bytes) -> None:
        origin = MetadataOrigin(self.links, sender, record.token, record.operation, bool(record.answered))
        self.group.request(record, body, origin, time.time_ns() // 1000)

    def on_frame(self, frame: Frame) -> None:
        """See `Shard.on_frame`."""
        raise OurFault("shard 0 owns no client connection")

    def on_close(self, connection: int, reason: int) -> None:
        """See `Shard.on_close`."""
        raise OurFault("shard 0 owns no client connection")

    # ------------------------------------------------------------------------------------------------ other nodes

    def group_at(self, group: int, revision: int) -> Group | None:
        """See `PeeringHost`."""
        return self.group if group == METADATA_GROUP and revision == 0 else None

    def member_groups(self) -> Iterable[Group]:
        """See `PeeringHost`."""
        return (self.group,)

    def ticked(self, now: int) -> None:
        """See `PeeringHost`: tell the other shards who leads, and record what they have made true."""
        assert self.peering is not None, "time passes for clusters only"
        replica = self.group.replica
        leads = primary_of(replica.view, self.peering.nodes) if replica.status == NORMAL else NO_LEADER
        reached = sum(1 << peer for peer in self.peering.names if self.peering.links.is_up(peer))
        head = records.ROSTER_HEAD.pack(leads, reached)
        if head != self._roster_told:
            self._roster_told = head
            self.links.broadcast(records.ROSTER, head)
        applied = self.group.applied_everywhere
        if applied > self._reconciled and (applied >= self._reconciled + RECONCILED_OPS or now >= self._reconciled_due):
            self._reconciled, self._reconciled_due = applied, now + RECONCILED_PAUSE
            self.group.carry_out(replica.record(reconciled_through=applied))

    def forwarded(self, header: ForwardRequestHeader, body: Any, origin: Any) -> None:
        """See `forwarding.ForwardHost`."""
        if header.group != METADATA_GROUP:
            origin.refused(records.REFUSED_STATUS, ErrorCode.TRANSIENT_NOT_ACCEPTED)
            return
        record = records.MetadataRequest(
            header.token,
            header.client,
            header.session,
            header.request,
            header.digest,
            header.user_id,
            header.operation,
            header.expects,
            header.resolved,
        )
        self.group.request(record, bytes(body), origin, time.time_ns() // 1000)

    def restored(self, group: Group, effect: Restored) -> None:
        """See `Shard.restored`: the other shards are handed the state anew, in its place among the entries."""
        group.applied_checksum = effect.checksum
        self.checkpointer.restored(effect.op)
        plane = self.group.plane
        for op in [op for op in plane.gone if op <= effect.op]:
            del plane.gone[op]
        # The plane may be ahead by entries of the same step, whose records follow: receivers know them by their ops.
        self.links.broadcast(records.RESTORED, records.TOKEN.pack(plane.op))
        self.start(self._hand_anew, self.checkpointer.encode())

    async def _hand_anew(self, payload: bytes) -> None:
        async with self._handing:
            for peer in self.links.peers:
                await send_state(self.context.shared.handover(peer)[0], payload, self._known_through)

    @property
    def _known_through(self) -> int:
        """The metadata op up to which every partition had its directory on this node. A node that was begun anew had
        all that there are: none of them is new."""
        return MAX_OP if self._forgotten else self._reconciled

    def _consider_return(self, reconciled_through: int) -> None:
        """The superblock says durably how far partitions were made; a node that was begun anew may have come back."""
        if self._forgotten and self._trusted_op is not None and reconciled_through >= self._trusted_op:
            self._forgotten = False
            self.links.broadcast(records.CAME_BACK, records.TOKEN.pack(self._trusted_op))
            self.start(self._unmark)

    async def _unmark(self) -> None:
        try:
            await trio.to_thread.run_sync(came_back, self.disk, self.directory)
        except DiskFault as error:
            # A file that stays only makes the next start doubt more than it has to.
            self.log.warning("the node has come back and is still marked as begun anew", error=str(error))
        else:
            self.log.info("the node that was begun anew has come back", op=self._trusted_op)

    # ------------------------------------------------------------------------------------------------ host

    def metadata_changed(self) -> None:
        """See `MetadataHost`."""
        self.checkpointer.changed()

    def persist_state(self, group: Group, effect: PersistState) -> None:
        """See `group.Host`."""
        self.start(self._persist_state, group, effect)

    async def _persist_state(self, group: Group, effect: PersistState) -> None:
        try:
            await trio.to_thread.run_sync(self._superblock.write, effect.state.encode())
        except DiskFault as error:
            self.log.error("superblock write failed", error=str(error))
            self.pump.step(group.carry_out, group.replica.step(PersistFailed(effect.token, str(error))))
        else:
            self.pump.step(group.state_persisted, effect.token, effect.state)
            self.checkpointer.state_recorded(effect.state)
            self._consider_return(effect.state.reconciled_through)

    def frontier_moved(self, group: Group, checksum: int) -> None:
        """See `group.Host`."""
        try:
            self._boot.update(METADATA, group.log.synced_op, checksum, group.log.head_op)
        except DiskFault as error:
            # An older entry only makes the next start look at more of the log.
            self.log.warning("boot record not updated", error=str(error))

    def lower_frontier(self, group: Group, op: int) -> None:
        """See `group.Host`."""
        lower_frontier(self._boot, METADATA, group.log, op)

    def trusted(self, group: Group) -> None:
        """See `group.Host`."""
        self._trusted_op = group.replica.commit_min
        durable = group.replica.durable_state
        self._consider_return(0 if durable is None else durable.reconciled_through)
        try:
            self._boot.trust(METADATA)
        except DiskFault as error:
            # A mark that stays only makes the next start doubt more than it has to.
            self.log.warning("boot record not updated", error=str(error))

    def fenced(self, group: Group, error: Exception) -> None:
        """See `group.Host`: without its metadata log the node cannot go on."""
        self._boot.fence(METADATA)
        raise error
