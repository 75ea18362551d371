"""A whole shard in one process: real router, replica, plane, log and reactor; the client is the other end of a socket
pair."""

import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from shardsrv import config
from shardsrv._core import Prepare, xxh3
from shardsrv.bus.shared import Shared
from shardsrv.plane.metadata.plane import MetadataPlane
from shardsrv.plane.metadata.state import MetadataState
from shardsrv.shards.control import ControlChannel
from shardsrv.shards.handed_state import send_state
from shardsrv.shards.partition_shard import PartitionShard
from shardsrv.shards.preparation import prepare
from shardsrv.shards.spawn import ShardContext, boot_facts
from shardsrv.shards.topic_defaults import topic_defaults
from shardsrv.wire.constants import HEADER_SIZE, METADATA_GROUP
from shardsrv.wire.frames import build_request
from shardsrv.wire.message import Request
from shardsrv.wire.streams import CreateStream
from shardsrv.wire.topics import CreateTopic

CLIENT = bytes(range(1, 17))


class InProcess:
    """A shard that owns partition 0 of stream 0, topic 0, with one bound connection; `turn` after `write` answers."""

    def __init__(self, shard: PartitionShard, client: socket.socket, connection: int) -> None:
        self.shard = shard
        self.client = client
        self.connection = connection
        self.number = 0

    def frame(self, request: Request) -> bytes:
        """The bytes of a request of the bound session."""
        self.number += 1
        return build_request(request, client=CLIENT, session=1, number=self.number)

    def exchange(self, frame: bytes) -> bytes:
        """Send a frame, run a turn, return the reply."""
        self.client.sendall(frame)
        self.shard.pump.turn(0)
        head = self.client.recv(HEADER_SIZE, socket.MSG_WAITALL)
        size = int.from_bytes(head[48:52], "little") - HEADER_SIZE
        return head + (self.client.recv(size, socket.MSG_WAITALL) if size else b"")


def metadata_payload(settings: config.Config) -> bytes:
    """A snapshot with stream 0, topic 0 and one partition, made by the metadata plane itself."""
    plane = MetadataPlane(MetadataState.initial("iggy", "not a hash"), topic_defaults(settings))
    for op, request in enumerate((CreateStream("bench"), CreateTopic(0, 1, "bench")), start=1):
        operation = {CreateStream: 128, CreateTopic: 132}[type(request)]
        operation, body = plane.resolve(operation, request.encode())
        entry = Prepare.build(
            cluster=bytes(16),
            view=0,
            replica=0,
            client=bytes(16),
            parent=0,
            request_checksum=0,
            op=op,
            commit=0,
            timestamp=op,
            request=0,
            operation=operation,
            group=METADATA_GROUP,
            user_id=0,
            created_revision=0,
            durability=1,
            body=body,
            checksum_body=xxh3(body),
        )
        assert plane.apply(entry)[:4] == bytes(4)
    return plane.encode_snapshot(0, 1, [])


@asynccontextmanager
async def in_process() -> AsyncIterator[InProcess]:
    """A recovered shard in a temporary directory."""
    with tempfile.TemporaryDirectory() as directory:
        settings, _ = config.load(None, {"IGGY_SYSTEM_PATH": directory}, {})
        shared = Shared.create(2, lane_bytes=1 << 18, arena_bytes=settings.limits.arena_bytes, counter_slots=64)
        ours, theirs = ControlChannel.pair()
        context = ShardContext(
            node=0,
            shard=1,
            shard_count=2,
            config=settings,
            data=Path(directory),
            shared=shared,
            listeners={},
            control=theirs,
            generation=1,
            boot=boot_facts(),
            prepared=prepare(Path(directory), 2),
        )
        shard = PartitionShard(context)
        async with trio.open_nursery() as nursery:
            shard.nursery = nursery
            await send_state(shared.handover(1)[0], metadata_payload(settings), 2)
            nursery.start_soon(shard.syncer.run)
            await shard.recover()
            client, server = socket.socketpair()
            connection = shard.reactor.adopt(server.detach())
            session = shard.sessions.opened(connection, "unix")
            shard.sessions.bind(session, CLIENT, 1, 0)
            yield InProcess(shard, client, connection)
            nursery.cancel_scope.cancel()
        ours.close()
