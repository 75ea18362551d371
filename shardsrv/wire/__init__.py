"""The protocol's vocabulary: frames, headers, requests, replies, batches and options as pure codecs.

Invariants: nothing here reads a clock, a socket or a file; every decoder takes a bounded buffer, refuses with a typed
error of shardsrv.errors, and allocates nothing before the length it depends on has been bounded. All integers are
little-endian; offsets and sizes are bytes; timestamps and durations are microseconds.

Nothing is imported here, so that a room pays only for the modules it names.
"""
