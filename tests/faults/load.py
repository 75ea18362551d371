"""Load that remembers what it was promised, and the check of what a node kept of it.

A producer sends one batch at a time and never sends a message twice: an acknowledged message must be found exactly
once, at the offset that was confirmed; one whose acknowledgement never came at most once; nothing else may be there.
"""

import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.support.client import Client, Message, Refused
from tests.support.frames import ConnectionLost
from tests.support.node import Node

STREAM = "faults"
TOPIC = "events"
TRANSIENT = frozenset({57, 58})
"""Codes of a node that cannot serve right now: 57 may have been accepted, 58 was not."""


@dataclass(slots=True)
class Ledger:
    """What was sent to one topic: by partition the payloads tried, in order by producer, and the offsets confirmed."""

    tried: dict[int, dict[bytes, list[bytes]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    confirmed: dict[int, dict[bytes, int]] = field(default_factory=lambda: defaultdict(dict))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def try_send(self, partition: int, producer: bytes, payloads: Sequence[bytes]) -> None:
        with self.lock:
            self.tried[partition][producer] += payloads

    def confirm(self, partition: int, base_offset: int, payloads: Sequence[bytes]) -> None:
        with self.lock:
            for index, payload in enumerate(payloads):
                self.confirmed[partition][payload] = base_offset + index

    def acknowledged(self) -> int:
        with self.lock:
            return sum(map(len, self.confirmed.values()))

    def check(self, partition: int, messages: Sequence[Message]) -> list[str]:
        """Everything that is wrong with the messages read back from a partition; empty when nothing is."""
        wrong = []
        offsets = [message.offset for message in messages]
        if offsets != list(range(len(messages))):
            gap = next(index for index, offset in enumerate(offsets) if offset != index)
            wrong.append(f"partition {partition}: offset {offsets[gap]} stands where {gap} is due")
        found: dict[bytes, list[int]] = defaultdict(list)
        for message in messages:
            found[message.payload].append(message.offset)
        wrong += [
            f"partition {partition}: {payload!r} was confirmed at {offset}, found at {found.get(payload, [])}"
            for payload, offset in self.confirmed[partition].items()
            if found.get(payload) != [offset]
        ]
        known = {payload for payloads in self.tried[partition].values() for payload in payloads}
        wrong += [
            f"partition {partition}: {payload!r} stands at {places}" + ("" if payload in known else ", nobody sent it")
            for payload, places in found.items()
            if payload not in known or len(places) > 1
        ]
        for producer, payloads in self.tried[partition].items():
            places = [found[payload][0] for payload in payloads if payload in found]
            if places != sorted(places):
                wrong.append(f"partition {partition}: the messages of {producer!r} stand out of order")
        return wrong


class Producer(threading.Thread):
    """Sends batches of one to five messages to one partition until its connection is lost or it is told to stop."""

    def __init__(self, node: Node, ledger: Ledger, partition: int, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.node = node
        self.ledger = ledger
        self.partition = partition
        self.identity = name.encode()
        self.acknowledged = 0
        self.progress = threading.Condition()
        self.finish = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with self.node.client() as client:
                number = 0
                while not self.finish.is_set():
                    payloads = [b"%s-%d" % (self.identity, number + index) for index in range(number % 5 + 1)]
                    number += len(payloads)
                    self._send(client, payloads)
        except (ConnectionLost, OSError):
            pass  # the node was killed under the load: this is what the test is about
        except BaseException as error:
            self.failure = error
        finally:
            with self.progress:
                self.progress.notify_all()

    def await_acknowledged(self, count: int, timeout: float = 20.0) -> None:
        """Wait until ``count`` batches were acknowledged. Raises ``AssertionError`` when the producer ended before."""
        with self.progress:
            reached = self.progress.wait_for(lambda: self.acknowledged >= count or not self.is_alive(), timeout)
        if not reached or self.acknowledged < count:
            raise AssertionError(f"{self.name}: {self.acknowledged} of {count} batches, failure {self.failure!r}")

    def ended(self, timeout: float = 20.0) -> None:
        """Wait for the end. Raises what the producer failed with."""
        self.join(timeout)
        if self.is_alive():
            raise AssertionError(f"{self.name} still waits for an answer {timeout} s after the node was killed")
        if self.failure is not None:
            raise self.failure

    def _send(self, client: Client, payloads: list[bytes]) -> None:
        self.ledger.try_send(self.partition, self.identity, payloads)
        try:
            base = client.send(STREAM, TOPIC, self.partition, payloads)
        except Refused as refusal:
            if refusal.code not in TRANSIENT:
                raise
            return
        self.ledger.confirm(self.partition, base, payloads)
        with self.progress:
            self.acknowledged += 1
            self.progress.notify_all()
