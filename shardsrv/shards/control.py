"""The control channel between the supervisor and one shard: small messages, one JSON line each.

Invariants: one channel has one reader and one writer a side; a message is whole or absent; end of stream means that the
other side is gone. Messages, by the side that sends them:

* shard to supervisor: ``ready`` {facts}, ``fatal`` {text, code, cause}, ``stopped`` {clean};
* supervisor to shard: ``serve`` {addresses}, ``stop`` {deadline_seconds}.

``fatal.code`` is the exit code of the process; a node is not started again after an operator's or a disk's fault.
The channel can be polled: `fileno` becomes readable, then `receive` returns what has arrived and never blocks.
"""

from __future__ import annotations

import socket
from enum import IntEnum
from typing import Any

import attrs
import msgspec

from shardsrv.advice import advice
from shardsrv.errors import CrashLoop, DiskFault, OperatorFault, OurFault

MESSAGE_BYTES_MAX = 1 << 20
"""Longest line. Facts are a few hundred bytes; more is a defect, not something to buffer."""


class ExitCode(IntEnum):
    """How a process ends. The first six are the program's; a shard uses DEFECT too."""

    CLEAN = 0
    """Stopped as asked, everything acknowledged is synced and the clean mark is written."""
    OPERATOR = 1
    """Configuration, data directory, address or environment: the operator has to change something."""
    USAGE = 2
    """The command line itself."""
    DISK = 3
    """Storage is full, failing, damaged or unreadable."""
    CRASH_LOOP = 4
    """The node died again and again, or never became ready."""
    UNCLEAN_STOP = 5
    """Stopped as asked, but a shard had to be killed: the next start recovers as after a crash."""
    DEFECT = 70
    """A shard met an error nobody foresaw; the supervisor starts the node again."""


@attrs.frozen
class ControlMessage:
    """One message: its `kind` and its fields."""

    kind: str
    fields: dict[str, Any] = attrs.field(factory=dict)


class ControlChannel:
    """One side of a channel. Sending blocks at most until the other side reads; messages are far below a socket
    buffer.
    """

    def __init__(self, side: socket.socket) -> None:
        side.setblocking(True)
        self._socket = side
        self._buffer = bytearray()
        self.ended = False
        """True once the other side has closed."""

    @classmethod
    def pair(cls) -> tuple[ControlChannel, ControlChannel]:
        """Two joined sides; close one of them after the fork."""
        ours, theirs = socket.socketpair()
        return cls(ours), cls(theirs)

    def fileno(self) -> int:
        """The descriptor to wait on for `receive`."""
        return self._socket.fileno()

    def send(self, kind: str, **fields: object) -> bool:
        """Send one message; False if the other side is gone, which `receive` reports too."""
        line = msgspec.json.encode({"kind": kind, **fields}) + b"\n"
        if len(line) > MESSAGE_BYTES_MAX:
            raise OurFault(detail=f"a control message {kind!r} of {len(line)} bytes")
        try:
            self._socket.sendall(line)
        except (BrokenPipeError, ConnectionResetError):
            self.ended = True
            return False
        return True

    def receive(self) -> list[ControlMessage]:
        """Every whole message that has arrived, without waiting.

        Raises:
            OurFault: a line that is no message.
        """
        while not self.ended:
            try:
                piece = self._socket.recv(65_536, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except ConnectionResetError:
                piece = b""
            if not piece:
                self.ended = True
            self._buffer += piece
            if len(self._buffer) > MESSAGE_BYTES_MAX and b"\n" not in self._buffer:
                raise OurFault(detail="a control message without an end")
        *lines, rest = bytes(self._buffer).split(b"\n")
        self._buffer = bytearray(rest)
        return [_decode(line) for line in lines]

    # What a shard says.

    def ready(self, **facts: object) -> bool:
        """This shard has recovered and would serve; `facts` are logged."""
        return self.send("ready", facts=facts)

    def fatal(self, error: BaseException) -> ExitCode:
        """This shard cannot go on because of `error` (or the worst of a group); returns the code to exit with."""
        error = leaf(error)
        code = exit_code(error)
        self.send("fatal", text=advice(error), code=int(code), cause=cause_of(error))
        return code

    def stopped(self, *, clean: bool) -> bool:
        """This shard has stopped as asked; `clean` when its logs are synced and its mark is written."""
        return self.send("stopped", clean=clean)

    def close(self) -> None:
        """Close this side."""
        self._socket.close()


def _decode(line: bytes) -> ControlMessage:
    try:
        fields = msgspec.json.decode(line, type=dict[str, Any])
        return ControlMessage(str(fields.pop("kind")), fields)
    except (msgspec.DecodeError, KeyError) as error:
        raise OurFault(detail=f"a control message that does not decode: {line[:80]!r}") from error


def exit_code(error: BaseException) -> ExitCode:
    """The exit code that tells whose fault `error` is."""
    if isinstance(error, DiskFault):
        return ExitCode.DISK
    if isinstance(error, CrashLoop):
        return ExitCode.CRASH_LOOP
    return ExitCode.OPERATOR if isinstance(error, OperatorFault) else ExitCode.DEFECT


def leaf(error: BaseException) -> BaseException:
    """What matters in a group of errors, as tasks raise them: a disk's fault, else an operator's, else the first."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [leaf(inner) for inner in error.exceptions]
    ranked = sorted(leaves, key=lambda inner: (not isinstance(inner, DiskFault), not isinstance(inner, OperatorFault)))
    return ranked[0]


def cause_of(error: BaseException) -> str:
    """What makes two deaths the same: the class and the place in the program, never the values."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return type(error).__name__
    code = trace.tb_frame.f_code
    return f"{type(error).__name__} in {code.co_name} line {trace.tb_lineno}"
