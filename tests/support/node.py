"""One real node as a child process: started, stopped, killed and started again by a test.

The node's output goes to ``server.log`` beside its data directory, so that it can be read after a failure and never
fills a pipe. Readiness is a fact of the wire: a login is answered. Waiting is bounded and ends with the process.
SHARDSRV_TEST_SHARDS runs every node of a test run with that many shards; SHARDSRV_TEST_EXEC starts each in a fresh
interpreter (`nursery`).
"""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from tests.support.client import Client, Evicted, Refused
from tests.support.frames import ConnectionLost
from tests.support.nursery import NurseryProcess, die_with_parent, nursery

RETRY_MILLISECONDS = 5
"""Pause between two tries to connect; a process that ends is noticed without it."""
START_TIMEOUT = 60.0
STOP_TIMEOUT = 20.0


class NodeFailed(Exception):
    """The node ended by itself or did not become ready in time; the text carries the end of its log."""


def free_port() -> int:
    """A TCP port of the loopback address that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Node:
    """A node with its data directory ``root / "data"`` and its log ``root / "server.log"``."""

    def __init__(
        self,
        root: Path,
        *,
        arguments: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        port: int | None = None,
    ) -> None:
        """Nothing is started yet. ``arguments`` are added to the command line, ``environment`` to the environment."""
        self.root = root
        self.data = root / "data"
        self.log_path = root / "server.log"
        self.host = "127.0.0.1"
        self.port = port if port is not None else free_port()
        shards = os.environ.get("SHARDSRV_TEST_SHARDS")
        given = ["--shards", shards] if shards and "--shards" not in arguments else []
        self.arguments = ["--node", "0", "--data", str(self.data), *given, *arguments]
        self.environment = {
            "IGGY_TCP_ADDRESS": f"{self.host}:{self.port}",
            "IGGY_HTTP_ENABLED": "false",
            "IGGY_QUIC_ENABLED": "false",
            "IGGY_WEBSOCKET_ENABLED": "false",
            "IGGY_ROOT_USERNAME": "iggy",
            "IGGY_ROOT_PASSWORD": "iggy",
            **(environment or {}),
        }
        self.process: subprocess.Popen[bytes] | NurseryProcess | None = None
        self.root_password = "iggy"

    def __enter__(self) -> "Node":
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Process id of the supervisor."""
        return self._running().pid

    def start(self, timeout: float = START_TIMEOUT, password: str = "iggy") -> float:
        """Start and wait until a login is answered; returns the seconds that took. Raises :class:`NodeFailed`.

        ``password``: that of root, for the login.
        """
        self.root_password = password
        began = time.monotonic()
        self.launch()
        self.await_service(timeout)
        return time.monotonic() - began

    def launch(self) -> None:
        """Start, without waiting for anything."""
        if self.process is not None and self.process.poll() is None:
            raise RuntimeError("the node runs already")
        self.root.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, **self.environment}
        if not os.environ.get("SHARDSRV_TEST_EXEC"):
            self.process = nursery().spawn(self.arguments, environment, self.log_path)
            return
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "shardsrv", *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                preexec_fn=die_with_parent,
            )

    def await_service(self, timeout: float = START_TIMEOUT) -> float:
        """Wait until a login is answered; returns the seconds that took. Raises :class:`NodeFailed`."""
        process = self._running()
        began = time.monotonic()
        deadline = began + timeout
        ended = os.pidfd_open(process.pid)
        try:
            exit_event = select.poll()
            exit_event.register(ended, select.POLLIN)
            while not self._answers(deadline):
                if exit_event.poll(RETRY_MILLISECONDS):
                    raise NodeFailed(f"the node ended with {process.wait()}\n{self.log_tail()}")
                if time.monotonic() > deadline:
                    raise NodeFailed(f"no login was answered within {timeout} s\n{self.log_tail()}")
        finally:
            os.close(ended)
        return time.monotonic() - began

    def client(self, timeout: float = 30.0) -> Client:
        """A new connection, logged in as root."""
        client = Client(self.host, self.port, timeout)
        try:
            client.login()
        except BaseException:
            client.close()
            raise
        return client

    def stop(self, timeout: float = STOP_TIMEOUT) -> int:
        """SIGTERM; returns the exit code. Raises ``subprocess.TimeoutExpired``."""
        process = self._running()
        pids = self.shard_pids()
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout)
        await_gone(pids, timeout)
        return code

    def kill(self) -> None:
        """SIGKILL to the supervisor and every shard at once; harmless when nothing runs."""
        if self.process is None or self.process.poll() is not None:
            return
        pids = [self.process.pid, *self.shard_pids()]
        for pid in pids:
            _kill(pid)
        self.process.wait()
        await_gone(pids[1:])

    def kill_supervisor(self) -> None:
        """SIGKILL to the supervisor alone; returns when its shards, which follow it, are gone too."""
        process = self._running()
        pids = self.shard_pids()
        process.kill()
        process.wait()
        await_gone(pids)

    def kill_shard(self, index: int) -> int:
        """SIGKILL to one process of :meth:`shard_pids`; returns its pid once it is gone."""
        pids = self.shard_pids()
        pid = pids[index % len(pids)]
        watch = os.pidfd_open(pid)
        try:
            _kill(pid)
            select.select([watch], [], [], STOP_TIMEOUT)
        finally:
            os.close(watch)
        return pid

    def restart(self, timeout: float = START_TIMEOUT) -> float:
        """Stop if it runs, then start on the same data; returns the seconds until a login was answered."""
        if self.process is not None and self.process.poll() is None:
            self.stop()
        return self.start(timeout)

    def shard_pids(self) -> list[int]:
        """Process ids of the supervisor's living children, in the order in which they were made."""
        try:
            children = psutil.Process(self._running().pid).children()
            return sorted(child.pid for child in children if child.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return []

    def log_tail(self, lines: int = 40) -> str:
        """The last lines that the node printed."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def _answers(self, deadline: float) -> bool:
        try:
            with Client(self.host, self.port, max(0.1, deadline - time.monotonic())) as client:
                client.login(password=self.root_password)
        except (OSError, ConnectionLost):
            return False
        except (Refused, Evicted) as refusal:
            # A node that cannot accept the login yet says so (57, 58); anything else is final.
            if isinstance(refusal, Refused) and refusal.code in (57, 58):
                return False
            raise NodeFailed(f"the root login was refused: {refusal}\n{self.log_tail()}") from refusal
        return True

    def _running(self) -> subprocess.Popen[bytes] | NurseryProcess:
        if self.process is None:
            raise RuntimeError("the node was never started")
        return self.process


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it was quicker than we


def await_gone(pids: Iterable[int], timeout: float = STOP_TIMEOUT) -> None:
    """Wait until none of the processes exists. Raises ``TimeoutError`` naming the first that does."""
    deadline = time.monotonic() + timeout
    for pid in pids:
        try:
            watch = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            readable, _, _ = select.select([watch], [], [], max(0.0, deadline - time.monotonic()))
        finally:
            os.close(watch)
        if not readable:
            raise TimeoutError(f"process {pid} still exists after {timeout} s")
