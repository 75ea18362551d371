"""Randomness of a run: one independent stream a concern, all drawn from the seed.

A draw that is added to one concern does not move the others, so that a seed keeps its meaning while the simulator
grows.
"""

from __future__ import annotations

from random import Random


class Chance:
    """`stream(name)` gives the generator of a concern; the same seed and name give the same numbers, in any process."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def stream(self, name: str) -> Random:
        """A new generator. Text seeds are hashed by the generator itself, without the interpreter's hash of text."""
        return Random(f"{self.seed}/{name}")


def exponential(random: Random, mean: float) -> int:
    """Microseconds with mean ``mean``, at least 1."""
    return 1 + int(random.expovariate(1.0 / mean)) if mean > 0 else 1
