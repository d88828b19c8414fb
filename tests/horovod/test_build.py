import tempfile

import pytest

from fittrain.errors import BuildError
from fittrain.horovod import build as build_module
from fittrain.horovod.build import BuildOptions, build
from fittrain.horovod.mpi_library import MpiLibrary
from fittrain.horovod.requirements import Package, Tools
from fittrain.horovod.wheel_cache import WheelCache


class Machine:
    """Stands in for compiler, pip and mpirun; notes what is asked of it."""

    def __init__(self, wheel):
        self.wheel = wheel
        self.asked = []
        self.installed = None
        self.failing = ()

    def compile(self, plan, scratch, progress):
        self._ask("compile")
        made = scratch / self.wheel.name
        made.write_bytes(self.wheel.read_bytes())
        self.scratch = scratch
        return made

    def install(self, wheel, environment, progress, log_folder):
        self._ask("install")
        self.installed = self.version

    def uninstall(self, environment):
        self._ask("uninstall")
        self.installed = None

    def prove(self, launcher, environment, progress, log_folder):
        self._ask("prove")
        return "2 ranks on CPU gave the known answer"

    def _ask(self, what):
        self.asked.append(what)
        if what in self.failing:
            raise self.failing[what]


@pytest.fixture
def machine(monkeypatch, key, wheel):
    made = Machine(wheel)
    made.version = key.version
    tensorflow, mpi = Package("tensorflow-cpu", "2.21.0"), MpiLibrary("Open MPI", "5.0.11")
    stack = build_module._Stack(tensorflow, mpi, None, key)
    replaced = {
        "_look": lambda environment, gpu: stack,
        "find_tools": lambda environment: Tools("c++", "mpicxx", "mpirun"),
        "installed": lambda name: made.installed and Package(name, made.installed),
        "require_horovod": lambda: None,
        "require_room": lambda folder, megabytes, variable: None,
        "compile_wheel": made.compile,
        "install_wheel": made.install,
        "uninstall": made.uninstall,
        "prove": made.prove,
    }
    for name, function in replaced.items():
        monkeypatch.setattr(build_module, name, function)
    return made


@pytest.fixture
def cache(tmp_path):
    return WheelCache(tmp_path / "cache")


def test_first_call_compiles_installs_and_proves(machine, cache, key):
    result = build(BuildOptions(), cache=cache)
    assert machine.asked == ["compile", "install", "prove"]
    assert (result.action, result.version) == ("built", key.version)
    assert cache.is_proved(key)


def test_second_call_does_nothing(machine, cache):
    build(BuildOptions(), cache=cache)
    machine.asked.clear()
    assert build(BuildOptions(), cache=cache).action == "already installed"
    assert machine.asked == []


def test_other_environment_takes_the_wheel_from_the_cache(machine, cache):
    build(BuildOptions(), cache=cache)
    machine.asked.clear()
    machine.installed = None
    assert build(BuildOptions(), cache=cache).action == "installed from the cache"
    assert machine.asked == ["install", "prove"]


@pytest.mark.parametrize("other", ["0.28.1", "0.28.1+fittrain.000000000000"])
def test_horovod_of_another_key_is_replaced(machine, cache, other):
    build(BuildOptions(), cache=cache)
    machine.asked.clear()
    machine.installed = other
    build(BuildOptions(), cache=cache)
    assert machine.asked == ["install", "prove"]


def test_force_does_everything_again(machine, cache):
    build(BuildOptions(), cache=cache)
    machine.asked.clear()
    build(BuildOptions(force=True), cache=cache)
    assert machine.asked == ["compile", "install", "prove"]


def test_call_interrupted_before_the_proof_is_proved_by_the_next(machine, cache):
    machine.failing = {"prove": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        build(BuildOptions(), cache=cache)
    machine.failing = ()
    machine.asked.clear()
    build(BuildOptions(), cache=cache)
    assert machine.asked == ["install", "prove"]


def test_failed_compilation_installs_nothing_and_leaves_no_scratch(
    machine, cache, key, tmp_path, monkeypatch
):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    machine.failing = {"compile": BuildError("Compiling Horovod failed.")}
    with pytest.raises(BuildError, match="Compiling"):
        build(BuildOptions(), cache=cache)
    assert machine.asked == ["compile"]
    assert cache.find(key) is None
    assert list(scratch.iterdir()) == []


def test_full_disk_while_compiling_is_said(machine, cache):
    machine.failing = {"compile": OSError(28, "No space left on device", "/tmp/x")}
    with pytest.raises(BuildError, match="The disk is full"):
        build(BuildOptions(), cache=cache)


def test_failed_proof_takes_the_package_and_the_wheel_out_again(machine, cache, key):
    machine.failing = {"prove": BuildError("The 2-rank proof gave a wrong answer.")}
    with pytest.raises(BuildError, match=r"(?s)wrong answer.*Horovod was uninstalled again"):
        build(BuildOptions(), cache=cache)
    assert machine.asked == ["compile", "install", "prove", "uninstall"]
    assert machine.installed is None
    assert cache.find(key) is None


def test_cache_that_cannot_be_written_is_said_before_compiling(machine, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match=r"\(the wheel cache\) cannot be written"):
        build(BuildOptions(), cache=WheelCache(tmp_path / "file" / "cache"))
    assert machine.asked == []


def test_wheel_dir_gets_a_copy_each_time(machine, cache, tmp_path):
    first = build(BuildOptions(wheel_dir=tmp_path / "a"), cache=cache)
    second = build(BuildOptions(wheel_dir=tmp_path / "b"), cache=cache)
    assert first.wheel.read_bytes() == second.wheel.read_bytes() == machine.wheel.read_bytes()
    assert second.action == "already installed"


def test_wheel_dir_that_cannot_be_written_is_said_before_compiling(machine, cache, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="`--wheel-dir`"):
        build(BuildOptions(wheel_dir=tmp_path / "file" / "wheels"), cache=cache)
    assert machine.asked == []
