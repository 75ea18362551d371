"""C007: after segments are deleted the end of the partition, and with it the lag, stay as they were."""

import struct

from tests.support.client import Client
from tests.support.commands import delete_segments, stream_facts, topic_facts, total_messages
from tests.support.frames import FIRST, GET_OFFSET
from tests.support.node import Node


def test_deleted_segments_do_not_move_the_end(node: Node, client: Client) -> None:
    client.create_stream("s")
    client.create_topic("s", "t", options={"segment_size": str(1024 * 1024)})
    for number in range(25):
        client.send("s", "t", 0, [b"%02d" % number + bytes(300 * 1024)])
    client.store_offset("s", "t", 0, 10)
    before = topic_facts(client, "s", "t")
    assert before is not None and before.partitions[0].segments > 3

    delete_segments(client, "s", "t", 0, 2)
    for connection in (client, None):
        if connection is None:
            node.restart()
            connection = node.client()
        facts = topic_facts(connection, "s", "t")
        assert facts is not None
        partition = facts.partitions[0]
        reply = connection.read(GET_OFFSET, connection._offset_target("s", "t", 0, 1))
        assert struct.unpack("<IQQ", reply) == (0, 24, 10)
        first = connection.poll("s", "t", 0, strategy=FIRST, count=1)[0]
        assert first.offset > 0 and first.payload[:2] == b"%02d" % first.offset
        messages = connection.poll_all("s", "t", 0, 10)[0:0] or connection.poll("s", "t", 0, value=0, count=100)
        assert [message.offset for message in messages] == list(range(first.offset, 25))
        assert partition.messages == len(messages) and partition.current_offset == 24
        assert partition.segments == before.partitions[0].segments - 2
        assert stream_facts(connection, "s") == (partition.size, partition.messages)
        assert total_messages(connection) == (partition.size, partition.messages)
    connection.close()
