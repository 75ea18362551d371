"""C041: a node starts with holes in its ids, and with users whose permissions are there and empty."""

from tests.support.client import Client
from tests.support.commands import (
    GET_USER,
    create_group,
    create_user,
    delete_group,
    delete_partitions,
    delete_topic,
    delete_user,
    group_members,
    permissions,
)
from tests.support.frames import GET_STREAM, identifier
from tests.support.node import Node


def picture(client: Client) -> list[bytes]:
    users = [client.read(GET_USER, identifier(user)) for user in range(5)]
    return [client.read(GET_STREAM, identifier(stream)) for stream in range(7)] + users


def test_holes(node: Node) -> None:
    with node.client() as client:
        for stream in range(5):
            assert client.create_stream(f"s{stream}") == stream
            for topic in range(3):
                assert client.create_topic(f"s{stream}", f"t{topic}", 3) == topic
                client.send(stream, topic, 1, [b"%d-%d" % (stream, topic)])
        for group in range(3):
            assert create_group(client, 0, 0, f"g{group}") == group
        for stream in (1, 3):
            client.delete_stream(stream)
        delete_topic(client, 0, 1)
        delete_partitions(client, 0, 0, 1)
        delete_group(client, 0, 0, 1)
        create_user(client, "nothing", "secret")
        create_user(client, "empty", "secret", permissions())
        create_user(client, "maps", "secret", permissions(of_stream={0: ()}, of_topic={(0, 0): ()}))
        delete_user(client, "empty")
        before = picture(client)
    for _ in range(2):
        node.restart()
        with node.client() as client:
            assert picture(client) == before
            assert group_members(client, 0, 0, "g1") is None and group_members(client, 0, 0, "g2") == {}
            for stream, topic in ((0, 0), (0, 2), (2, 1), (4, 2)):
                assert [message.payload for message in client.poll(stream, topic, 1)] == [b"%d-%d" % (stream, topic)]
    with node.client() as client:
        assert client.create_stream("new") == 1
        assert client.create_topic(0, "new", 1) == 1
        assert create_group(client, 0, 0, "new") == 3, "ids of groups are not used again"
        assert create_user(client, "new", "secret") == 2
    node.restart()
    with node.client() as client:
        assert client.poll(0, 1, 0) == []
