"""The metadata state machine: streams, topics, partitions, consumer groups, users, permissions and their snapshot.

Invariants: pure and deterministic; entries applied in op order are the only thing that changes it. Entry point:
`plane`.
"""
