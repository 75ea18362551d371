"""A send and a poll through a whole shard in one process: reactor, router, replica, plane and log, the client being
the other
end of a socket pair. The client's own system calls are part of the figure."""

from itertools import count

import trio
from in_process import InProcess, in_process
from pytest_benchmark.fixture import BenchmarkFixture

from shardsrv.wire.constants import ConsumerKind, PollingKind
from shardsrv.wire.messages import PollMessages, SendMessages
from shardsrv.wire.primitives import Consumer, Partitioning, PollingStrategy
from tests.support.batches import encode_batch

ROUNDS = 2_000
LARGE_ROUNDS = 100
"""Few enough that a run stays below the bound of what may be unsynced: nothing syncs while the interpreter is busy
here."""


def batch(messages: int, size: int) -> bytes:
    """A batch as a client sends it."""
    return bytes(encode_batch([b"x" * size] * messages))


def send(shard: InProcess, messages: int, size: int) -> bytes:
    """The frame of a send with a request number of its own."""
    return shard.frame(SendMessages(0, 0, Partitioning.to_partition(0), messages, batch(messages, size)))


def poll(shard: InProcess, messages: int) -> bytes:
    """The frame of a poll from the first message."""
    strategy = PollingStrategy(PollingKind.OFFSET, 0)
    return shard.frame(PollMessages(Consumer(ConsumerKind.CONSUMER, 1), 0, 0, 0, strategy, messages, False))


def measure_sends(benchmark: BenchmarkFixture, messages: int, size: int, rounds: int) -> None:
    async def main() -> None:
        async with in_process() as shard:
            frames = [send(shard, messages, size) for _ in range(rounds)]
            numbers = count()

            def one() -> bytes:
                return shard.exchange(frames[next(numbers)])

            last = benchmark.pedantic(one, rounds=rounds, iterations=1)
            assert last[216:220] == bytes(4), "refused"

    trio.run(main)


def measure_polls(benchmark: BenchmarkFixture, messages: int, size: int, rounds: int) -> None:
    async def main() -> None:
        async with in_process() as shard:
            shard.exchange(send(shard, messages, size))
            frame = poll(shard, messages)
            last = benchmark.pedantic(shard.exchange, (frame,), rounds=rounds, iterations=1)
            assert int.from_bytes(last[268:272], "little") == messages

    trio.run(main)


def test_send_1_message_of_100_bytes(benchmark: BenchmarkFixture) -> None:
    measure_sends(benchmark, 1, 100, ROUNDS)


def test_send_100_messages_of_100_bytes(benchmark: BenchmarkFixture) -> None:
    measure_sends(benchmark, 100, 100, ROUNDS)


def test_poll_1_message_of_100_bytes(benchmark: BenchmarkFixture) -> None:
    measure_polls(benchmark, 1, 100, ROUNDS)


def test_poll_100_messages_of_1000_bytes(benchmark: BenchmarkFixture) -> None:
    measure_polls(benchmark, 100, 1000, LARGE_ROUNDS)
