"""Starts nodes in a third of the time: one process has read the server's modules and forks for every node.

What a node does once its modules are read is the same, and most of what a start costs is reading them. ``--long``
starts a fresh interpreter for each node instead (SHARDSRV_TEST_EXEC=1). The nursery lives as long as the test run, its
nodes no longer than it.

Messages, one JSON document each over a pair of sockets: a start is answered with a pid; the end of a node is told with
its exit code, negative for a signal; a node stays a zombie, as a child would, until its end has been taken note of.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)
MESSAGE_MAX = 1 << 16
MODULES = ("shardsrv.cli", "shardsrv.advice", "shardsrv.config")
SHARDS = ("supervisor", "preparation", "shard", "metadata_shard", "partition_shard")


def die_with_parent() -> None:
    """This process is killed when its parent ends."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class NurseryProcess:
    """A node that the nursery forked; as much of `subprocess.Popen` as tests use."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, None while the node runs."""
        if self.returncode is None:
            self.returncode = self._nursery.ended(self.pid, 0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, when the node has ended. Raises ``subprocess.TimeoutExpired``."""
        if self.returncode is None:
            self.returncode = self._nursery.ended(self.pid, timeout)
            if self.returncode is None:
                raise subprocess.TimeoutExpired(f"node {self.pid}", timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the node has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, unless the node has ended."""
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The side of the test run."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.support.nursery", str(theirs.fileno())]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, cwd=ROOT, pass_fds=[theirs.fileno()], preexec_fn=die_with_parent
        )
        theirs.close()
        self._codes: dict[int, int] = {}

    def spawn(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> NurseryProcess:
        """Start a node with these arguments and exactly this environment; its output is added to ``log``."""
        start = {"arguments": list(arguments), "environment": dict(environment), "log": str(log), "cwd": os.getcwd()}
        self._socket.send(json.dumps(start).encode())
        while (message := self._receive(None)) is None or "started" not in message:
            continue
        return NurseryProcess(self, message["started"])

    def ended(self, pid: int, timeout: float | None) -> int | None:
        """The exit code of a node of this nursery; None when it has not ended within ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while pid not in self._codes:
            if self._receive(None if deadline is None else max(0.0, deadline - time.monotonic())) is None:
                return None
        self._socket.send(json.dumps({"forget": pid}).encode())
        return self._codes.pop(pid)

    def _receive(self, timeout: float | None) -> dict[str, Any] | None:
        self._socket.settimeout(timeout)
        try:
            data = self._socket.recv(MESSAGE_MAX)
        except (TimeoutError, BlockingIOError):
            return None
        finally:
            self._socket.settimeout(None)
        if not data:
            raise RuntimeError(f"the nursery of nodes ended with {self._process.wait()}")
        message: dict[str, Any] = json.loads(data)
        if "ended" in message:
            self._codes[message["ended"]] = message["code"]
        return message


_nursery: list[Nursery] = []


def nursery() -> Nursery:
    """The nursery of this test run, started by the first who asks."""
    if not _nursery:
        _nursery.append(Nursery())
    return _nursery[0]


# --- the other side ---------------------------------------------------------------------------------------------------


def tend(channel: socket.socket) -> None:
    """Fork nodes until the test run ends."""
    for name in (*MODULES, *(f"shardsrv.shards.{name}" for name in SHARDS)):
        importlib.import_module(name)
    selector = selectors.DefaultSelector()
    selector.register(channel, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.data is not None:
                # Looked at, not reaped: until the end is taken note of, the pid stands for this node alone.
                end = os.waitid(os.P_PIDFD, key.fd, os.WEXITED | os.WNOWAIT)
                assert end is not None
                code = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
                selector.unregister(key.fd)
                os.close(key.fd)
                channel.send(json.dumps({"ended": key.data, "code": code}).encode())
                continue
            data = channel.recv(MESSAGE_MAX)
            if not data:
                return
            message = json.loads(data)
            if "forget" in message:
                os.waitpid(message["forget"], 0)
                continue
            pid = os.fork()
            if pid == 0:
                selector.close()
                channel.close()
                run(**message)
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
            channel.send(json.dumps({"started": pid}).encode())


def run(arguments: list[str], environment: dict[str, str], log: str, cwd: str) -> None:
    """Be a node; does not return."""
    from shardsrv.cli import main

    code = 70
    try:
        die_with_parent()
        os.chdir(cwd)
        output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["shardsrv", *arguments]
        try:
            main(prog_name="shardsrv")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            code = 1
            sys.excepthook(*sys.exc_info())
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    tend(socket.socket(fileno=int(sys.argv[1])))
