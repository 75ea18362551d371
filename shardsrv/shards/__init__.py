"""Processes: supervisor, shard, router, reconciler."""
