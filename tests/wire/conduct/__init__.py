"""Replay of recorded exchanges against a running server, and the comparison of what it answers.

``recording``   the recorded exchanges, read only
``replay``      makes logins and parents that an exchange needs, sends it, says what came back
``compare``     answers in one form, and where two of them differ
``deviations``  where the project answers differently on purpose, by class and with the reason

``python -m tests.wire.conduct HOST:PORT SOURCE`` replays one source against a server that just started empty.
"""
