from pathlib import Path

import pytest

from fittrain.errors import BuildError
from fittrain.horovod import compile as compile_module
from fittrain.horovod.commands import Completed
from fittrain.horovod.compile import CompilePlan, compile_wheel
from fittrain.horovod.mpi_library import MpiLibrary
from fittrain.horovod.patches import CPU_PATCHES
from fittrain.horovod.requirements import Tools

MPI = MpiLibrary("Open MPI", "5.0.11", Path("/opt/mpi/lib/libmpi.so.40"))


@pytest.fixture
def plan(key, environment, tmp_path):
    tools = Tools("/usr/bin/c++", "/opt/mpi/bin/mpicxx", "/opt/mpi/bin/mpirun")
    return CompilePlan(key, tools, MPI, None, environment, 2, tmp_path / "logs")


@pytest.fixture
def scratch(tmp_path):
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


@pytest.fixture
def pip_wheel(monkeypatch, plan, scratch):
    """Stands in for the index and for `pip wheel`; keeps the variables that pip was given."""
    seen = {"makes": [f"horovod-{plan.key.version}-cp311-cp311-linux_x86_64.whl"], "exit_code": 0}

    def unpack(archive, folder):
        source = folder / "horovod-0.28.1"
        for patch in CPU_PATCHES:
            file = source / patch.path
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a") as stream:
                stream.write(patch.before)
        return source

    def run(command, environment, folder, progress):
        seen.update(environment=environment, folder=folder)
        (scratch / "wheel").mkdir()
        for name in seen["makes"]:
            (scratch / "wheel" / name).touch()
        return Completed(seen["exit_code"], "a.cc:1: error: no\nmake: *** Error 1\n")

    monkeypatch.setattr(compile_module, "linked_by", lambda *arguments: MPI)
    monkeypatch.setattr(compile_module, "install_build_tools", lambda *arguments: None)
    monkeypatch.setattr(compile_module, "fetch_sdist", lambda folder, *rest: folder / "h.tar.gz")
    monkeypatch.setattr(compile_module, "unpack", unpack)
    monkeypatch.setattr(compile_module, "run", run)
    return seen


def test_patched_source_is_built_and_its_wheel_returned(plan, scratch, progress, pip_wheel):
    wheel = compile_wheel(plan, scratch, progress)
    assert wheel.name == pip_wheel["makes"][0]
    text = (pip_wheel["folder"] / "horovod" / "tensorflow" / "CMakeLists.txt").read_text()
    assert "xla_mpi_ops.cc" not in text


def test_build_sees_our_tools_and_the_key(plan, scratch, progress, pip_wheel):
    compile_wheel(plan, scratch, progress)
    variables = pip_wheel["environment"]
    assert variables["HOROVOD_CMAKE"] == str(scratch / "tools" / "bin" / "cmake")
    assert variables["PYTHONPATH"] == str(scratch / "tools")
    assert variables["HOROVOD_LOCAL_VERSION"] == plan.key.local_version
    assert variables["FITTRAIN_LIBRARY_PATHS"] == "/opt/mpi/lib"
    assert "HOROVOD_GPU_OPERATIONS" not in variables


def test_temporary_files_of_pip_and_compiler_go_with_the_scratch(
    plan, scratch, progress, pip_wheel
):
    compile_wheel(plan, scratch, progress)
    assert Path(pip_wheel["environment"]["TMPDIR"]).parent == scratch


def test_compiler_error_is_shown_and_the_output_kept(plan, scratch, progress, pip_wheel):
    pip_wheel["exit_code"] = 1
    with pytest.raises(BuildError, match=r"(?s)Compiling Horovod failed.*a.cc:1: error: no"):
        compile_wheel(plan, scratch, progress)
    assert "make: ***" in (plan.log_folder / "last-failure.log").read_text()


def test_wheel_of_another_version_is_not_taken(plan, scratch, progress, pip_wheel):
    pip_wheel["makes"] = ["horovod-0.28.1-cp311-cp311-linux_x86_64.whl"]
    with pytest.raises(BuildError, match="left 0 wheels of version"):
        compile_wheel(plan, scratch, progress)


def test_other_mpi_stops_before_anything_is_fetched(plan, scratch, progress, monkeypatch):
    monkeypatch.setattr(
        compile_module, "linked_by", lambda *arguments: MpiLibrary("MPICH", "5.0.2")
    )
    monkeypatch.setattr(compile_module, "install_build_tools", None)
    with pytest.raises(BuildError, match="links MPICH 5.0.2, but mpi4py loads Open MPI 5.0.11"):
        compile_wheel(plan, scratch, progress)
