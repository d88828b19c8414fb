"""What looks like a failure and is none does not end or disturb a job."""

import pytest

from tests.parallel.job import HERE, mpirun


def succeed(trial, folder):
    """Runs a trial of `healthy.py` on 2 ranks; checks what holds for all of them."""
    job = mpirun(2, str(HERE / "healthy.py"), trial, str(folder), timeout_seconds=90)
    assert job.returncode == 0, job.errors
    assert job.survivors == []
    assert sorted(line for line in job.stdout.splitlines() if "finished" in line) == [
        "finished 0",
        "finished 1",
    ]
    assert not (folder / "errors").exists()
    assert "ends the job" not in job.errors
    return job


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    return succeed("odd", tmp_path_factory.mktemp("odd"))


def test_hang_08_forked_children_that_fail_or_leave_do_not_speak_for_the_rank(odd):
    assert "raises 1\n" in odd.stdout
    assert "leaves 0\n" in odd.stdout
    assert "leaves in fit 0\n" in odd.stdout
    assert "raises in fit 1\n" in odd.stdout
    assert "processes [0, 1]\n" in odd.stdout


def test_a_slow_rank_and_one_that_works_on_after_training_are_waited_for(odd):
    # 6 s in a callback of rank 1, then 5 s of rank 0 alone.
    assert odd.seconds > 11


def test_a_script_may_finalize_mpi_itself(tmp_path):
    succeed("finalizes", tmp_path)
