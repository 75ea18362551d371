"""Quantities written as text: durations, byte sizes, expiries, core allocations, socket addresses.

Owns the text forms of the configuration and of topic options. Invariants: parsing is total (a value or `ValueError`
with a reason that can be shown), formatting and parsing are inverse, nothing here knows a key or a file.

Units inside the program: durations are float seconds, sizes are int bytes, expiries are int microseconds.
"""

from __future__ import annotations

import ipaddress
import re

import attrs

NEVER = 2**64 - 1
"""Expiry and size limit that never apply (the protocol's largest u64)."""

_NANOSECONDS = {
    **dict.fromkeys(("ns", "nsec", "nanos"), 1),
    **dict.fromkeys(("us", "usec", "micros", "µs"), 10**3),
    **dict.fromkeys(("ms", "msec", "millis"), 10**6),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 10**9),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60 * 10**9),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600 * 10**9),
    **dict.fromkeys(("d", "day", "days"), 86_400 * 10**9),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86_400 * 10**9),
}
_BYTES = {
    "": 1,
    "b": 1,
    **{unit: 1000 ** (power + 1) for power, unit in enumerate(("kb", "mb", "gb", "tb"))},
    **{unit: 1024 ** (power + 1) for power, unit in enumerate(("kib", "mib", "gib", "tib"))},
}
_DURATION_PART = re.compile(r"(\d+)\s*([a-zµ]+)\s*")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_ZERO_DURATIONS = ("0", "unlimited", "disabled", "none")
_NEVER_EXPIRIES = ("unlimited", "none", "never_expire", "never")
_DEFAULT_EXPIRIES = ("default", "server_default")


def parse_duration(value: object) -> float:
    """Seconds from text such as ``"1h 30m"``, ``"500ms"``, ``"7 days"``; ``"0"``, ``"none"``, ``"disabled"`` are zero.

    Raises:
        ValueError: not text (a number has no unit, except 0), an unknown unit, or more than 100 years.
    """
    if value == 0 and not isinstance(value, bool):
        return 0.0
    if not isinstance(value, str):
        raise ValueError('a duration is text with a unit, for example "30 s"')
    text = value.strip().lower()
    if text in _ZERO_DURATIONS:
        return 0.0
    total, at = 0, 0
    while at < len(text):
        part = _DURATION_PART.match(text, at)
        if part is None or part[2] not in _NANOSECONDS:
            raise ValueError('not a duration; write a number and a unit of ns, us, ms, s, m, h, d or w, as in "1h 30m"')
        total += int(part[1]) * _NANOSECONDS[part[2]]
        at = part.end()
    if not text:
        raise ValueError('a duration is empty; write for example "30 s"')
    if total > 100 * 366 * _NANOSECONDS["d"]:
        raise ValueError("a duration of more than 100 years")
    return total / 10**9


def format_duration(seconds: float) -> str:
    """Text that `parse_duration` reads back to the same nanosecond."""
    left = round(seconds * 10**9)
    parts = []
    for unit in ("d", "h", "m", "s", "ms", "us", "ns"):
        count, left = divmod(left, _NANOSECONDS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts) or "0"


def parse_size(value: object) -> int:
    """Bytes from an int, or text such as ``"64 MiB"`` (1024s), ``"500 MB"`` (1000s), ``"4096"``.

    Raises:
        ValueError: negative, an unknown unit, a fraction of a byte, or 2**63 and more.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str):
        match = _SIZE.fullmatch(value.strip().lower())
        if match is None or match[2] not in _BYTES:
            raise ValueError("not a size; write bytes, or a number and a unit of B, KB, KiB, MB, MiB, GB or GiB")
        whole, _, fraction = match[1].partition(".")
        scaled = int(whole + fraction) * _BYTES[match[2]]
        size, rest = divmod(scaled, 10 ** len(fraction))
        if rest:
            raise ValueError("a size that is not a whole number of bytes")
    else:
        raise ValueError('not a size; write for example "64 MiB"')
    if not 0 <= size < 2**63:
        raise ValueError("a size outside 0..2^63-1 bytes")
    return size


def format_size(size: int) -> str:
    """Text that `parse_size` reads back to the same number of bytes."""
    for unit in ("TiB", "TB", "GiB", "GB", "MiB", "MB", "KiB", "KB"):
        if size and size % _BYTES[unit.lower()] == 0:
            return f"{size // _BYTES[unit.lower()]} {unit}"
    return f"{size} B"


def parse_size_limit(value: object) -> int:
    """As `parse_size`, and ``"unlimited"`` or ``"none"`` for no limit (`NEVER`)."""
    if isinstance(value, str) and value.strip().lower() in ("unlimited", "none"):
        return NEVER
    return parse_size(value)


def format_size_limit(size: int) -> str:
    """Text that `parse_size_limit` reads back."""
    return "unlimited" if size == NEVER else format_size(size)


def parse_expiry(value: object) -> int:
    """Microseconds from a duration text; `NEVER` for ``"never_expire"``; 0 for ``"server_default"``.

    Raises:
        ValueError: as `parse_duration`, or more seconds than a u32 holds.
    """
    if isinstance(value, str):
        text = value.strip().lower()
        if text in _NEVER_EXPIRIES:
            return NEVER
        if text in _DEFAULT_EXPIRIES:
            return 0
    microseconds = round(parse_duration(value) * 10**6)
    if microseconds > (2**32 - 1) * 10**6:
        raise ValueError("an expiry of more than 2^32-1 seconds")
    return microseconds


def format_expiry(microseconds: int) -> str:
    """Text that `parse_expiry` reads back."""
    if microseconds == NEVER:
        return "never_expire"
    return format_duration(microseconds / 10**6) if microseconds else "server_default"


@attrs.frozen
class CpuAllocation:
    """Which cores the shards may use: exactly one of the fields says it, all unset means every core of the process.

    Fields: `count` cores, whichever; `first`..`last` (half open) by number; `nodes` of memory (NUMA) with at most
    `per_node` cores of each, one per physical core with `no_ht`.
    """

    count: int | None = None
    first: int | None = None
    last: int | None = None
    nodes: tuple[int, ...] | None = None
    per_node: int | None = None
    no_ht: bool = False
    text: str = "all"


_RANGE = re.compile(r"(\d+)\s*\.\.\s*(\d+)")


def parse_cpu_allocation(value: object) -> CpuAllocation:
    """``"all"``, N, ``"a..b"`` (b excluded), ``"numa:auto"``, ``"numa:nodes=0,1;cores=4;no_ht=true"``.

    Raises:
        ValueError: another form, an empty range, no cores, or more than 1024.
    """
    if (isinstance(value, int) and not isinstance(value, bool)) or (
        isinstance(value, str) and value.strip().isdecimal()
    ):
        count = int(value)
        if not 1 <= count <= 1024:
            raise ValueError("a number of cores outside 1..1024")
        return CpuAllocation(count=count, text=str(count))
    if not isinstance(value, str):
        raise ValueError('not an allocation; write "all", a number, "a..b" or "numa:auto"')
    text = value.strip().lower()
    if text in ("all", "numa:auto"):
        return CpuAllocation(text=text)
    match = _RANGE.fullmatch(text)
    if match is not None:
        first, last = int(match[1]), int(match[2])
        if not first < last <= 4096:
            raise ValueError("an empty or too wide range of cores; write first..last with last excluded, as in 0..4")
        return CpuAllocation(first=first, last=last, text=text)
    if text.startswith("numa:"):
        return _parse_numa(text)
    raise ValueError('not an allocation; write "all", a number, "a..b", "numa:auto" or "numa:nodes=0,1;cores=4"')


def _parse_numa(text: str) -> CpuAllocation:
    nodes: tuple[int, ...] | None = None
    per_node, no_ht = None, False
    for part in text.removeprefix("numa:").split(";"):
        name, _, given = (piece.strip() for piece in part.partition("="))
        if name == "nodes" and all(node.strip().isdecimal() for node in given.split(",")):
            nodes = tuple(int(node) for node in given.split(","))
        elif name == "cores" and given.isdecimal() and int(given):
            per_node = int(given)
        elif name == "no_ht" and given in ("true", "false"):
            no_ht = given == "true"
        else:
            raise ValueError(f"{part!r} is not part of a numa allocation; known are nodes=0,1, cores=4, no_ht=true")
    if nodes is None:
        raise ValueError('a numa allocation without nodes; write "numa:auto" or "numa:nodes=0,1"')
    return CpuAllocation(nodes=nodes, per_node=per_node, no_ht=no_ht, text=text)


def format_cpu_allocation(allocation: CpuAllocation) -> str:
    """The text it was read from, normalised."""
    return allocation.text


def parse_address(value: object) -> tuple[str, int]:
    """(IP, port) of ``"127.0.0.1:8090"`` or ``"[::1]:8090"``; port 0 lets the system choose.

    Raises:
        ValueError: not a literal IP with a port (host names are not looked up).
    """
    if not isinstance(value, str):
        raise ValueError('not an address; write "ip:port", for example "127.0.0.1:8090"')
    host, separator, port = value.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError('an IPv6 address is written in brackets, for example "[::1]:8090"')
    if not separator or not port.isdecimal() or int(port) > 65_535:
        raise ValueError('not an address; write "ip:port" with a port of 0..65535, for example "127.0.0.1:8090"')
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise ValueError(f"{host!r} is not a literal IP address; host names are not looked up") from None
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """Text that `parse_address` reads back."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
