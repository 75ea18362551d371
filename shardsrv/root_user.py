"""Name and password of the root user: where they come from and what they must be.

Invariants: both variables or none; a password is in no error and in no representation; on a data directory that has
users the stored ones win, so that these rules decide only about a user that has to be created. Source: the protocol's
reference.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Mapping, MutableMapping

import attrs

from shardsrv.config_sources import Notice
from shardsrv.errors import ConfigurationError


@attrs.frozen
class RootCredentials:
    """Name and password of the root user; `generated` ones are shown once, in a log line."""

    username: str
    password: str = attrs.field(repr=False)
    generated: bool = False


def root_credentials(
    environment: Mapping[str, str], *, required: bool = False, random: Callable[[int], str] | None = None
) -> RootCredentials:
    """Credentials of a root user that has to be created: IGGY_ROOT_USERNAME and IGGY_ROOT_PASSWORD, else generated.

    Args:
        environment: variables of the process.
        required: a cluster may not generate them, since every node must compute the same.
        random: maker of a password of that many characters, for tests.

    Raises:
        ConfigurationError: one without the other, a length outside 3..50 or 3..100 bytes, or both missing when
        required.
    """
    username, password = environment.get("IGGY_ROOT_USERNAME", ""), environment.get("IGGY_ROOT_PASSWORD", "")
    check_root_credentials(environment)
    if username and password:
        return RootCredentials(username, password)
    if required:
        raise ConfigurationError(
            "IGGY_ROOT_USERNAME", None, "a new cluster needs it and IGGY_ROOT_PASSWORD; set both on every node"
        )
    length = 20 + secrets.randbelow(20)
    return RootCredentials("iggy", (random or _random_password)(length), generated=True)


def check_root_credentials(environment: Mapping[str, str]) -> None:
    """The rules for the two variables, which hold at every start.

    Raises:
        ConfigurationError: as `root_credentials`; a password is never part of the error.
    """
    names = {"IGGY_ROOT_USERNAME": (3, 50), "IGGY_ROOT_PASSWORD": (3, 100)}
    given = {name: environment.get(name, "") for name in names}
    for name, other in (("IGGY_ROOT_USERNAME", "IGGY_ROOT_PASSWORD"), ("IGGY_ROOT_PASSWORD", "IGGY_ROOT_USERNAME")):
        if given[name] and not given[other]:
            reason = f"it is set but {other} is not; the root user credentials must be provided as a pair"
            raise ConfigurationError(name, "******", reason)
    for name, (lowest, highest) in names.items():
        length = len(given[name].encode())
        if given[name] and not lowest <= length <= highest:
            raise ConfigurationError(name, "******", f"it must be {lowest}..={highest} characters long; got {length}")


def set_default_root_credentials(environment: MutableMapping[str, str]) -> Notice:
    """Set user and password ``iggy`` where they are unset (for development); says what it did."""
    names = ("IGGY_ROOT_USERNAME", "IGGY_ROOT_PASSWORD")
    missing = [name for name in names if not environment.get(name)]
    for name in missing:
        environment[name] = "iggy"
    if missing:
        return Notice("warning", "The root user is iggy with password iggy if it is created now: for development only")
    return Notice("warning", "--with-default-root-credentials is ignored: the environment names the root user")


def _random_password(length: int) -> str:
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(length))
