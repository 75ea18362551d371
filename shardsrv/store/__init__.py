"""Durable things: the prepare log, superblock, group table, boot record, snapshot and checkpoint."""
