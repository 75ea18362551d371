"""What a user of the released client writes first. Runs in the client's own environment and imports nothing from here.

Argument: HOST:PORT. Every step is asserted; the last line printed is ``done``.
"""

import asyncio
import os
import struct
import sys

from apache_iggy import Consumer, IggyClient, PollingStrategy, SendMessage

COUNT = 1000
STORE_OFFSET, DELETE_OFFSET, GET_OFFSET = 121, 122, 120
TARGET = b"\1\1\4\7\0\0\0" + b"\2\5store" + b"\2\6orders" + b"\1\0\0\0\0"
"""Consumer 7, stream, topic and partition 0, as the offset commands want them."""


async def poll(
    client: IggyClient, strategy: PollingStrategy, count: int, consumer: int = 1, commit: bool = False
) -> list:
    return await client.poll_messages(
        "store",
        "orders",
        consumer=Consumer.Single(consumer),
        polling_strategy=strategy,
        count=count,
        auto_commit=commit,
        partition_id=0,
    )


async def main(address: str) -> None:
    client = IggyClient(address)
    await client.connect()
    await client.login_user("iggy", "iggy")
    await client.create_stream("store")
    await client.create_topic("store", "orders", partitions_count=1)
    for start in range(0, COUNT, 100):
        messages = [SendMessage(f"order {number}") for number in range(start, start + 100)]
        confirmations = (await client.send_messages("store", "orders", 0, messages)).confirmations
        assert [one.base_offset for one in confirmations] == [start]

    polled = []
    while len(polled) < COUNT:
        batch = await poll(client, PollingStrategy.Offset(len(polled)), 300)
        assert batch, f"no message at offset {len(polled)}"
        polled += batch
    assert [message.offset() for message in polled] == list(range(COUNT))
    assert [message.payload() for message in polled] == [f"order {number}".encode() for number in range(COUNT)]

    first = await poll(client, PollingStrategy.First(), 3)
    last = await poll(client, PollingStrategy.Last(), 3)
    timed = await poll(client, PollingStrategy.Timestamp(0), 2)
    assert [message.offset() for message in first] == [0, 1, 2]
    assert [message.offset() for message in last] == [COUNT - 3, COUNT - 2, COUNT - 1]
    assert [message.offset() for message in timed] == [0, 1]
    for expected in ([0, 1], [2, 3]):
        found = await poll(client, PollingStrategy.Next(), 2, consumer=9, commit=True)
        assert [message.offset() for message in found] == expected

    await client.send_binary_request(STORE_OFFSET, TARGET + struct.pack("<QB", 41, 1))
    stored = await client.send_binary_request(GET_OFFSET, TARGET)
    assert struct.unpack("<IQQ", stored) == (0, COUNT - 1, 41)
    following = await poll(client, PollingStrategy.Next(), 1, consumer=7)
    assert [message.offset() for message in following] == [42]
    await client.send_binary_request(DELETE_OFFSET, TARGET + b"\1")
    assert await client.send_binary_request(GET_OFFSET, TARGET) == b""

    details = await client.get_topic("store", "orders")
    assert details is not None and details.partitions_count == 1 and details.messages_count == COUNT
    print("done", flush=True)
    # The client's threads outlive the loop: when the interpreter winds up it may abort in one of them, whatever the
    # server is. What is tested has passed by then.
    os._exit(0)


asyncio.run(main(sys.argv[1]))
