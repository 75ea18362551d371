"""A producer and a member of a consumer group that know how to connect again. Runs in the client's own environment.

Argument: HOST:PORT. Prints ``flowing`` when messages flow, ``waiting`` when the node has not answered a send for a
second, and ``done`` when messages flow again and every acknowledged one has reached the consumer.
"""

import asyncio
import datetime
import sys

from apache_iggy import (
    AutoCommit,
    AutoLogin,
    IggyClient,
    PollingStrategy,
    SendMessage,
    TcpConfig,
    TcpReconnectionConfig,
)

ENOUGH = 200
PATIENCE = 1.0
SOON = datetime.timedelta(milliseconds=200)


class Flow:
    """What was acknowledged and what was received."""

    def __init__(self) -> None:
        self.acknowledged: list[str] = []
        self.received: list[str] = []
        self.outage = False
        self.after = 0


def client(address: str) -> IggyClient:
    reconnection = TcpReconnectionConfig(interval=SOON, reestablish_after=SOON)
    login = AutoLogin.username_password("iggy", "iggy")
    return IggyClient(TcpConfig(server_address=address, auto_login=login, reconnection=reconnection))


async def produce(address: str, flow: Flow) -> None:
    """Send numbered messages one by one until enough were acknowledged behind the outage."""
    producer = client(address)
    await producer.connect()
    number = 0
    while flow.after < ENOUGH:
        text = f"message {number}"
        number += 1
        sending = asyncio.ensure_future(producer.send_messages("s", "t", 0, [SendMessage(text)]))
        done, _ = await asyncio.wait([sending], timeout=PATIENCE)
        if not done:
            flow.outage = True
            print("waiting", flush=True)
        try:
            await sending
        except RuntimeError as error:
            print(f"unknown outcome of {text}: {error}", file=sys.stderr)
            if not flow.outage:
                flow.outage = True
                print("waiting", flush=True)
            continue
        flow.acknowledged.append(text)
        flow.after += flow.outage
        if len(flow.acknowledged) == ENOUGH:
            print("flowing", flush=True)


async def consume(address: str, flow: Flow) -> None:
    """Receive as the only member of a group, for ever."""
    member = client(address)
    await member.connect()
    consumer = await member.consumer_group(
        "g", "s", "t", polling_strategy=PollingStrategy.Next(), batch_length=10,
        auto_commit=AutoCommit.Interval(SOON), poll_interval=datetime.timedelta(milliseconds=5),
        polling_retry_interval=SOON,
    )  # fmt: skip
    async for message in consumer.iter_messages():
        flow.received.append(message.payload().decode())


async def main(address: str) -> None:
    setup = client(address)
    await setup.connect()
    await setup.create_stream("s")
    await setup.create_topic("s", "t", partitions_count=1)
    flow = Flow()
    consuming = asyncio.ensure_future(consume(address, flow))
    await produce(address, flow)
    while not set(flow.acknowledged) <= set(flow.received):
        assert not consuming.done(), consuming.exception()
        await asyncio.sleep(0.05)
    consuming.cancel()
    print("done", flush=True)


asyncio.run(main(sys.argv[1]))
