"""What the tests of a running node share: a node that is started and stopped, and a client that speaks to it."""
