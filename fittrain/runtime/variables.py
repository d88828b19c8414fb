"""Numbers out of a launcher's environment variables.

Owns the checks on one variable. Which variables belong to which launcher is in `launcher.py` and
`slurm.py`.

    whole_number({"PMI_RANK": "3"}, "PMI_RANK")     # 3
"""

from __future__ import annotations

from collections.abc import Mapping

from fittrain.errors import LaunchError


def whole_number(environ: Mapping[str, str], name: str) -> int:
    """Returns the variable as a number that is zero or more.

    Args:
        environ: The environment variables.
        name: The variable to read.

    Raises:
        LaunchError: The variable is missing, or is not a whole number >= 0.

    Example:
        >>> whole_number({"PMI_SIZE": "4"}, "PMI_SIZE")
        4
    """
    if name not in environ:
        raise LaunchError(
            f"`{name}` is missing although the same launcher's "
            f"{_siblings(environ, name)} is set: this is 1 process alone, which cannot tell its "
            "place among others. Start it with the launcher (`mpirun`, `srun`), or unset the "
            "launcher's variables to run one process."
        )
    text = environ[name].strip()
    # str.isdigit() alone also accepts digits such as "²", which int() refuses.
    if not (text.isascii() and text.isdigit()):
        raise LaunchError(
            f"`{name}` must be a whole number >= 0. Received {environ[name]!r}. The launcher sets "
            "it; do not set it by hand, and unset it to run one process."
        )
    return int(text)


def check_below(name: str, value: int, limit_name: str, limit: int) -> None:
    """Checks that a rank lies below the number of ranks.

    Raises:
        LaunchError: `value` is not below `limit`.

    Example:
        >>> check_below("PMI_RANK", 3, "PMI_SIZE", 4)
    """
    if value >= limit:
        raise LaunchError(
            f"`{name}` must be below `{limit_name}`. Received {name}={value} and "
            f"{limit_name}={limit}. Unset variables left over from another job, and start again."
        )


def _siblings(environ: Mapping[str, str], name: str) -> str:
    """The set variables of the launcher that `name` belongs to, as NAME=VALUE."""
    prefix = name.partition("_")[0] + "_"
    ranks = [
        f"{other}={value}"
        for other, value in sorted(environ.items())
        if other.startswith(prefix) and any(word in other for word in ("RANK", "SIZE", "PROC"))
    ]
    return ", ".join(ranks) or "other variable"
