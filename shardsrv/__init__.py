"""shardsrv: a clustered, persistent message-streaming server that speaks the Apache Iggy protocol."""

__version__ = "0.1.0"
