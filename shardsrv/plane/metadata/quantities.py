"""Durations and sizes as people write them: "7 days", "1h 30m", "128 MiB", "1.5GB", and the words for limits.

Source: the option catalogue. Results are u64 microseconds or bytes; 0 means the server's default, UNLIMITED never or no
limit. Invariants: exact integer arithmetic, no floats; what does not parse, or does not fit in a u64, raises
ValueError.
"""

from __future__ import annotations

import re
from typing import Final

from shardsrv.wire.constants import UNLIMITED

SERVER_DEFAULT: Final = 0

_SECOND: Final = 1_000_000_000
_NANOSECONDS: Final[dict[str, int]] = {
    name: length
    for length, names in (
        (1, ("ns", "nsec", "nanos")),
        (1_000, ("us", "usec", "micros")),
        (1_000_000, ("ms", "msec", "millis")),
        (_SECOND, ("s", "sec", "secs", "second", "seconds")),
        (60 * _SECOND, ("m", "min", "mins", "minute", "minutes")),
        (3_600 * _SECOND, ("h", "hr", "hrs", "hour", "hours")),
        (86_400 * _SECOND, ("d", "day", "days")),
        (7 * 86_400 * _SECOND, ("w", "wk", "wks", "week", "weeks")),
        (2_630_016 * _SECOND, ("M", "month", "months")),
        (31_557_600 * _SECOND, ("y", "yr", "yrs", "year", "years")),
    )
    for name in names
}
"""A month is 30.44 days, a year 365.25 days; `M` and `m` differ."""

_DURATION: Final = re.compile(r"\s*([0-9]+)\s*([A-Za-z]+)\s*")
_SIZE: Final = re.compile(r"\s*([0-9]+)(?:\.([0-9]+))?\s*(?:([kmgtpe])(i?)b?|b)?\s*", re.IGNORECASE)
_EXPIRY_WORDS: Final = {
    "never_expire": UNLIMITED,
    "none": UNLIMITED,
    "unlimited": UNLIMITED,
    "server_default": SERVER_DEFAULT,
    "0": SERVER_DEFAULT,
}
_SIZE_WORDS: Final = {"unlimited": UNLIMITED, "server_default": SERVER_DEFAULT}
_POWERS: Final = "kmgtpe"


def parse_duration(text: str) -> int:
    """Microseconds of "2h", "7 days", "1day 12h": whole numbers with units, added up and cut to microseconds."""
    nanoseconds, position = 0, 0
    while position < len(text):
        found = _DURATION.match(text, position)
        if found is None or found[2] not in _NANOSECONDS:
            raise ValueError("not a duration")
        nanoseconds += int(found[1]) * _NANOSECONDS[found[2]]
        position = found.end()
    if position == 0:
        raise ValueError("not a duration")
    return _bounded(nanoseconds // 1000)


def parse_expiry(text: str) -> int:
    """Microseconds, or a word: never_expire, none, unlimited; server_default, 0."""
    word = _EXPIRY_WORDS.get(text.strip().lower())
    return parse_duration(text) if word is None else word


def parse_size(text: str) -> int:
    """Bytes of "2097152", "2MiB" (powers of 1024), "10 GB" (powers of 1000), "1.5 GiB"; a part of a byte is cut."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ValueError("not a size in bytes")
    whole, fraction, power, binary = found.groups()
    unit = (1024 if binary else 1000) ** (_POWERS.index(power.lower()) + 1) if power else 1
    size = int(whole) * unit
    if fraction:
        size += int(fraction) * unit // 10 ** len(fraction)
    return _bounded(size)


def parse_size_limit(text: str) -> int:
    """Bytes, or a word: unlimited; server_default."""
    word = _SIZE_WORDS.get(text.strip().lower())
    return parse_size(text) if word is None else word


def _bounded(value: int) -> int:
    if value > UNLIMITED:
        raise ValueError("does not fit in 64 bits")
    return value
