"""Which launcher started this process, and whether it fits the MPI library.

Owns the launchers' environment variables (Slurm's are in `slurm.py`) and the two checks that stop N
processes from training side by side as N jobs of one rank. Talks to no MPI: before MPI starts the
variables are the only source, afterwards MPI itself is asked and compared.

    launcher = detect(os.environ)
    check_library(launcher, MPI.Get_library_version())
    check_size(launcher, "mpi", MPI.COMM_WORLD.Get_size())
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fittrain.errors import LaunchError
from fittrain.runtime import slurm
from fittrain.runtime.variables import check_below, whole_number

_OPENMPI = (
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)
_MVAPICH = (
    "MV2_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_SIZE",
)
_HYDRA = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
# Not I_MPI_ROOT and the like: environment modules set those without any launcher.
_INTEL_MARKS = ("I_MPI_HYDRA_UUID", "I_MPI_MPIRUN", "HYDRA_BSTRAP_LOCALHOST")

_TITLES = {
    "openmpi": "Open MPI's `mpirun`",
    "mpich": "MPICH's `mpirun`",
    "intelmpi": "Intel MPI's `mpirun`",
    "mvapich": "MVAPICH's launcher",
    "slurm": "Slurm's `srun`",
}


@dataclass(frozen=True)
class Launcher:
    """Who started this process, and as which of how many ranks.

    Args:
        name: "openmpi", "mpich", "intelmpi", "mvapich", "slurm", or "none" when no launcher is
            recognised.
        rank: This process among all, from 0.
        size: Number of processes.
        local_rank: This process among those on its host, from 0.
        local_size: Number of processes on its host.

    Example:
        >>> Launcher("openmpi", rank=3, size=4, local_rank=1, local_size=2).title
        "Open MPI's `mpirun`"
    """

    name: str = "none"
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def title(self) -> str:
        """The name as messages write it."""
        return _TITLES.get(self.name, "no known launcher")


def detect(environ: Mapping[str, str]) -> Launcher:
    """Finds the launcher from the environment variables alone.

    Inside a Slurm allocation `mpirun` wins: its ranks see Slurm's variables too, which describe the
    allocation or the launcher's own daemons.

    Args:
        environ: The environment variables, usually `os.environ`.

    Raises:
        LaunchError: A launcher's variables are incomplete, not numbers, or contradict each other.

    Example:
        >>> detect({"PMI_RANK": "1", "PMI_SIZE": "2",
        ...         "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}).name
        'mpich'
    """
    if any(name in environ for name in _OPENMPI):
        return _from_variables("openmpi", _OPENMPI, environ)
    if any(name in environ for name in _MVAPICH):
        return _from_variables("mvapich", _MVAPICH, environ)
    if _is_hydra(environ):
        intel = any(name in environ for name in _INTEL_MARKS)
        return _from_variables("intelmpi" if intel else "mpich", _HYDRA, environ)
    if slurm.in_step(environ):
        return Launcher("slurm", *slurm.step_ranks(environ))
    return Launcher()


def _is_hydra(environ: Mapping[str, str]) -> bool:
    # `srun --mpi=pmi2` sets PMI_RANK and PMI_SIZE as well, but never Hydra's own two.
    names = _HYDRA[2:] if slurm.in_step(environ) else _HYDRA
    return any(name in environ for name in names)


def _from_variables(name: str, variables: tuple[str, ...], environ: Mapping[str, str]) -> Launcher:
    rank, size, local_rank, local_size = (whole_number(environ, each) for each in variables)
    check_below(variables[0], rank, variables[1], size)
    check_below(variables[2], local_rank, variables[3], local_size)
    return Launcher(name, rank, size, local_rank, local_size)


def check_library(launcher: Launcher, library_version: str) -> None:
    """Refuses a launcher that belongs to another family than the MPI library.

    MPICH, Intel MPI and MVAPICH understand each other's launchers; Open MPI and they do not. A
    library that is neither passes, since `check_size` will see whether it works. Call it before MPI
    starts (`mpi4py.rc.initialize = False`): MPICH's library aborts in MPI_Init under Open MPI's
    `mpirun`, with a message that helps nobody.

    Args:
        launcher: The result of `detect`.
        library_version: What the library says about itself, `MPI.Get_library_version()`.

    Raises:
        LaunchError: The launcher cannot start ranks of this library.

    Example:
        >>> check_library(Launcher("openmpi"), "Open MPI v5.0.11, package: ...")
    """
    library = library_version.strip("\0 \n").split("\n")[0].split(",")[0]
    is_openmpi = any(word in library_version for word in ("Open MPI", "Spectrum MPI"))
    is_mpich = any(word in library for word in ("MPICH", "Intel(R) MPI", "MVAPICH"))
    wrong = is_mpich if launcher.name == "openmpi" else is_openmpi
    if launcher.name in ("none", "slurm") or not wrong:
        return
    raise LaunchError(
        f"The launcher does not belong to the MPI library: {launcher.title} started this process, "
        f"but Python loaded {library!r}. Start it with the `mpirun` of that library (with pip's "
        "wheels it lies beside `python`), or install mpi4py and Horovod for the launcher's MPI."
    )


_REMEDIES = {
    "slurm": "Slurm and the MPI library did not meet: start with `srun --mpi=pmix` "
    "(`srun --mpi=list` shows what this Slurm offers; MPICH and Intel MPI also take "
    "`--mpi=pmi2`).",
    "horovod": "Horovod was built for another MPI than the launcher's: rebuild it with "
    "`fittrain horovod build`.",
}
_REMEDY = (
    "The launcher and the MPI library are not of the same MPI, or somebody set the launcher's "
    "variables by hand: use the `mpirun` of the MPI that Python loads (with pip's wheels it lies "
    "beside `python`)."
)


def check_size(launcher: Launcher, communicator_name: str, communicator_size: int) -> None:
    """Refuses a communicator that does not hold the ranks the launcher started.

    Without a recognised launcher there is nothing to compare, and the communicator is believed.

    Args:
        launcher: The result of `detect`.
        communicator_name: As in `backend=`, such as "horovod" or "mpi".
        communicator_size: How many ranks that communicator has.

    Raises:
        LaunchError: The two numbers differ.

    Example:
        >>> check_size(Launcher("openmpi", size=2, local_size=2), "mpi", 2)
    """
    if launcher.name == "none" or launcher.size == communicator_size:
        return
    remedy = _REMEDIES.get(launcher.name) or _REMEDIES.get(communicator_name, _REMEDY)
    raise LaunchError(
        "The launcher and the communicator disagree about the number of ranks: "
        f"{launcher.title} started {launcher.size}, but the communicator {communicator_name!r} of "
        f"rank {launcher.rank} has {communicator_size}; nothing was trained or written. {remedy}"
    )
