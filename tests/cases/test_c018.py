"""C018: what an unauthenticated connection, and a user without rights, may learn: nothing."""

import io
import zipfile

import pytest

from shardsrv.wire.codes import COMMANDS, CommandCode
from shardsrv.wire.constants import Operation
from tests.support.client import Client, Refused
from tests.support.commands import create_user, permissions
from tests.support.frames import COMMAND_EVICTION, GET_CLUSTER, NON_REPLICATED
from tests.support.node import Node

GET_SNAPSHOT = 11
ALL_DEFLATED = bytes([2, 1, 100])


def test_the_archive_needs_the_right(node: Node, client: Client) -> None:
    create_user(client, "plain", "secret")
    create_user(client, "reader", "secret", permissions(("read_servers",)))
    with Client(node.host, node.port) as plain:
        plain.login("plain", "secret")
        with pytest.raises(Refused) as refused:
            plain.read(GET_SNAPSHOT, ALL_DEFLATED)
        assert refused.value.code == 41
    with Client(node.host, node.port) as reader:
        reader.login("reader", "secret")
        archive = zipfile.ZipFile(io.BytesIO(reader.read(GET_SNAPSHOT, ALL_DEFLATED)))
        assert archive.testzip() is None
        assert {"server_logs.txt", "server_config.toml", "process_list.txt"} <= set(archive.namelist())


def test_nothing_but_ping_and_login_without_a_session(node: Node) -> None:
    with Client(node.host, node.port) as client:
        for info in COMMANDS.values():
            if info.operation == Operation.NON_REPLICATED:
                client.session = 0
                frame = client.exchange(NON_REPLICATED, request=1, code=info.code)
                if info.code == CommandCode.PING:
                    assert frame.status == 0
                elif info.needs_session:
                    assert frame.status == 40, info
                else:
                    assert frame.command == COMMAND_EVICTION and frame.eviction_reason == 15, info
            elif info.operation not in (Operation.REGISTER, Operation.LOGOUT):
                client.session = 1
                frame = client.exchange(info.operation, request=1)
                assert frame.command == COMMAND_EVICTION and frame.eviction_reason == 1, info
        client.session = 0
        assert client.exchange(NON_REPLICATED, request=1, code=GET_CLUSTER).status == 40
        client.login()
        client.read(GET_CLUSTER)
