"""Durable state: formats and their drivers. Each format is pure and apart from the driver that carries it to a
`Disk`."""
