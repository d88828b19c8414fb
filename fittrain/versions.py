"""Versions of everything a result depends on, read without importing any of it."""

from __future__ import annotations

import platform
from importlib import metadata

from fittrain.version import __version__

PACKAGES = ("keras", "tensorflow", "tensorflow-cpu", "numpy", "horovod", "mpi4py")


def versions() -> dict[str, str]:
    """Name and version of fittrain, Python and the installed ones of `PACKAGES`."""
    found = {"fittrain": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
