"""A rank that fails, exits, dies or drifts ends the whole job, and says why."""

import json
import time

import pytest

from tests.parallel.job import HERE, mpirun

RANKS = 3
LAST = RANKS - 1


def fail(trial, backend, folder):
    """Runs a trial of `failing.py`; checks what holds for all of them."""
    job = mpirun(RANKS, str(HERE / "failing.py"), trial, str(folder), backend)
    assert job.returncode not in (0, -1), job.errors
    assert job.survivors == []
    assert "finished" not in job.stdout
    fault = folder / "fault"
    if fault.exists():
        assert time.time() - float(fault.read_text()) < 10
    return job


def report(folder, rank):
    return json.loads((folder / "errors" / f"rank-{rank:03d}.json").read_text())


def first_error(job):
    """The first line that is neither ours at INFO nor TensorFlow's."""
    return next(line for line in job.errors.splitlines() if line.startswith("[rank"))


@pytest.mark.parametrize("backend", ["horovod", "mpi"])
@pytest.mark.parametrize(
    ("trial", "rank"), [("data", RANKS // 2), ("callback", 0), ("before_fit", LAST)]
)
def test_hang_08_an_error_on_one_rank_ends_the_job(trial, rank, backend, tmp_path):
    job = fail(trial, backend, tmp_path)
    assert job.returncode == 1
    assert first_error(job).startswith(f"[rank {rank} ")
    assert "boom-17" in job.errors
    found = report(tmp_path, rank)
    assert "boom-17" in found["message"]
    assert "boom-17" in found["traceback"]
    assert (found["rank"], found["size"], found["primary"]) == (rank, RANKS, True)


@pytest.mark.parametrize("backend", ["horovod", "mpi"])
def test_hang_08_sys_exit_on_one_rank_ends_the_job_with_its_code(backend, tmp_path):
    job = fail("sys_exit", backend, tmp_path)
    assert job.returncode == 3
    assert first_error(job).startswith(f"[rank {LAST} ")
    assert report(tmp_path, LAST)["type"] == "SystemExit"


@pytest.mark.parametrize("backend", ["horovod", "mpi"])
@pytest.mark.parametrize("trial", ["sys_exit_0", "leaves"])
def test_a_rank_that_leaves_while_the_others_wait_ends_the_job(trial, backend, tmp_path):
    job = fail(trial, backend, tmp_path)
    assert f"rank {LAST} left the job by sys.exit(0) while rank 0 waits" in job.errors


def test_a_caught_error_ends_the_job_all_the_same(tmp_path):
    assert "boom-17" in fail("caught", "mpi", tmp_path).errors


@pytest.mark.parametrize("trial", ["os_exit", "sigkill", "sigsegv"])
def test_a_rank_that_dies_ends_the_job(trial, tmp_path):
    fail(trial, "horovod", tmp_path)


@pytest.mark.parametrize("backend", ["horovod", "mpi"])
def test_opt_05_a_change_of_weights_on_one_rank_is_noticed(backend, tmp_path):
    job = fail("drift", backend, tmp_path)
    assert "`sequential/dense/kernel` differs between ranks 0, 2 and rank 1" in job.errors
    assert job.errors.count("DriftError") == 1


def test_a_refusal_is_told_once(tmp_path):
    job = fail("refused", "mpi", tmp_path)
    assert job.errors.count("rank 1: `epochs` must be a positive integer. Received: epochs=0") == 1
