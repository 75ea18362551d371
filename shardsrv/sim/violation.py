"""What an oracle raises."""

from __future__ import annotations


class Violation(Exception):
    """Something that must never happen has. The first argument names the oracle."""

    def __init__(self, oracle: str, text: str) -> None:
        super().__init__(f"{oracle}: {text}")
        self.oracle = oracle
        self.text = text
