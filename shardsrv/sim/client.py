"""A client: logs in, asks one thing after another, retries what was not answered, and comes back after evictions.

Two generations. Both keep the number of a request over its retries; the older one also uses one number for many sends
to partitions, as released clients do, so that only the digest tells them apart. What a client was told goes to the
oracles; a request it gave up is of unknown outcome.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from shardsrv._core import parse_send, xxh3
from shardsrv.errors import Damaged
from shardsrv.plane.metadata.state import PartitionIdentity
from shardsrv.shards import records
from shardsrv.sim import gateway
from shardsrv.sim.boot import key_of
from shardsrv.sim.chance import exponential
from shardsrv.sim.clock import MILLISECOND
from shardsrv.sim.gateway import Ask, Origin
from shardsrv.sim.node_base import Crash
from shardsrv.sim.oracles import Asked
from shardsrv.sim.requests import Requests, places
from shardsrv.sim.violation import Violation
from shardsrv.store.group_key import METADATA
from shardsrv.wire.constants import Operation
from shardsrv.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from shardsrv.sim.node import Node
    from shardsrv.sim.world import World

_TRANSIENT: Final = (int(ErrorCode.TRANSIENT_NOT_ACCEPTED), int(ErrorCode.TRANSIENT_NOT_COMMITTED))
ATTEMPTS_MAX: Final = 40
BURST_MEAN: Final = 300
"""Microseconds between two requests of a burst."""
TWICE: Final = 0.02
"""Share of attempts that reach the member twice."""
_REGISTER: Final = int(Operation.REGISTER)
_LOGOUT: Final = int(Operation.LOGOUT)


class Client:
    """One client."""

    def __init__(self, world: World, index: int, older: bool) -> None:
        self.world = world
        self.index = index
        self.older = older
        self.random = world.chance.stream(f"client {index}")
        load = world.options.load
        self.requests = Requests(self.random, index + 1, load.persisted)
        self._kinds = [name for name, weight in load.weights for _ in range(weight)]
        self.identity = (index + 1).to_bytes(16, "little")
        self.session = 0
        self.number = 0
        self.member = self.random.randrange(world.options.replicas)
        self.attempt = 0
        self._ask: Ask | None = None
        self._asked: Asked | None = None
        self._tries = 0
        self.done = 0
        self.stopped = False
        self.kind = ""
        self._bursting = False
        self._last: Ask | None = None
        """The last metadata request that was acknowledged."""
        self._registered: tuple[int, int] = 0, 0
        """The sessions of the last login but one, and of the last."""

    def begin(self) -> None:
        """The first thing."""
        self._later(exponential(self.random, self.world.options.load.think_mean), self._next)

    @property
    def asking(self) -> bool:
        """Whether a request is not answered yet."""
        return self._ask is not None

    def _later(self, delay: int, action: Any, *arguments: Any) -> None:
        self.world.schedule.after(delay, action, *arguments)

    def _node(self) -> Node:
        return self.world.nodes[self.member]

    # --- what next ---------------------------------------------------------------------------------------------------

    def _next(self) -> None:
        if self.stopped:
            return
        if not self.session:
            self.kind = "register"
            self._start(Ask(self.identity, 0, 0, _REGISTER, b"", 0))
            return
        node = self._node()
        if not node.up or node.metadata is None:
            self._move()
            self._think()
            return
        kind = self.kind = "send" if self._bursting else self.random.choice(self._kinds)
        if kind == "poll":
            self._poll(node)
            self._think()
            return
        if kind == "mischief":
            self._mischief(node)
            self._think()
            return
        if kind in ("register", "logout"):
            operation = _REGISTER if kind == "register" else _LOGOUT
            self._start(Ask(self.identity, self.session, 0, operation, b"", 0))
            return
        state = node.metadata.plane.state
        made = self.requests.make(kind, state)
        if made is None:
            made = self.requests.make("create_topic" if state.streams else "create_stream", state)
            assert made is not None
        operation, body, place = made
        if place is None or not self.older:
            self.number += 1
        digest = xxh3(body) if place is not None or self.random.random() < 0.8 else 0
        if operation == Operation.SEND_MESSAGES:
            digest = parse_send(body).digest
        self._start(Ask(self.identity, self.session, self.number, operation, body, digest, place))

    def _think(self) -> None:
        """Pause, or go on at once in a burst; the mean number of requests a second stays what it is."""
        load, mean = self.world.options.load, self.world.options.load.think_mean
        self._bursting = False
        if load.burst:
            self._bursting = self.random.random() < load.burst
            mean = BURST_MEAN if self._bursting else mean / (1 - load.burst)
        if not self._bursting:
            self.requests.held = None
        self._later(exponential(self.random, mean), self._next)

    def _move(self) -> None:
        self.member = (self.member + 1) % self.world.options.replicas

    # --- one request -------------------------------------------------------------------------------------------------

    def _start(self, ask: Ask) -> None:
        self._ask = ask
        self._tries = 0
        self._asked = None
        self._try()

    def _try(self) -> None:
        """One attempt at the member this client is connected to."""
        ask = self._ask
        if ask is None:
            return
        self.attempt += 1
        self._tries += 1
        if self._tries > ATTEMPTS_MAX or (self.stopped and self._tries > 5):
            self._give_up()
            return
        attempt = self.attempt
        self._later(self.world.client_delay(), self._arrive, attempt, ask)
        if not self.world.peace and self.random.random() < TWICE:
            self._later(self.world.client_delay(), self._arrive, attempt, ask)
        self._later(self.world.options.load.timeout, self._timed_out, attempt)

    def _arrive(self, attempt: int, ask: Ask) -> None:
        node = self._node()
        if attempt != self.attempt or not node.up:
            return
        if not self._note(node, ask):
            self._finish(False)
            return
        origin = Origin(lambda outcome, status, op, reply: self._answer(attempt, outcome, status, op, reply))
        gateway.ask(node, ask, origin, 0)

    def _note(self, node: Node, ask: Ask) -> bool:
        """Remember what was acknowledged when this was first asked. A retry that would now reach another life of the
        partition is another request: it is not made."""
        key = METADATA
        if ask.place is not None:
            found = gateway.target(node, ask.place)
            if found is None:
                return self._asked is None
            if found[0] is None:
                return True
            identity: PartitionIdentity = found[0].identity
            key = key_of(identity)
        if self._asked is None:
            request = (ask.client, ask.session, ask.number, ask.digest, ask.operation)
            asked = self._asked = self.world.oracles.acknowledged.asked(key, request)
            if self.older and ask.place is not None and ask.operation != Operation.SEND_MESSAGES:
                # Two stores of one offset under one number are one request: the second gets the answer of the first.
                asked.floor = 0
        return self._asked.key == key

    def _answer(self, attempt: int, outcome: int, status: int, op: int, reply: bytes) -> None:
        """The member answers; the answer may be lost on the way."""
        if self.world.client_answer_lost():
            return
        self._later(self.world.client_delay(), self._answered, attempt, outcome, status, op, reply)

    def _answered(self, attempt: int, outcome: int, status: int, op: int, reply: bytes) -> None:
        if attempt != self.attempt or self._ask is None:
            return
        ask = self._ask
        if outcome == records.DONE:
            self._acknowledged(ask, op, reply)
            self._finish(True)
        elif outcome == records.EVICTED:
            self.session = 0
            self._finish(False)
        elif outcome == records.SILENT or status in _TRANSIENT:
            self.attempt += 1
            if self.random.random() < 0.7:
                self._move()
            self._later(50 * MILLISECOND, self._try)
        else:
            self.world.count("requests refused")
            self._finish(False)

    def _acknowledged(self, ask: Ask, op: int, reply: bytes) -> None:
        self.done += 1
        self.world.acknowledged(self.kind)
        if ask.operation == _REGISTER:
            self.session = op
            if op != self._registered[1]:
                self._registered = self._registered[1], op
        elif ask.operation == _LOGOUT:
            self.session = 0
        if ask.place is None and ask.operation not in (_REGISTER, _LOGOUT):
            self._last = ask
        if self._asked is not None and ask.operation not in (_REGISTER, _LOGOUT):
            self.world.oracles.acknowledged.answered(self._asked, op, reply)

    def _timed_out(self, attempt: int) -> None:
        if attempt == self.attempt and self._ask is not None:
            self._move()
            self._try()

    def _give_up(self) -> None:
        self.world.count("requests given up")
        # The number may be in the log: it is not used for anything else.
        self.number += 1
        self._finish(False)

    def _finish(self, success: bool) -> None:
        self.attempt += 1
        self._ask = None
        self._asked = None
        self._think()

    def _mischief(self, node: Node) -> None:
        """What no client that behaves would ask; whatever the answer, nothing may come of it twice or for another."""
        if self._last is None:
            return
        last, draw = self._last, self.random.randrange(6)
        ask = attrs.evolve(last, session=self.session)
        if draw == 0:
            ask.session = self._registered[0] or max(0, self.session - 1)
        elif draw == 1:
            ask.session = self.session + 1_000_000
        elif draw == 2:
            ask.digest ^= 1
        elif draw == 3:
            ask.client = (1 << 100 | self.index).to_bytes(16, "little")
        elif draw == 4:
            ask.number = max(1, last.number - 12)
        # What was acknowledged under this number is known to whoever serves; without a digest it is not told apart.
        differs = draw == 2 and self.session == last.session and bool(last.digest) and bool(ask.digest)
        why = {0: "of a session that is over", 1: "of a session to come", 3: "of a client that never logged in"}
        wrong = why.get(draw, "that is another one under its number" if differs else "")
        self.world.count("mischief")
        gateway.ask(node, ask, Origin(lambda outcome, status, op, reply: self._mischief_answered(outcome, wrong)), 0)

    def _mischief_answered(self, outcome: int, wrong: str) -> None:
        """``wrong``: why the request must not be answered as one that took effect; empty if it may be."""
        self.world.count("mischief answered")
        if wrong and outcome == records.DONE:
            raise Violation("at most once", f"client {self.index}: a request {wrong} was answered as done")

    # --- reading -----------------------------------------------------------------------------------------------------

    def _poll(self, node: Node) -> None:
        assert node.metadata is not None
        known = places(node.metadata.plane.state)
        if not known:
            return
        strategy = self.random.choice((1, 1, 2, 3, 4))
        value = self.random.randrange(50) if strategy == 1 else node.clock.wall() - 1_000_000
        place = self.random.choice(known)
        try:
            found = gateway.poll(node, place, strategy, value, self.random.choice((1, 10)))
        except Damaged:
            served = gateway.target(node, place)
            assert served is not None and served[0] is not None
            self.world.met_damage(node, served[0].key)
            return
        except Crash as crash:
            # A read that makes an index anew writes it.
            self.world.crashed(node, crash)
            return
        if found is not None:
            self.world.count("polls")
            self._check_poll(found)

    def _check_poll(self, found: gateway.Poll) -> None:
        history = self.world.oracles.history.group(found.key)
        expected = None
        for offset, identity in found.messages:
            if expected is not None and offset != expected:
                raise Violation("polls", f"{found.key}: offset {offset} where {expected} was next")
            expected = offset + 1
            known = history.ids.get((found.generation, offset))
            if known is not None and known != identity:
                raise Violation("polls", f"{found.key}: offset {offset} holds another message")
            if not found.first_offset <= offset < found.next_offset:
                raise Violation("polls", f"{found.key}: offset {offset} is not readable")
