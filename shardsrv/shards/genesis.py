"""How a cluster begins: every node makes the same state before the first entry, and can show that it did.

The root user is in no log entry, so each node makes it by itself: name and password come from the environment, the salt
of the hash from the names of cluster and user, and nothing from a clock. The digest of that state is kept in
``metadata/genesis`` (16 hex digits and a line end), written before the state: nodes compare it when they meet, since
entries applied to different beginnings would give different states for ever.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import attrs

from shardsrv._core import xxh3
from shardsrv.config import Config, root_credentials
from shardsrv.errors import Unreadable
from shardsrv.plane.metadata import snapshot
from shardsrv.plane.metadata.state import MetadataState
from shardsrv.shards.passwords import Passwords
from shardsrv.store.disk import Disk, read_all, replace_file
from shardsrv.store.layout import DataDirectory

FILE = "genesis"
_BYTES_MAX = 64


@attrs.frozen
class Genesis:
    """``digest`` of the state before the first entry; its snapshot ``payload`` on a node that has none yet."""

    digest: int
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
        return Genesis(_read(disk, path))
    credentials = root_credentials(environment, required=True)
    key = config.cluster.name.encode()[:64]
    salt = hashlib.blake2b(credentials.username.encode(), key=key, digest_size=16).digest()
    state = MetadataState.initial(credentials.username, passwords.hash(credentials.password, salt))
    payload = snapshot.encode(state, op=0, checksum=0, timestamp=0, created_at=0, client_table=[])
    made = Genesis(xxh3(payload), payload)
    replace_file(disk, directory.metadata, FILE, [f"{made.digest:016x}\n".encode()])
    return made


def _read(disk: Disk, path: str) -> int:
    """0 where the file is missing: a node that ran alone before, which its superblock says as well."""
    if not disk.exists(path):
        return 0
    text = read_all(disk, path, _BYTES_MAX)
    try:
        return int(text, 16)
    except ValueError as error:
        raise Unreadable(path, f"it is no digest: {error}") from error
