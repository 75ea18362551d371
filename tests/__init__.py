"""The tests of the project; a package so that they may share ``tests.support``."""
