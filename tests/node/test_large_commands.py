"""Metadata commands have a size: what is larger than any is refused, and enters neither the log nor the memory."""

import pytest

from tests.support.client import Client, Refused
from tests.support.commands import CHANGE_PASSWORD, CREATE_GROUP, CREATE_TOKEN, CREATE_USER, create_group
from tests.support.frames import identifier, text


def test_a_command_larger_than_any_is_refused(client: Client) -> None:
    """Trailing bytes are the protocol's way into the future, not a way to fill the log and the memory of a node."""
    client.create_stream("s")
    client.create_topic("s", "t")
    for operation in (CREATE_GROUP, CREATE_TOKEN, CREATE_USER, CHANGE_PASSWORD):
        with pytest.raises(Refused) as refused:
            client.change(operation, identifier("s") + identifier("t") + text("g") + bytes(1 << 20))
        assert refused.value.code == 3
    assert create_group(client, "s", "t", "g") == 0
