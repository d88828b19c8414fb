import os
import sys
from pathlib import Path

import pytest

from fittrain.horovod import environment as environment_module
from fittrain.horovod.environment import (
    base_environment,
    compile_variables,
    library_paths,
    with_build_tools,
)
from fittrain.horovod.mpi_library import MpiLibrary


def test_programs_of_this_python_come_first(monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin")
    assert base_environment()["PATH"] == f"{sys.prefix}/bin{os.pathsep}/usr/bin"


@pytest.mark.parametrize(
    "name", ["HOROVOD_WITH_PYTORCH", "HOROVOD_GPU_OPERATIONS", "OMPI_COMM_WORLD_RANK", "PMI_RANK"]
)
def test_variable_that_would_change_the_build_is_dropped(monkeypatch, name):
    monkeypatch.setenv(name, "1")
    assert name not in base_environment()


@pytest.mark.parametrize("name", ["HOROVOD_CUDA_HOME", "PIP_INDEX_URL", "OMPI_MCA_btl", "CXX"])
def test_variable_that_says_where_things_are_is_kept(monkeypatch, name):
    monkeypatch.setenv(name, "x")
    assert base_environment()[name] == "x"


def test_build_tools_come_before_the_users_packages(tmp_path):
    variables = with_build_tools({"PATH": "/usr/bin", "PYTHONPATH": "/mine"}, tmp_path)
    assert variables["PYTHONPATH"] == f"{tmp_path}{os.pathsep}/mine"
    assert variables["PATH"] == f"{tmp_path}/bin{os.pathsep}/usr/bin"


@pytest.fixture
def prefix(monkeypatch, tmp_path):
    monkeypatch.setattr(environment_module.sys, "prefix", str(tmp_path))
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    monkeypatch.setattr(environment_module.sysconfig, "get_path", lambda name: str(site))
    return tmp_path


def test_mpi_inside_this_python_is_found_relative_to_the_wheel(prefix):
    mpi = MpiLibrary("Open MPI", "5.0.11", prefix / "lib" / "libmpi.so.40")
    assert library_paths(mpi) == ["$ORIGIN/../../../.."]
    assert library_paths(mpi, nccl=True)[1:] == ["$ORIGIN/../../nvidia/nccl/lib"]


def test_mpi_of_the_site_keeps_its_folder(prefix):
    mpi = MpiLibrary("Open MPI", "4.1.6", Path("/opt/mpi/lib/libmpi.so.40"))
    assert library_paths(mpi) == ["/opt/mpi/lib"]


def test_mpi_of_the_system_is_left_to_the_loader(prefix):
    mpi = MpiLibrary("Open MPI", "4.1.4", Path("/usr/lib/x86_64-linux-gnu/libmpi.so.40"))
    assert library_paths(mpi) == []


def test_horovod_is_told_to_fail_rather_than_to_skip(prefix):
    mpi = MpiLibrary("MPICH", "5.0.2", prefix / "lib" / "libmpi.so.12")
    variables = compile_variables(
        jobs=3, mpi=mpi, mpi_compiler="/opt/bin/mpicxx", local_version="fittrain.0", nccl=False
    )
    expected = {
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_CPU_OPERATIONS": "MPI",
        "MAKEFLAGS": "-j3",
        "MPI_HOME": "/opt",
        "HOROVOD_LOCAL_VERSION": "fittrain.0",
    }
    assert expected.items() <= variables.items()
