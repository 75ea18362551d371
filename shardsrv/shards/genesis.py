"""How a cluster begins: every node makes the same state before the first entry, and can show that it did.

The root user is in no log entry, so each node makes it by itself: name and password come from the environment, the salt
of the hash from the names of cluster and user, and nothing from a clock. The digest of that state is kept in
``metadata/genesis``, written before the state: nodes compare it when they meet, since entries applied to different
beginnings would give different states for ever. Beside it stands a number drawn when the directory was made, by which
the other nodes know it (16 hex digits and a line end each); one that was begun anew has its number from
`shards.rejoin`. Theirs are in ``metadata/births`` (lines of replica id and number).
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping

import attrs

from shardsrv._core import xxh3
from shardsrv.config import Config, root_credentials
from shardsrv.errors import Unreadable
from shardsrv.plane.metadata import snapshot
from shardsrv.plane.metadata.state import MetadataState
from shardsrv.shards.passwords import Passwords
from shardsrv.shards.rejoin import forgotten_birth
from shardsrv.store.disk import Disk, read_all, replace_file
from shardsrv.store.layout import DataDirectory

FILE = "genesis"
BIRTHS = "births"
_BYTES_MAX = 64


@attrs.frozen
class Genesis:
    """``digest`` of the state before the first entry; its snapshot ``payload`` on a node that has none yet."""

    digest: int
    birth: int
    payload: bytes | None = attrs.field(default=None, repr=False)


def genesis_of(disk: Disk, data: str, config: Config, environment: Mapping[str, str], passwords: Passwords) -> Genesis:
    """The beginning of this node's cluster; made from the environment where the node never ran.

    Raises:
        ConfigurationError: the node never ran, and the environment names no root user.
        Unreadable, DiskFault: the file cannot be read or written.
    """
    directory = DataDirectory(data)
    path = f"{directory.metadata}/{FILE}"
    if disk.exists(directory.snapshot):
        return Genesis(*_read(disk, path))
    anew = forgotten_birth(disk, directory)
    payload = first_payload(config, environment, passwords)
    birth = anew if anew is not None else secrets.randbits(63) or 1
    made = Genesis(xxh3(payload), birth, payload)
    replace_file(disk, directory.metadata, FILE, [f"{made.digest:016x}\n{made.birth:016x}\n".encode()])
    return made


def first_payload(config: Config, environment: Mapping[str, str], passwords: Passwords) -> bytes:
    """The snapshot of op 0: the same bytes on every node. Raises `ConfigurationError` when the environment names no
    root user."""
    credentials = root_credentials(environment, required=True)
    key = config.cluster.name.encode()[:64]
    salt = hashlib.blake2b(credentials.username.encode(), key=key, digest_size=16).digest()
    state = MetadataState.initial(credentials.username, passwords.hash(credentials.password, salt))
    return snapshot.encode(state, op=0, checksum=0, timestamp=0, created_at=0, client_table=[])


def _read(disk: Disk, path: str) -> tuple[int, int]:
    """(digest, birth); zeros where the file is missing: a node that ran alone before, which its superblock says."""
    if not disk.exists(path):
        return 0, 0
    text = read_all(disk, path, _BYTES_MAX)
    try:
        digest, birth = (int(line, 16) for line in text.split())
    except ValueError as error:
        raise Unreadable(path, f"it is no digest and number: {error}") from error
    return digest, birth


def read_births(disk: Disk, data: str) -> dict[int, int]:
    """The other nodes' numbers by replica id. Raises `Unreadable`: who may join is then not known."""
    path = f"{DataDirectory(data).metadata}/{BIRTHS}"
    if not disk.exists(path):
        return {}
    try:
        rows = [line.split() for line in read_all(disk, path, _BYTES_MAX * 64).decode().splitlines()]
        return {int(replica): int(birth, 16) for replica, birth in rows}
    except ValueError as error:
        raise Unreadable(path, f"it is no list of births: {error}") from error


def write_births(disk: Disk, data: str, births: Mapping[int, int]) -> None:
    """Keep them, durably. Raises `DiskFault`."""
    lines = [f"{replica} {birth:016x}\n".encode() for replica, birth in sorted(births.items())]
    replace_file(disk, DataDirectory(data).metadata, BIRTHS, lines)
