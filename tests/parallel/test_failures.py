"""A rank that fails, exits, dies or drifts ends the whole job, and says why."""

import json
import re
import time

import pytest

from tests.parallel.job import HERE, mpirun

BACKENDS = pytest.mark.parametrize(("backend", "ranks"), [("horovod", 4), ("mpi", 2)])


def fail(trial, backend, ranks, folder):
    """Runs a trial of `failing.py`; checks what holds for all of them."""
    job = mpirun(ranks, str(HERE / "failing.py"), trial, str(folder), backend)
    ended = time.time()
    assert job.returncode not in (0, -1), job.errors
    assert job.survivors == []
    assert "finished" not in job.stdout
    fault = folder / "fault"
    assert not fault.exists() or ended - float(fault.read_text()) < 10
    return job


def report(folder, rank):
    return json.loads((folder / "errors" / f"rank-{rank:03d}.json").read_text())


def first_error(job):
    """The first line that is neither ours at INFO nor TensorFlow's."""
    return next(line for line in job.errors.splitlines() if line.startswith("[rank"))


@BACKENDS
@pytest.mark.parametrize(("trial", "rank"), [("data", -2), ("callback", 0), ("before_fit", -1)])
def test_hang_08_an_error_on_one_rank_ends_the_job(trial, rank, backend, ranks, tmp_path):
    job = fail(trial, backend, ranks, tmp_path)
    assert job.returncode == 1
    assert first_error(job).startswith(f"[rank {rank % ranks} ")
    assert "boom-17" in job.errors
    found = report(tmp_path, rank % ranks)
    assert "boom-17" in found["message"]
    assert "boom-17" in found["traceback"]
    assert (found["rank"], found["size"], found["primary"]) == (rank % ranks, ranks, True)


@BACKENDS
@pytest.mark.parametrize("trial", ["sys_exit", "sys_exit_before_fit"])
def test_hang_08_sys_exit_on_one_rank_ends_the_job_with_its_code(trial, backend, ranks, tmp_path):
    job = fail(trial, backend, ranks, tmp_path)
    assert job.returncode == 3
    assert first_error(job).startswith(f"[rank {ranks - 1} ")
    assert report(tmp_path, ranks - 1)["type"] == "SystemExit"


@pytest.mark.parametrize("trial", ["sys_exit_0", "leaves"])
def test_a_rank_that_leaves_while_the_others_wait_ends_the_job(trial, tmp_path):
    job = fail(trial, "horovod", 3, tmp_path)
    told = re.findall(r"rank 2 left the job by .* while rank 0 waits for it in (.*) \(", job.errors)
    assert told == ["`Trainer.fit`"]


def test_a_caught_error_ends_the_job_all_the_same(tmp_path):
    assert "boom-17" in fail("caught", "mpi", 2, tmp_path).errors


@pytest.mark.parametrize(
    ("trial", "backend"), [("os_exit", "mpi"), ("sigkill", "horovod"), ("sigsegv", "mpi")]
)
def test_a_rank_that_dies_ends_the_job(trial, backend, tmp_path):
    fail(trial, backend, 2, tmp_path)


@pytest.mark.parametrize(("trial", "name"), [("drift", "dense"), ("frozen_drift", "frozen")])
def test_opt_05_a_change_of_weights_on_one_rank_is_noticed(trial, name, tmp_path):
    job = fail(trial, "mpi", 3, tmp_path)
    assert f"{name}/kernel` differs between ranks 0, 2 and rank 1" in job.errors
    assert job.errors.count("DriftError") == 1


def test_a_refusal_is_told_once(tmp_path):
    job = fail("refused", "mpi", 2, tmp_path)
    assert job.errors.count("rank 1: `epochs` must be a positive integer. Received: epochs=0") == 1


@pytest.mark.parametrize("call", ["save", "evaluate"])
def test_a_call_that_rank_0_makes_alone_ends_the_job_and_is_named(call, tmp_path):
    job = fail(call, "mpi", 2, tmp_path)
    assert "rank 1 left the job by sys.exit() while rank 0 waits" in job.errors
    assert f"for it in `Trainer.{call}`" in job.errors


INIT = """
import os
import fittrain
fittrain.init("mpi", seed=int(os.environ["OMPI_COMM_WORLD_RANK"]))
"""


def test_seeds_that_differ_are_refused_at_the_start():
    job = mpirun(2, "-c", INIT, timeout_seconds=60)
    assert job.returncode not in (0, -1)
    assert "`seed` must be the same on all ranks" in job.errors
