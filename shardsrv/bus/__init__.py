"""Movement: shared memory, lanes, client sockets."""
