"""``python -m shardsrv`` is the same as ``shardsrv``."""

from shardsrv.cli import main

if __name__ == "__main__":
    main(prog_name="shardsrv")
