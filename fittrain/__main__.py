"""`python -m fittrain` is the command `fittrain`."""

from fittrain.cli import main

if __name__ == "__main__":
    main(prog_name="fittrain")
