"""C008: an offset beyond the end, or on an empty partition, is refused with 4100 and changes nothing."""

from collections.abc import Callable

import pytest

from tests.support.client import Client, Refused
from tests.support.commands import create_group, group_offset, join_group, store_group_offset
from tests.support.frames import NEXT

TOO_HIGH = (10, 1000, 2**64 - 1)


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize("kind", ["consumer", "group"])
def test_offsets_beyond_the_end(client: Client, kind: str) -> None:
    client.create_topic("s", "empty")
    for name in ("t", "empty"):
        create_group(client, "s", name, "g")
        join_group(client, "s", name, "g")

    def store(name: str, offset: int) -> None:
        if kind == "group":
            store_group_offset(client, "s", name, "g", 0, offset)
        else:
            client.store_offset("s", name, 0, offset)

    stored: Callable[[], int | None] = (
        (lambda: group_offset(client, "s", "t", "g", 0))
        if kind == "group"
        else (lambda: client.get_offset("s", "t", 0))
    )
    client.send("s", "t", 0, [b"%d" % number for number in range(10)])
    store("t", 9)
    for offset in TOO_HIGH:
        with pytest.raises(Refused) as refused:
            store("t", offset)
        assert refused.value.code == 4100
        assert stored() == 9
    for offset in (0, 5):
        with pytest.raises(Refused) as refused:
            store("empty", offset)
        assert refused.value.code == 4100
    client.send("s", "t", 0, [b"after"])
    if kind == "consumer":
        assert [message.payload for message in client.poll("s", "t", 0, strategy=NEXT)] == [b"after"]
