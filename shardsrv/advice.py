"""Errors as one sentence for a person: what is wrong, where, and the way out.

Owns the wording for faults that the operator or the disk has caused; the facts come from the error's fields.
Invariant: the result is one line. Every other error keeps its own text and its class in front.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardsrv import errors as e


def _configuration(error: e.ConfigurationError) -> str:
    value = "" if error.value is None else f" = {error.value!r}"
    return f"configuration {error.key}{value} cannot be used: {error.reason}"


def _locked(error: e.DataDirectoryLocked) -> str:
    holder = f"process {error.pid}" if error.pid else "another process"
    return f"the data directory {error.path} is in use by {holder}; stop it, or give this one another --data"


def _foreign(error: e.DataDirectoryForeign) -> str:
    found = f" (it holds {error.found!r}, expected {error.expected!r})" if error.found or error.expected else ""
    return (
        f"the data directory {error.path} is not this node's{found}; give an empty directory or the right one with"
        " --data; nothing in it was touched"
    )


def _port(error: e.PortInUse) -> str:
    return (
        f"the address {error.address} port {error.port} is in use; stop the program that listens there, or set another"
        " with IGGY_TCP_ADDRESS or tcp.address"
    )


def _descriptors(error: e.TooFewDescriptors) -> str:
    return (
        f"{error.needed} file descriptors are needed and at most {error.limit} are allowed; raise the hard limit"
        " (ulimit -Hn, LimitNOFILE) or lower limits.connections_max"
    )


def _loop(error: e.CrashLoop) -> str:
    return (
        f"the node died {error.deaths} times within {error.seconds:g} s ({error.cause}) and is not started again; the"
        " log says more, and the data is as the last start left it"
    )


def _full(error: e.DiskFull) -> str:
    return (
        f"the disk of {error.path} is full ({error.available} bytes left, {error.needed} needed); free some space"
        " and start again"
    )


def _sync(error: e.SyncFailed) -> str:
    return f"syncing {error.path} failed (errno {error.errno}); check the disk before starting again"


def _damaged(error: e.Damaged) -> str:
    op = "" if error.op is None else f", op {error.op}"
    return (
        f"{error.path} is damaged at byte {error.offset}{op} (expected {error.expected!r}, found {error.found!r}); it"
        " is left as it is: look with `shardsrv verify`, restore it from a copy, or start on another directory"
    )


def _unreadable(error: e.Unreadable) -> str:
    errno = "" if error.errno is None else f", errno {error.errno}"
    return (
        f"{error.path} cannot be read ({error.reason}{errno}); it is left as it is: check its permissions and the disk"
    )


def _version(error: e.UnsupportedVersion) -> str:
    return (
        f"{error.path} has version {error.found} of the format {error.what!r} and this release reads {error.lowest} to"
        f" {error.highest}; start the release that wrote it"
    )


_WORDING: dict[type[e.ShardsrvError], Callable[[Any], str]] = {
    e.ConfigurationError: _configuration,
    e.DataDirectoryLocked: _locked,
    e.DataDirectoryForeign: _foreign,
    e.PortInUse: _port,
    e.TooFewDescriptors: _descriptors,
    e.CrashLoop: _loop,
    e.DiskFull: _full,
    e.SyncFailed: _sync,
    e.Damaged: _damaged,
    e.Unreadable: _unreadable,
    e.UnsupportedVersion: _version,
}


def advice(error: BaseException) -> str:
    """One line about `error`, for standard error, a log, or the control channel."""
    wording = _WORDING.get(type(error))  # type: ignore[arg-type]
    if wording is not None:
        text = wording(error)
    elif isinstance(error, e.DiskFault | e.OperatorFault):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error}"
    return " ".join(text.split())
