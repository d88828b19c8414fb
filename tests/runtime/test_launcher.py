"""Launcher detection and the checks against the MPI library."""

import pytest

from fittrain.errors import LaunchError
from fittrain.runtime.launcher import Launcher, check_library, check_size, detect

from .environments import (
    HYDRA,
    INTEL,
    MVAPICH,
    OPENMPI,
    SLURM_BATCH,
    SLURM_SALLOC,
    SLURM_SHELL_STEP,
    SRUN,
    SRUN_PMI2,
    SRUN_PMIX,
)

OPEN_MPI = "Open MPI v5.0.11, package: Open MPI user@localhost Distribution, ident: 5.0.11\0"
MPICH = "MPICH Version:      5.0.2\nMPICH Release date: Fri Sep 25 20:45:26 UTC 2026\n"
INTEL_MPI = "Intel(R) MPI Library 2021.18.1 for Linux* OS\n"


def ranks(name: str) -> Launcher:
    return Launcher(name, rank=1, size=2, local_rank=1, local_size=2)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({}, Launcher(), id="alone"),
        pytest.param(OPENMPI, ranks("openmpi"), id="openmpi"),
        pytest.param(HYDRA, ranks("mpich"), id="mpich"),
        pytest.param(INTEL, ranks("intelmpi"), id="intelmpi"),
        pytest.param(MVAPICH, ranks("mvapich"), id="mvapich"),
        pytest.param({"I_MPI_ROOT": "/opt/intel"}, Launcher(), id="intel module, no launcher"),
        pytest.param(HYDRA | {"I_MPI_ROOT": "/opt/intel"}, ranks("mpich"), id="mpich, module"),
    ],
)
def test_detect_reads_what_real_launchers_set(environ, expected):
    assert detect(environ) == expected


@pytest.mark.parametrize("environ", [SRUN, SRUN_PMIX, SRUN_PMI2], ids=["none", "pmix", "pmi2"])
def test_detect_reads_a_job_step_of_srun(environ):
    assert detect(environ) == Launcher("slurm", rank=6, size=7, local_rank=2, local_size=3)


@pytest.mark.parametrize("environ", [SLURM_BATCH, SLURM_SALLOC, SLURM_SHELL_STEP])
def test_an_allocation_without_srun_launched_nothing(environ):
    assert detect(environ) == Launcher()


@pytest.mark.parametrize("around", [SLURM_BATCH, SLURM_SALLOC, SRUN])
@pytest.mark.parametrize(
    ("inner", "name"), [(OPENMPI, "openmpi"), (HYDRA, "mpich"), (INTEL, "intelmpi")]
)
def test_mpirun_wins_inside_a_slurm_allocation(around, inner, name):
    assert detect(around | inner) == ranks(name)


@pytest.mark.parametrize("environ", [OPENMPI, HYDRA, MVAPICH])
@pytest.mark.parametrize("ending", ["RANK", "SIZE"])
def test_detect_names_a_missing_variable(environ, ending):
    missing = next(name for name in environ if name.endswith((f"WORLD_{ending}", f"PMI_{ending}")))
    half = {name: value for name, value in environ.items() if name != missing}
    with pytest.raises(LaunchError, match=f"`{missing}` is missing"):
        detect(half)


def test_detect_refuses_a_size_set_by_hand():
    with pytest.raises(LaunchError, match="`OMPI_COMM_WORLD_RANK` is missing"):
        detect({"OMPI_COMM_WORLD_SIZE": "4"})


@pytest.mark.parametrize("text", ["four", "-1", "", "1.0", "²"])
def test_detect_names_a_variable_that_is_no_number(text):
    with pytest.raises(LaunchError, match="`PMI_SIZE` must be a whole number >= 0. Received"):
        detect(HYDRA | {"PMI_SIZE": text})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"PMI_RANK": "2"}, "`PMI_RANK` must be below `PMI_SIZE`"),
        ({"PMI_SIZE": "0"}, "`PMI_RANK` must be below `PMI_SIZE`. .*PMI_SIZE=0"),
        ({"MPI_LOCALRANKID": "5"}, "`MPI_LOCALRANKID` must be below `MPI_LOCALNRANKS`"),
    ],
)
def test_detect_refuses_ranks_beyond_the_size(changed, message):
    with pytest.raises(LaunchError, match=message):
        detect(HYDRA | changed)


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("openmpi", OPEN_MPI),
        ("openmpi", "IBM Spectrum MPI, Open MPI v4.0.1"),
        ("mpich", MPICH),
        ("mpich", INTEL_MPI),
        ("intelmpi", MPICH),
        ("mvapich", "MVAPICH2 Version:\t2.3.7"),
        ("slurm", OPEN_MPI),
        ("slurm", MPICH),
        ("none", OPEN_MPI),
        ("openmpi", "A library nobody knows"),
    ],
)
def test_check_library_accepts_what_works_together(name, library):
    check_library(ranks(name), library)


@pytest.mark.parametrize(
    ("name", "library", "both"),
    [
        ("openmpi", MPICH, r"Open MPI's `mpirun` .* 'MPICH Version:"),
        ("openmpi", INTEL_MPI, r"Open MPI's `mpirun` .* 'Intel\(R\) MPI Library 2021"),
        ("mpich", OPEN_MPI, r"MPICH's `mpirun` .* 'Open MPI v5.0.11'"),
        ("intelmpi", OPEN_MPI, r"Intel MPI's `mpirun` .* 'Open MPI v5.0.11'"),
        ("mvapich", OPEN_MPI, r"MVAPICH's launcher .* 'Open MPI v5.0.11'"),
    ],
)
def test_check_library_names_launcher_library_and_fix(name, library, both):
    with pytest.raises(LaunchError, match=both + r".* Start it with the `mpirun` of that library"):
        check_library(ranks(name), library)


def test_check_size_accepts_equal_sizes():
    check_size(ranks("openmpi"), "mpi", 2)


def test_check_size_believes_the_communicator_without_a_launcher():
    check_size(Launcher(), "mpi", 4)


@pytest.mark.parametrize(
    ("name", "communicator", "remedy"),
    [
        ("openmpi", "mpi", "use the `mpirun` of the MPI that Python loads"),
        ("mpich", "mpi", "use the `mpirun` of the MPI that Python loads"),
        ("slurm", "mpi", "start with `srun --mpi=pmix`"),
        ("openmpi", "horovod", "rebuild it with `fittrain horovod build`"),
    ],
)
def test_check_size_names_both_numbers_and_the_remedy(name, communicator, remedy):
    with pytest.raises(LaunchError, match=rf"started 2, but .*'{communicator}'.* has 1;.*{remedy}"):
        check_size(ranks(name), communicator, 1)
