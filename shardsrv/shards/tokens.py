"""Personal access tokens on the node: how one is made, how it is recognised, and the task that removes expired ones.

Invariants: the text of a token exists in the reply that creates it and in the memory of that one request, nowhere else;
what is kept is its digest, BLAKE2b-256 as hex. A token has 400 random bits, so the digest needs neither salt nor key:
nobody finds the text by trying. Source: wire-messages.md 4.
"""

import base64
import hashlib
import secrets
import time
from collections.abc import Callable

import trio

from shardsrv.plane.metadata.plane import MetadataPlane
from shardsrv.shards.answers import NOBODY
from shardsrv.vsr.events import Request
from shardsrv.vsr.policy import PERSISTED
from shardsrv.wire.constants import ZERO_ID, Operation
from shardsrv.wire.users import DeletePersonalAccessToken

RANDOM_BYTES = 50


def mint() -> str:
    """The text of a new token."""
    return base64.b64encode(secrets.token_bytes(RANDOM_BYTES)).decode()


def digest(text: str) -> str:
    """What is kept of a token."""
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def expired(expiry_at: int, now: int) -> bool:
    """Whether a token that ends at ``expiry_at`` (microseconds, 0: never) has ended at ``now``."""
    return expiry_at != 0 and expiry_at <= now


class TokenCleaner:
    """Removes expired tokens on shard 0: an ordinary deletion in the name of the owner, from the node itself."""

    def __init__(
        self, plane: MetadataPlane, submit: Callable[[Request], None], step: Callable[..., None], interval: float
    ) -> None:
        self._plane = plane
        self._submit = submit
        self._step = step
        self._interval = interval

    async def run(self) -> None:
        """The task: until cancelled."""
        while True:
            await trio.sleep(self._interval)
            self._step(self.clean, time.time_ns() // 1000)

    def clean(self, now: int) -> None:
        """Ask for the deletion of every token that has ended at ``now`` (microseconds)."""
        for user in self._plane.state.ordered_users():
            for name in sorted(user.tokens):
                if expired(user.tokens[name].expiry_at, now):
                    body = DeletePersonalAccessToken(name).encode()
                    self._submit(
                        Request(
                            ZERO_ID,
                            0,
                            0,
                            Operation.DELETE_PERSONAL_ACCESS_TOKEN,
                            user.id,
                            0,
                            PERSISTED,
                            body,
                            NOBODY,
                            now,
                        )
                    )
