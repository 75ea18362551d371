"""Consensus: Viewstamped Replication as a pure state machine (events in, effects out)."""
