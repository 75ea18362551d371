"""C028: small reads of old data beside writers: latencies, bytes read for each byte answered, rate of the writers.

    python bench/tail_of_old_reads.py --gigabytes 10 --seconds 20 --rounds 3

A partition is filled with sealed segments; one client polls 10 messages at random old offsets, first alone, then while
a producer sends to another partition at half of what it can. Rounds alternate, so that what else the machine does meets
both. Wanted: p99 beside writers within 1.3 times of p99 alone, fewer than 8 bytes read for a byte answered, writers at
90% of the rate that they were asked for.
"""

import argparse
import multiprocessing
import random
import statistics
import struct
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.batches import encode_batch  # noqa: E402
from tests.support.client import Client  # noqa: E402
from tests.support.frames import BY_OFFSET, POLL, identifier  # noqa: E402
from tests.support.node import Node  # noqa: E402

SIZE = 1000
"""Bytes of a message."""
POLLED = 10
SEGMENT = 64 << 20


@dataclass
class Reads:
    """Seconds of each poll, bytes of all replies, bytes that the node read from files meanwhile."""

    latencies: list[float]
    answered: int
    read: int

    def quantile(self, share: float) -> float:
        """Milliseconds."""
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def poll_body(offset: int) -> bytes:
    place = identifier(1) + identifier("s") + identifier("old") + struct.pack("<BI", 1, 0)
    return b"\1" + place + struct.pack("<BQIB", BY_OFFSET, offset, POLLED, 0)


def file_bytes(node: Node) -> int:
    """Bytes that the processes of the node have read from files; sockets do not count."""
    return sum(
        int(line.split()[1])
        for pid in node.shard_pids()
        for line in Path(f"/proc/{pid}/io").read_text().splitlines()
        if line.startswith("rchar:")
    )


def read_old(node: Node, client: Client, messages: int, seconds: float, dice: random.Random) -> Reads:
    """Poll at random offsets for so long."""
    reads = Reads([], 0, file_bytes(node))
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        reply = client.read(POLL, poll_body(dice.randrange(messages - POLLED)))
        reads.latencies.append(time.monotonic() - now)
        reads.answered += len(reply)
        assert struct.unpack_from("<I", reply, 12)[0] == POLLED
    reads.read = file_bytes(node) - reads.read
    return reads


def produce(
    host: str, port: int, messages: int, rate: float, stop: Event, sent: "multiprocessing.Queue[tuple[int, float]]"
) -> None:
    """Send batches until told to stop, at most ``rate`` a second (0: as fast as they are answered)."""
    batch = encode_batch([bytes(SIZE)] * messages)
    with Client(host, port) as client:
        client.login()
        began = time.monotonic()
        count = 0
        while not stop.is_set():
            due = began + count / rate if rate else 0.0
            if due > time.monotonic():
                stop.wait(due - time.monotonic())
                continue
            client.send_batch("s", "new", 0, messages, batch)
            count += 1
        sent.put((count, time.monotonic() - began))


class Producer:
    """A producer in a process of its own."""

    def __init__(self, node: Node, messages: int, rate: float) -> None:
        self.stop = multiprocessing.Event()
        self.sent: multiprocessing.Queue[tuple[int, float]] = multiprocessing.Queue()
        arguments = (node.host, node.port, messages, rate, self.stop, self.sent)
        self.process = multiprocessing.Process(target=produce, args=arguments)
        self.process.start()

    def end(self) -> float:
        """Batches a second."""
        self.stop.set()
        count, seconds = self.sent.get()
        self.process.join()
        return count / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--batch", type=int, default=100, help="messages of a batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=None)
    given = parser.parse_args()
    dice = random.Random(1)
    with (
        tempfile.TemporaryDirectory(prefix="old-reads-", dir=given.directory) as directory,
        Node(Path(directory)) as node,
        node.client() as client,
    ):
        client.create_stream("s")
        for topic in ("old", "new"):
            options = {"segment_size": str(SEGMENT)}
            client.create_topic("s", topic, 1, options | ({"max_topic_size": "1 GiB"} if topic == "new" else {}))
        batch = encode_batch([bytes(SIZE)] * given.batch)
        batches = int(given.gigabytes * 1e9 / len(batch))
        for _ in range(batches):
            client.send_batch("s", "old", 0, given.batch, batch)
        alone_rate = Producer(node, given.batch, 0.0)
        time.sleep(given.seconds / 2)
        most = alone_rate.end()
        alone: list[Reads] = []
        beside: list[Reads] = []
        rates = []
        for _ in range(given.rounds):
            alone.append(read_old(node, client, batches * given.batch, given.seconds, dice))
            producer = Producer(node, given.batch, most / 2)
            beside.append(read_old(node, client, batches * given.batch, given.seconds, dice))
            rates.append(producer.end())
    print(
        f"{batches * len(batch) / 1e9:.1f} GB old, writers alone {most:.0f} batches/s, medians of {given.rounds} rounds"
    )
    for name, rounds in (("alone", alone), ("beside writers", beside)):
        shown = [f"p{100 * share:g} {statistics.median(one.quantile(share) for one in rounds):.2f} ms"
                 for share in (0.5, 0.99, 0.999)]  # fmt: skip
        print(f"  {name}: {sum(len(one.latencies) for one in rounds)} polls, {', '.join(shown)}")
    ratio = statistics.median(b.quantile(0.99) / a.quantile(0.99) for a, b in zip(alone, beside, strict=True))
    amplification = sum(one.read for one in alone) / sum(one.answered for one in alone)
    print(f"  p99 ratio {ratio:.2f}, bytes read for a byte answered {amplification:.1f}")
    print(f"  writers at {100 * statistics.median(rates) / (most / 2):.0f}% of half their rate")


if __name__ == "__main__":
    main()
