"""Replicated state machines: metadata and partitions. Pure: no clock, socket, file or randomness."""
