"""Passwords: Argon2 hashes, made and checked in threads beside the pump.

An unknown user costs one verification of a dummy hash, so that the time of a refusal does not tell whether a name
exists (wire-protocol.md 3.2). At most `WORKERS` verifications run at a time: they are bound by memory and would starve
the shards of a small machine.
"""

from __future__ import annotations

import os

import trio
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from shardsrv.config_schema import Users

WORKERS = 2
USERNAME_LENGTH = range(3, 51)
PASSWORD_LENGTH = range(3, 101)
"""Bytes (wire-protocol.md 3.2)."""


class Passwords:
    """Hashes and verifies with the parameters of the configuration."""

    def __init__(self, affinity: frozenset[int], *, memory_kib: int, iterations: int, lanes: int) -> None:
        self._affinity = affinity
        self._hasher = PasswordHasher(time_cost=iterations, memory_cost=memory_kib, parallelism=lanes)
        self._dummy: str | None = None
        self._limiter: trio.CapacityLimiter | None = None

    def hash(self, password: str, salt: bytes | None = None) -> str:
        """The PHC string of a password, with a random ``salt`` unless one is given (16 bytes). Takes tens of
        milliseconds: call it in a thread or before the pump runs."""
        return self._hasher.hash(password, salt=salt)

    @classmethod
    def of(cls, affinity: frozenset[int], users: Users) -> Passwords:
        """With the parameters of the section ``users``."""
        return cls(
            affinity,
            memory_kib=users.argon2_memory // 1024,
            iterations=users.argon2_iterations,
            lanes=users.argon2_parallelism,
        )

    async def verify(self, stored: str | None, password: str) -> bool:
        """Whether ``password`` matches; ``stored`` None stands for an unknown user and always ends in False."""
        return await trio.to_thread.run_sync(self._verify, stored, password, limiter=self._limit())

    def _limit(self) -> trio.CapacityLimiter:
        """Made inside the trio run, which does not exist when the shard is built."""
        if self._limiter is None:
            self._limiter = trio.CapacityLimiter(WORKERS)
        return self._limiter

    async def change(self, stored: str | None, current: str, new: str) -> tuple[bool, str]:
        """(whether ``current`` matches ``stored``, the PHC string of ``new``). Without ``stored`` nothing is
        verified."""
        verified = stored is not None and await self.verify(stored, current)
        return verified, await trio.to_thread.run_sync(self._hash_unpinned, new, limiter=self._limit())

    def _hash_unpinned(self, password: str) -> str:
        os.sched_setaffinity(0, self._affinity)
        return self._hasher.hash(password)

    def _verify(self, stored: str | None, password: str) -> bool:
        os.sched_setaffinity(0, self._affinity)
        if self._dummy is None:
            self._dummy = self._hasher.hash("no user has this password")
        try:
            return self._hasher.verify(stored if stored is not None else self._dummy, password) and stored is not None
        except (VerificationError, InvalidHashError):
            return False


def plausible(username: str, password: str) -> bool:
    """Whether the lengths (bytes) are within the protocol's bounds; anything else counts as wrong credentials."""
    return len(username.encode()) in USERNAME_LENGTH and len(password.encode()) in PASSWORD_LENGTH
