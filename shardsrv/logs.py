"""Structured logs: one line a record, to standard output and to ``DIR/logs/shardsrv.log``.

Line: ``2026-08-21T11:44:28.123456Z  INFO node-0 shard-1: event text key=value``; a traceback follows on lines of its
own.
Invariants: logging is never on the path of a message; every process appends to the same file with O_APPEND, so a line
is whole; whoever sees the file too large archives it under a lock, and the others follow by its inode; a reader of
standard output that does not read costs lines there (counted), never the pump.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import select
import stat
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import msgspec
import structlog

from shardsrv.config import Config, Notice, log_level

FILE_NAME = "shardsrv.log"
PIPE_BYTES = 4096
"""PIPE_BUF: a pipe that polls as writable takes this much without blocking."""

_LEVELS = {"trace": 10, "debug": 10, "info": 20, "warn": 30, "error": 40, "off": 50}
_LABELS = {"warning": "WARN", "exception": "ERROR", "critical": "ERROR"}
_BARE = re.compile(r"[^\s\"=]+")


class LogFile:
    """The log file of one node, shared by its processes; archives are ``shardsrv.log.1`` (newest) and so on."""

    def __init__(self, folder: Path, *, file_bytes_max: int, total_bytes_max: int, retention: float) -> None:
        """Open `folder`/shardsrv.log for appending; 0 bytes mean no limit.

        Raises:
            OSError: the folder cannot be made or the file not opened.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / FILE_NAME
        self._file_bytes_max = file_bytes_max
        self._total_bytes_max = total_bytes_max
        self._retention = retention
        self._descriptor = self._open()

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)

    def write(self, line: bytes) -> None:
        """Append one record; archives the file first where the record would take it past its size."""
        if self._file_bytes_max and os.fstat(self._descriptor).st_size + len(line) > self._file_bytes_max:
            self._archive(len(line))
        os.write(self._descriptor, line)

    def _archive(self, more: int) -> None:
        with self._locked():
            try:
                now = os.stat(self.path)
            except FileNotFoundError:
                now = None
            mine = os.fstat(self._descriptor)
            if (
                now is not None
                and now.st_ino == mine.st_ino
                and now.st_size
                and now.st_size + more > self._file_bytes_max
            ):
                for number, archive in reversed(self._archives()):
                    os.rename(archive, self._archive_path(number + 1))
                os.rename(self.path, self._archive_path(1))
            os.close(self._descriptor)
            self._descriptor = self._open()
            self._prune()

    def prune(self) -> None:
        """Remove archives past their age or the total size, the oldest first; the active file is never removed."""
        with self._locked():
            self._prune()

    def _prune(self) -> None:
        oldest_kept = time.time() - self._retention
        total = max(os.stat(self.path).st_size, self._file_bytes_max)  # what it will have grown to
        for _, archive in self._archives():
            found = os.stat(archive)
            total += found.st_size
            if found.st_mtime < oldest_kept or (self._total_bytes_max and total > self._total_bytes_max):
                os.unlink(archive)

    def _archives(self) -> list[tuple[int, Path]]:
        """(number, path) of the archives, newest first."""
        found = [(path.suffix[1:], path) for path in self.path.parent.glob(f"{FILE_NAME}.*")]
        return sorted((int(suffix), path) for suffix, path in found if suffix.isdecimal())

    def _archive_path(self, number: int) -> Path:
        return self.path.with_name(f"{FILE_NAME}.{number}")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self.path.with_name(f".{FILE_NAME}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Close the file; another `write` is an error."""
        os.close(self._descriptor)


class Output:
    """Where lines go: standard output and, once there is one, the file."""

    def __init__(self, stream: TextIO | None = None, file: LogFile | None = None) -> None:
        self.file = file
        self.lost = 0
        """Lines that standard output or the file did not take."""
        self._stream = stream
        self._poll: select.poll | None = None
        self._watched = -1

    def msg(self, message: str) -> None:
        """Write one record, which has no line end yet. A full disk or a closed terminal costs the line, not the
        server.
        """
        line = message.encode("utf-8", "backslashreplace") + b"\n"
        if self.file is not None:
            try:
                self.file.write(line)
            except OSError:
                self.lost += 1
        self.say(line)

    def say(self, line: bytes) -> None:
        """Write a line to standard output alone, as it is."""
        try:
            self._to_stream(line)
        except (OSError, ValueError):
            self.lost += 1

    log = debug = info = warn = warning = error = critical = fatal = exception = failure = msg

    def _to_stream(self, line: bytes) -> None:
        stream = self._stream or sys.stdout
        try:
            descriptor = stream.fileno()
        except (OSError, AttributeError, ValueError):
            stream.write(line.decode("utf-8", "backslashreplace"))
            return
        stream.flush()
        pipe = not stat.S_ISREG(os.fstat(descriptor).st_mode)
        while line:
            if pipe and not self._writable(descriptor):
                self.lost += 1
                return
            line = line[os.write(descriptor, line[:PIPE_BYTES]) :]

    def _writable(self, descriptor: int) -> bool:
        if self._poll is None or self._watched != descriptor:
            self._poll, self._watched = select.poll(), descriptor
            self._poll.register(descriptor, select.POLLOUT)
        return any(event & select.POLLOUT for _, event in self._poll.poll(0))


def _show(value: object) -> str:
    if isinstance(value, bytes):
        value = value.hex()
    elif isinstance(value, float):
        value = f"{value:.6g}"
    text = str(value)
    return text if _BARE.fullmatch(text) else msgspec.json.encode(text).decode()


def render(_logger: object, method: str, record: Mapping[str, Any]) -> str:
    """The last processor: a record as its line. `node`, `shard` and `time` are taken out of the fields."""
    fields = dict(record)
    when = datetime.fromtimestamp(fields.pop("time", None) or time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    node, shard = fields.pop("node", None), fields.pop("shard", None)
    event = " ".join(str(fields.pop("event", "")).split())
    raised = fields.pop("exc_info", None)
    place = "" if node is None else f"node-{node} "
    place += f"shard-{shard}" if isinstance(shard, int) else str(shard or "main")
    shown = "".join(f" {name}={_show(value)}" for name, value in fields.items())
    line = f"{when} {_LABELS.get(method, method.upper()):>5} {place}: {event}{shown}"
    return line + _traceback(raised)


def _traceback(raised: object) -> str:
    if raised is True:
        raised = sys.exc_info()[1]
    if not isinstance(raised, BaseException):
        return ""
    lines = "".join(traceback.format_exception(raised)).rstrip().split("\n")
    return "".join(f"\n    {line}" for line in lines)


_output = Output()
_threshold = _LEVELS["info"]


def configure(
    config: Config, data: Path, environment: Mapping[str, str], stream: TextIO | None = None
) -> LogFile | None:
    """Open the logs of this node in `data`; processes that are forked afterwards share them.

    Args:
        config: ``system.logging`` decides.
        data: the data directory.
        environment: RUST_LOG wins over the level of the configuration.
        stream: standard output, for tests.

    Raises:
        OSError: the file cannot be opened.
    """
    global _output, _threshold
    wanted = log_level(environment.get("RUST_LOG", "")) or log_level(config.system.logging.level) or "info"
    _threshold = _LEVELS[wanted]
    file = None
    if config.system.logging.file_enabled:
        file = _open_file(config, data)
    _output = Output(stream, file)
    if config.system.logging.file_enabled and file is None:
        get_logger(None, "supervisor").warning("no space for the log file; logging to standard output only")
    return file


def _open_file(config: Config, data: Path) -> LogFile | None:
    """The file, or None on a full disk: a node has to start there too, so that it can be emptied."""
    try:
        file = LogFile(
            data / config.system.logging.path,
            file_bytes_max=config.system.logging.max_file_size,
            total_bytes_max=config.system.logging.max_total_size,
            retention=config.system.logging.retention,
        )
        file.prune()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return None
        raise
    return file


def get_logger(node: int | None, shard: int | str) -> Any:
    """A logger whose records carry the node and the shard (a number, or a name such as ``supervisor``).

    Its methods are ``debug``, ``info``, ``warning``, ``error`` and ``exception``, each with an event text and fields.
    """
    return structlog.wrap_logger(
        _output,
        processors=[render],
        wrapper_class=structlog.make_filtering_bound_logger(_threshold),
        context_class=dict,
        cache_logger_on_first_use=True,
    ).bind(node=node, shard=shard)


def say(text: str) -> None:
    """A plain line on standard output for the person who started the node; never blocks, never raises."""
    _output.say(text.encode("utf-8", "backslashreplace") + b"\n")


def report(logger: Any, notices: tuple[Notice, ...]) -> None:
    """Log what was met before logs were open."""
    for notice in notices:
        getattr(logger, notice.level)(notice.event, **notice.fields)
