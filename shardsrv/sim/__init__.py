"""The simulator: the deciding code of the server and its storage formats on a simulated disk, network and clock.

One seed decides a whole run: `python -m shardsrv.sim --seed N`. Nothing of the server imports this room.
"""
