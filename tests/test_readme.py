"""The README's commands and programs run as they are written."""

import os
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.parallel.job import mpirun_path, run

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^\$ (.*)$", README, re.MULTILINE)
PAGES = README + (ROOT / "docs" / "training_step.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGES, re.MULTILINE | re.DOTALL)
BIN = Path(sys.executable).parent


def starting(*words):
    return [command for command in COMMANDS if shlex.split(command)[: len(words)] == list(words)]


def run_here(command, **options):
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return run(["bash", "-c", command], PATH=path, **options)


needs_mpi = pytest.mark.skipif(mpirun_path() is None, reason="there is no mpirun")


def test_every_command_has_a_test():
    known = [
        *starting("python"),
        *starting("mpirun"),
        *starting("fittrain", "horovod"),
        *starting("tensorboard"),
        *starting("pip", "install"),
        *starting("export"),
    ]
    assert sorted(known) == sorted(COMMANDS)
    assert len(PROGRAMS) == 4


def test_the_example_trains_in_one_process_and_tensorboard_shows_it(tmp_path):
    (command,) = starting("python")
    job = run_here(f"{command} --run-dir {tmp_path}")
    assert job.returncode == 0, job.errors
    accuracy = float(re.search(r"validation accuracy ([0-9.]+) on 1 rank", job.stdout).group(1))
    assert accuracy >= 0.97

    (command,) = starting("tensorboard")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = command.replace("runs/digits", str(tmp_path)) + f" --port {port}"
    server = subprocess.Popen([str(BIN / "tensorboard"), *shlex.split(command)[1:]])
    try:
        assert '"epoch_accuracy"' in fetch(f"http://127.0.0.1:{port}/data/plugin/scalars/tags")
    finally:
        server.terminate()
        server.wait(20)


def fetch(address):
    """The page, once the server is up and has read the events."""
    page = ""
    for _ in range(60):
        try:
            page = urllib.request.urlopen(address, timeout=5).read().decode()
        except OSError:
            page = ""
        if "epoch_accuracy" in page:
            break
        time.sleep(1)
    return page


@needs_mpi
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_example_trains_on_several_ranks(ranks, tmp_path):
    (command,) = starting("mpirun", "-np", "2", "python", "examples/digits.py")
    job = run_here(f"{command} --run-dir {tmp_path}".replace("-np 2", f"-np {ranks}"))
    assert job.returncode == 0, job.errors
    accuracy = float(re.search(rf"accuracy ([0-9.]+) on {ranks} rank", job.stdout).group(1))
    assert accuracy >= 0.97
    assert (tmp_path / "model.keras").exists()


@needs_mpi
def test_run_03_and_run_10_eight_ranks_start_on_few_cores_also_as_root(tmp_path):
    (command,) = starting("mpirun", "--oversubscribe")
    (export,) = starting("export")
    assert "-np 8" in command
    forget = "unset PRTE_MCA_rmaps_default_mapping_policy OMPI_ALLOW_RUN_AS_ROOT"
    job = run_here(
        f"{forget}; {export}; {command} --epochs 1 --run-dir {tmp_path}", timeout_seconds=180
    )
    assert job.returncode == 0, job.errors
    assert "on 8 rank(s)" in job.stdout


@needs_mpi
def test_horovods_keras_api_trains_alone_and_fittrain_averages():
    (command,) = starting("mpirun", "-np", "2", "python", "examples/averaging.py")
    job = run_here(command)
    assert job.stdout.strip() in README, job.errors


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_programs_run(number, tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PROGRAMS[number])
    job = run_here(f"cd {tmp_path} && python train.py")
    assert job.returncode == 0, job.errors


@needs_mpi
def test_the_first_program_runs_on_two_ranks(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PROGRAMS[0])
    job = run_here(f"cd {tmp_path} && mpirun -np 2 python train.py")
    assert job.returncode == 0, job.errors
    assert (tmp_path / "model.keras").exists()


def test_install_commands_work_as_written():
    (install,) = starting("pip", "install")
    job = run_here(f"{install} --dry-run --no-deps --no-build-isolation")
    assert job.returncode == 0, job.errors
    assert "Would install fittrain" in job.stdout
    for command in starting("fittrain", "horovod"):
        job = run_here(command)
        assert job.returncode == 0, job.errors


def test_links_lead_somewhere():
    targets = re.findall(r"\]\(((?!http)[^)]+)\)", README)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_figures_have_their_command():
    figures = README[README.index("## Speed") :]
    assert "`make bench`" in figures
    assert re.search(r"\| fittrain, 1 rank \| \d+ \|", figures)


def test_the_two_commands_are_targets():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^ {4}make (\w+)", README, re.MULTILINE):
        assert f"\n{target}:" in makefile
