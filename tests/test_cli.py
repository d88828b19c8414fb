import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import fittrain
from fittrain.cli import COMMANDS, main
from fittrain.cli.progress import TerminalProgress
from fittrain.errors import BuildError, MissingDependencyError
from fittrain.horovod import build as build_module
from fittrain.horovod import features as features_module
from fittrain.horovod import mpi_library
from fittrain.horovod.build import BuildResult
from fittrain.horovod.features import Features
from fittrain.horovod.mpi_library import MpiLibrary


@pytest.fixture
def runner():
    return CliRunner()


def test_help_lists_every_command(runner):
    result = runner.invoke(main, ["--help"])
    assert result.exit_code == 0
    for name, (_, _, line) in COMMANDS.items():
        assert name in result.output
        assert line in result.output


def test_short_help_option_works(runner):
    assert runner.invoke(main, ["horovod", "build", "-h"]).exit_code == 0


def test_version_is_the_packages(runner):
    result = runner.invoke(main, ["--version"])
    assert result.output == f"fittrain, version {fittrain.__version__}\n"


def test_unknown_command_is_a_usage_error(runner):
    result = runner.invoke(main, ["horovood"])
    assert result.exit_code == 2
    assert "horovood" in result.output


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_and_documented_options(runner, name):
    command = main.get_command(click.Context(main), name)
    assert isinstance(command, click.Command)
    assert command.help
    commands = [command, *getattr(command, "commands", {}).values()]
    for each in commands:
        assert each.help
        assert all(p.help for p in each.params if isinstance(p, click.Option))


def test_error_raised_on_purpose_is_a_message_and_exit_code_one(runner, monkeypatch):
    def fail(options, progress):
        raise BuildError("`mpicxx` links MPICH 5.0.2, but mpi4py loads Open MPI 5.0.11.")

    monkeypatch.setattr(build_module, "build", fail)
    result = runner.invoke(main, ["horovod", "build"])
    assert result.exit_code == 1
    assert result.output == (
        "Error: `mpicxx` links MPICH 5.0.2, but mpi4py loads Open MPI 5.0.11.\n"
    )


def test_other_errors_are_not_hidden(runner, monkeypatch):
    def fail(options, progress):
        raise ZeroDivisionError

    monkeypatch.setattr(build_module, "build", fail)
    assert isinstance(runner.invoke(main, ["horovod", "build"]).exception, ZeroDivisionError)


def test_build_passes_options_on(runner, monkeypatch, tmp_path):
    seen = []

    def note(options, progress):
        seen.append(options)
        return BuildResult("0.28.1+fittrain.0", "built", "2 ranks on CPU", tmp_path / "w.whl")

    monkeypatch.setattr(build_module, "build", note)
    arguments = ["--force", "--jobs", "3", "--wheel-dir", str(tmp_path), "--gpu", "nccl"]
    result = runner.invoke(main, ["horovod", "build", *arguments])
    assert result.exit_code == 0
    assert seen == [build_module.BuildOptions(True, 3, tmp_path, "nccl")]
    assert "0.28.1+fittrain.0: built." in result.output
    assert str(tmp_path / "w.whl") in result.output


@pytest.mark.parametrize("arguments", [["--jobs", "0"], ["--jobs", "x"], ["--gpu", "rocm"]])
def test_build_refuses_options_that_cannot_work(runner, arguments):
    assert runner.invoke(main, ["horovod", "build", *arguments]).exit_code == 2


@pytest.fixture
def installed_horovod(monkeypatch):
    built = {"mpi": True, "gloo": True, "nccl": False}
    found = Features("0.28.1+fittrain.0", Path("/site/horovod"), "2.21.0", built)
    monkeypatch.setattr(features_module, "read_features", lambda environment: found)
    library = MpiLibrary("Open MPI", "5.0.11")
    monkeypatch.setattr(mpi_library, "loaded_by_mpi4py", lambda environment: library)


def test_check_prints_features(runner, installed_horovod):
    result = runner.invoke(main, ["horovod", "check"])
    rows = [(line[:12].strip(), line[13:]) for line in result.output.splitlines()]
    assert ("MPI", "yes") in rows
    assert ("NCCL", "no") in rows
    assert ("MPI library", "Open MPI 5.0.11") in rows


def test_check_prints_json(runner, installed_horovod):
    described = json.loads(runner.invoke(main, ["horovod", "check", "--json"]).output)
    assert described["built"] == {"mpi": True, "gloo": True, "nccl": False}
    assert described["mpi_library"] == "Open MPI 5.0.11"


def test_check_without_mpi4py_still_shows_horovod(runner, installed_horovod, monkeypatch):
    def fail(environment):
        raise MissingDependencyError("mpi4py is not installed. Run `pip install mpi4py`.")

    monkeypatch.setattr(mpi_library, "loaded_by_mpi4py", fail)
    result = runner.invoke(main, ["horovod", "check"])
    assert result.exit_code == 0
    assert "mpi4py is not installed" in result.output


def test_check_says_why_horovod_is_not_usable(runner, monkeypatch):
    def fail(environment):
        raise MissingDependencyError("Horovod is not installed. Run `fittrain horovod build`.")

    monkeypatch.setattr(features_module, "read_features", fail)
    result = runner.invoke(main, ["horovod", "check"])
    assert result.exit_code == 1
    assert result.output == "Error: Horovod is not installed. Run `fittrain horovod build`.\n"


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_progress_off_a_terminal_adds_a_line_every_15_seconds(capsys):
    clock = Clock()
    progress = TerminalProgress(live=False, clock=clock)
    progress.step("Compiling")
    for second in range(1, 41):
        clock.now = float(second)
        progress.tick(second)
    progress.end()
    assert capsys.readouterr().err.splitlines() == [
        "Compiling ...",
        "Compiling ... 15%, 0:15",
        "Compiling ... 30%, 0:30",
        "Compiling: done (0:40)",
    ]


def test_progress_on_a_terminal_rewrites_one_line(capsys):
    clock = Clock()
    progress = TerminalProgress(live=True, clock=clock)
    progress.step("Compiling")
    clock.now = 75.0
    progress.tick(50)
    progress.end(failed=True)
    # click itself takes the erase sequences out where there is no terminal.
    written = capsys.readouterr().err
    assert written.count("\n") == 1
    assert "[##########          ] 50%, 1:15" in written
    assert written.endswith("\rCompiling: failed (1:15)\n")


def test_progress_on_a_terminal_fits_into_its_width(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    clock = Clock()
    progress = TerminalProgress(live=True, clock=clock)
    progress.step("Compiling " + "x" * 100)
    for second, percent in ((1.0, None), (2.0, 42)):
        clock.now = second
        progress.tick(percent)
    lines = capsys.readouterr().err.split("\r")
    assert max(map(len, lines)) < 60
    assert lines[-1].endswith("... [########            ] 42%, 0:02")


def test_progress_keeps_standard_output_free(capsys):
    progress = TerminalProgress(live=False)
    progress.step("Compiling")
    progress.note("A fact.")
    assert capsys.readouterr().out == ""
