"""A consumer group of the released client: two members share four partitions, and every message is read once.

Runs in the client's own environment and imports nothing from here. Argument: HOST:PORT. Every step is asserted; the
last line printed is ``done``.
"""

import asyncio
import os
import sys
from collections import Counter

from apache_iggy import Consumer, IggyClient, PollingStrategy, SendMessage

STREAM, TOPIC, GROUP = "shop", "baskets", "billing"
PARTITIONS = 4
EACH = 25
"""Messages a partition and round."""
STEPS_SECONDS = 30
"""Bound of a step that waits for partitions to change hands."""


async def member(address: str) -> IggyClient:
    client = IggyClient(address)
    await client.connect()
    await client.login_user("iggy", "iggy")
    return client


async def send(client: IggyClient, round_number: int) -> Counter[bytes]:
    """One batch to every partition. Gives what was sent."""
    sent: Counter[bytes] = Counter()
    for partition in range(PARTITIONS):
        texts = [f"{round_number}/{partition}/{number}" for number in range(EACH)]
        await client.send_messages(STREAM, TOPIC, partition, [SendMessage(text) for text in texts])
        sent.update(text.encode() for text in texts)
    return sent


async def shared(client: IggyClient, shares: list[int]) -> None:
    """Return once each member has its share of the partitions: `shares`, in ascending order."""
    async with asyncio.timeout(STEPS_SECONDS):
        while True:
            group = await client.get_consumer_group(STREAM, TOPIC, GROUP)
            assert group is not None and group.partitions_count == PARTITIONS
            owned = sorted(partition for one in group.members for partition in one.partitions)
            if owned == list(range(PARTITIONS)) and shares == sorted(one.partitions_count for one in group.members):
                return


async def drain(clients: list[IggyClient], wanted: Counter[bytes]) -> list[int]:
    """Poll in turn, offsets committed with the poll, until as much has come as is wanted. Gives each one's count."""
    found: Counter[bytes] = Counter()
    counts = [0] * len(clients)
    async with asyncio.timeout(STEPS_SECONDS):
        while found.total() < wanted.total():
            for index, client in enumerate(clients):
                polled = await client.poll_messages(
                    STREAM,
                    TOPIC,
                    consumer=Consumer.Group(GROUP),
                    polling_strategy=PollingStrategy.Next(),
                    count=10,
                    auto_commit=True,
                )
                found.update(message.payload() for message in polled)
                counts[index] += len(polled)
    assert found == wanted, "a message is missing or came twice"
    return counts


async def main(address: str) -> None:
    first, second = await member(address), await member(address)
    await first.create_stream(STREAM)
    await first.create_topic(STREAM, TOPIC, partitions_count=PARTITIONS)
    await first.create_consumer_group(STREAM, TOPIC, GROUP)

    await first.join_consumer_group(STREAM, TOPIC, GROUP)
    await shared(first, [PARTITIONS])
    assert await drain([first], await send(first, 1)) == [PARTITIONS * EACH]

    await second.join_consumer_group(STREAM, TOPIC, GROUP)
    await shared(first, [PARTITIONS // 2, PARTITIONS // 2])
    half = PARTITIONS * EACH // 2
    assert await drain([first, second], await send(first, 2)) == [half, half]

    await first.leave_consumer_group(STREAM, TOPIC, GROUP)
    await shared(second, [PARTITIONS])
    assert await drain([second], await send(first, 3)) == [PARTITIONS * EACH]

    await second.delete_consumer_group(STREAM, TOPIC, GROUP)
    assert await second.get_consumer_group(STREAM, TOPIC, GROUP) is None
    print("done", flush=True)
    # The client's threads outlive the loop: when the interpreter winds up it may abort in one of them, whatever the
    # server is. What is tested has passed by then.
    os._exit(0)


asyncio.run(main(sys.argv[1]))
