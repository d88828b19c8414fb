"""Variables of the programs that a build starts.

Owns which of the user's variables go through and which are ours. Horovod's build reads some thirty
`HOROVOD_*` variables; one left over in a shell would change the wheel behind the cache key's back,
so only those that say where things are pass.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

from fittrain.horovod.mpi_library import MpiLibrary

_KEPT_HOROVOD = (
    "HOROVOD_BUILD_ARCH_FLAGS",
    "HOROVOD_BUILD_CUDA_CC_LIST",
    "HOROVOD_CUDA_HOME",
    "HOROVOD_NCCL_HOME",
)
# A job's own variables would make a child believe that it is one of that job's ranks.
_DROPPED_PREFIXES = ("HOROVOD_", "OMPI_COMM_WORLD_", "PMIX_", "PMI_", "SLURM_PMI", "CMAKE_")
_SYSTEM_FOLDERS = ("/lib", "/usr/lib")


def base_environment() -> dict[str, str]:
    """Returns the user's variables, cleaned, with this Python's programs first in PATH."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT_HOROVOD or not name.startswith(_DROPPED_PREFIXES)
    }
    scripts = os.path.join(sys.prefix, "bin")
    kept["PATH"] = os.pathsep.join([scripts, kept.get("PATH", os.defpath)])
    # pip's default of five retries waits half a minute before it says that there is no network.
    kept.setdefault("PIP_RETRIES", "2")
    kept.update(PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1", PYTHONUNBUFFERED="1")
    return kept


def with_build_tools(environment: dict[str, str], tools: Path) -> dict[str, str]:
    """Adds a folder of build tools, made by `pip install --target`."""
    python_path = environment.get("PYTHONPATH")
    return {
        **environment,
        "PATH": os.pathsep.join([str(tools / "bin"), environment["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(tools), *([python_path] if python_path else [])]),
    }


def compile_variables(
    *, jobs: int, mpi: MpiLibrary, mpi_compiler: str, local_version: str, nccl: bool
) -> dict[str, str]:
    """Returns the variables of Horovod's own build.

    Args:
        jobs: Compilers at a time.
        mpi: The library that `mpi_compiler` links.
        mpi_compiler: `mpicxx`, as a path.
        local_version: What follows the `+` in the version.
        nccl: Whether NCCL's folder is on the library's search path.
    """
    return {
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_CPU_OPERATIONS": "MPI",
        "HOROVOD_LOCAL_VERSION": local_version,
        "MAKEFLAGS": f"-j{jobs}",
        "MPI_HOME": str(Path(mpi_compiler).parents[1]),
        "FITTRAIN_LIBRARY_PATHS": ";".join(library_paths(mpi, nccl=nccl)),
        # CMake 4 refuses the minimum that the Gloo of 2023 asks for, without this.
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        "CMAKE_GENERATOR": "Unix Makefiles",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


def library_paths(mpi: MpiLibrary, *, nccl: bool = False) -> list[str]:
    """Returns where the built library looks for others, relative to itself where that is possible.

    An MPI inside this Python environment is found again in any other environment; one of the
    system's own folders is found by the loader; any other keeps its folder.
    """
    place = Path(sysconfig.get_path("platlib")) / "horovod" / "tensorflow"
    paths = ["$ORIGIN/../../nvidia/nccl/lib"] if nccl else []
    prefix = Path(sys.prefix).resolve()
    folder = (mpi.path.parent if mpi.path is not None else prefix / "lib").resolve()
    if prefix in folder.parents and prefix in place.resolve().parents:
        paths.insert(0, "$ORIGIN/" + os.path.relpath(folder, place.resolve()))
    elif not str(folder).startswith(_SYSTEM_FOLDERS):
        paths.insert(0, str(folder))
    return paths


def job_variables() -> dict[str, str]:
    """Returns what a 2-rank job needs in containers, as root and on one core."""
    return {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
