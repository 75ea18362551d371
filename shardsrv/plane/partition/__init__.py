"""The state machine of one partition: offsets of messages and consumers, deduplication, retention, checkpoint. Pure."""
