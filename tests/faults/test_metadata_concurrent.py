"""Commands of several clients at once are committed several in one step: every shard must apply all of them."""

from __future__ import annotations

import threading
from pathlib import Path

from shardsrv.wire.codes import CommandCode
from shardsrv.wire.streams import StreamsReply
from tests.support.client import Client
from tests.support.node import Node

CLIENTS = 8
STREAMS = 6


def create(client: Client, number: int, failures: list[BaseException]) -> None:
    try:
        for step in range(STREAMS):
            client.create_stream(f"{number}-{step}")
            client.create_topic(f"{number}-{step}", "t", 1)
    except BaseException as error:
        failures.append(error)


def test_every_shard_sees_what_clients_create_at_once(tmp_path: Path) -> None:
    with Node(tmp_path, arguments=["--shards", "3"]) as node:
        clients = [node.client() for _ in range(CLIENTS)]
        failures: list[BaseException] = []
        threads = [
            threading.Thread(target=create, args=(client, number, failures)) for number, client in enumerate(clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        wanted = sorted(f"{number}-{step}" for number in range(CLIENTS) for step in range(STREAMS))
        for client in clients:
            listed = StreamsReply.decode(client.read(CommandCode.GET_STREAMS)).streams
            assert sorted(stream.name for stream in listed) == wanted
            assert [stream.topics_count for stream in listed] == [1] * len(wanted)
            client.close()
        assert node.stop() == 0
