"""The environment that MPI, Horovod and TensorFlow find."""

import subprocess
import sys
import types

import pytest

from fittrain.runtime import environment
from fittrain.runtime.launcher import Launcher

TWO = Launcher("openmpi", rank=0, size=2, local_rank=0, local_size=2)
THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")

# Counts the threads that TensorFlow makes when the variables come after its import.
COUNT = """
import os, sys
import tensorflow as tf
from fittrain.runtime import environment
from fittrain.runtime.launcher import Launcher

before = len(os.listdir("/proc/self/task"))
assert not environment.tensorflow_started()
two = Launcher("openmpi", rank=0, size=2, local_rank=0, local_size=2)
environment.apply(two, int(sys.argv[1]), os.environ)
tf.matmul(tf.ones([64, 64]), tf.ones([64, 64]))
assert environment.tensorflow_started()
print(len(os.listdir("/proc/self/task")) - before)
"""


def test_ranks_that_share_a_host_get_thread_counts():
    added = environment.defaults(TWO, 4, {})
    assert {name: added[name] for name in THREADS} == dict.fromkeys(THREADS, "4")


def test_one_inter_op_thread_is_never_alone():
    assert environment.defaults(TWO, 1, {})["TF_NUM_INTEROP_THREADS"] == "2"


def test_a_rank_alone_on_its_host_keeps_tensorflow_as_it_is():
    assert not environment.defaults(Launcher(), 4, {}, mask_cores=4).keys() & set(THREADS)


def test_a_rank_alone_under_a_quota_gets_thread_counts():
    added = environment.defaults(Launcher(), 2, {}, mask_cores=64)
    assert added["TF_NUM_INTRAOP_THREADS"] == "2"


@pytest.mark.parametrize("name", [*THREADS, "HOROVOD_CYCLE_TIME", "OMPI_MCA_mpi_yield_when_idle"])
def test_what_the_user_set_wins(name):
    environ = {name: "77"}
    added = environment.apply(TWO, 1, environ)
    assert name not in added
    assert environ[name] == "77"


def test_apply_puts_in_what_it_returns():
    environ: dict[str, str] = {}
    assert environment.apply(TWO, 1, environ) == environ
    assert environ["HOROVOD_CYCLE_TIME"] == "0.1"
    assert environ["HOROVOD_STALL_CHECK_TIME_SECONDS"] == "60"
    assert environ["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"] == "600"
    assert environ["TF_CPP_MIN_LOG_LEVEL"] == "2"


@pytest.mark.parametrize(
    ("launcher", "name", "there"),
    [
        ("openmpi", "OMPI_MCA_mpi_yield_when_idle", True),
        ("slurm", "OMPI_MCA_mpi_yield_when_idle", True),
        ("mpich", "OMPI_MCA_mpi_yield_when_idle", False),
        ("mvapich", "MV2_ENABLE_AFFINITY", True),
        ("openmpi", "MV2_ENABLE_AFFINITY", False),
    ],
)
def test_a_library_gets_its_own_settings_only(launcher, name, there):
    assert (name in environment.defaults(Launcher(launcher), 1, {})) is there


def test_tensorflow_is_not_started_where_it_is_not_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    assert not environment.tensorflow_started()
    assert "tensorflow" not in sys.modules


def test_tensorflow_started_changes_nothing(monkeypatch):
    counts = [3]
    threading = types.SimpleNamespace(
        get_intra_op_parallelism_threads=lambda: counts[-1],
        set_intra_op_parallelism_threads=counts.append,
    )
    config = types.SimpleNamespace(threading=threading)
    monkeypatch.setitem(sys.modules, "tensorflow", types.SimpleNamespace(config=config))
    assert not environment.tensorflow_started()
    assert counts[-1] == 3


def test_run_01_tensorflow_honours_counts_set_after_its_import():
    pytest.importorskip("tensorflow")
    few, many = (threads_made(count) for count in (2, 9))
    assert many - few == 2 * (9 - 2)


def threads_made(count):
    command = [sys.executable, "-c", COUNT, str(count)]
    return int(subprocess.run(command, check=True, capture_output=True, timeout=120).stdout)
