"""`python -m shardsrv.sim`: see `shardsrv.sim.cli`."""

from shardsrv.sim.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
