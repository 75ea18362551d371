"""C037: small answers that suites of clients rely on."""

import struct

import pytest

from tests.support.client import Client, Refused
from tests.support.commands import topic_facts, update_topic
from tests.support.frames import CREATE_TOPIC, identifier, text


def test_missing_partitions_and_bounds(client: Client) -> None:
    client.create_stream("s")
    client.create_topic("s", "t")
    with pytest.raises(Refused) as refused:
        client.poll("s", "t", 7)
    assert refused.value.code == 3007
    assert client.poll("s", "t", 0) == [], "a new partition answers at once"
    for count, code in ((1001, 2015), (2**32 - 1, 2015)):
        with pytest.raises(Refused) as refused:
            client.change(CREATE_TOPIC, identifier("s") + struct.pack("<I", count) + text("wide"))
        assert (refused.value.code, refused.value.channel) == (code, "status")
    client.create_topic("s", "none", 0)
    none = topic_facts(client, "s", "none")
    assert none is not None and none.partitions == ()
    with pytest.raises(Refused) as refused:
        client.send("s", "none", 0, [b"x"])
    assert refused.value.code == 20
    with pytest.raises(Refused) as refused:
        client.create_topic("s", "tiny", options={"max_topic_size": "1000"})
    assert (refused.value.code, refused.value.channel) == (1019, "status")
    update_topic(client, "s", "t", "t", {"message_expiry": "server_default", "max_topic_size": "server_default"})
    facts = topic_facts(client, "s", "t")
    assert facts is not None
    assert client.read(301, identifier("missing")) == bytes(4)
