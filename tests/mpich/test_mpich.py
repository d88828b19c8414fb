"""The backend "mpi" on MPICH. Runs in an environment of its own: `make test-mpich`."""

import importlib.util
import itertools
import os
import sys
from pathlib import Path

import pytest

from tests.parallel.job import HERE, cases, mpirun, mpirun_path, run
from tests.parallel.test_failures import fail, first_error, report

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mpich") is None and not Path(sys.prefix, "bin/mpichversion").exists(),
    reason="this environment has no MPICH",
)
OPENMPI_PYTHON = HERE.parents[1] / ".venv" / "bin" / "python"


@pytest.fixture(scope="module", autouse=True)
def kept(tmp_path_factory):
    os.environ["FITTRAIN_TEST_KEEP"] = str(tmp_path_factory.mktemp("kept"))
    # The other cases are about what does not depend on the MPI library.
    os.environ["ONLY"] = "probe,equivalent_to_keras,ledger"


@pytest.mark.parametrize("ranks", [2, 3])
def test_probe_and_plain_keras(ranks):
    found = cases(ranks, "mpi")
    expected = {"even": 4.5, "updates": 6.5, "partial": 9.5, "few": 2.0, "single": 5.0}
    assert found["probe"] == [expected] * ranks
    for one in found["equivalent_to_keras"]:
        assert one["weights"] < 1e-6
        assert one["history"] < 1e-5
    assert len({one["digest"] for one in found["equivalent_to_keras"]}) == 1


def test_every_sample_is_used_once():
    ids = cases(3, "mpi")["ledger"]
    epoch = itertools.chain(*(itertools.chain(*own[:4]) for own in ids))
    assert sorted(epoch) == list(range(10))


@pytest.mark.parametrize(("trial", "rank"), [("data", 1), ("callback", 0), ("before_fit", 2)])
def test_hang_08_an_error_on_one_rank_ends_the_job(trial, rank, tmp_path):
    job = fail(trial, "mpi", 3, tmp_path)
    assert job.returncode == 1
    assert first_error(job).startswith(f"[rank {rank} ")
    assert "boom-17" in report(tmp_path, rank)["traceback"]


def test_hang_08_sys_exit_on_one_rank_ends_the_job_with_its_code(tmp_path):
    assert fail("sys_exit", "mpi", 3, tmp_path).returncode == 3


@pytest.mark.parametrize("trial", ["leaves", "sigkill"])
def test_a_rank_that_is_gone_ends_the_job(trial, tmp_path):
    fail(trial, "mpi", 3, tmp_path)


@pytest.mark.skipif(not OPENMPI_PYTHON.exists(), reason="there is no environment with Open MPI")
def test_run_05_mpichs_launcher_with_open_mpis_library_is_refused(tmp_path):
    failing = str(HERE / "failing.py")
    command = [mpirun_path(), "-np", "2", str(OPENMPI_PYTHON), failing, "none", str(tmp_path)]
    job = run([*command, "mpi"])
    assert job.returncode != 0
    assert "LaunchError" in job.errors
    assert "MPICH's `mpirun` started this process" in job.errors
    assert "Open MPI" in job.errors
    assert list(tmp_path.iterdir()) == []


def test_the_launcher_is_recognised():
    program = "import os, fittrain.runtime.launcher as l; print(l.detect(os.environ))"
    job = mpirun(2, "-c", program)
    assert job.stdout.count("name='mpich'") == 2
    assert "size=2, local_rank=1, local_size=2" in job.stdout
