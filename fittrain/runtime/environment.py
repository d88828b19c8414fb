"""Environment variables that must be set before MPI, Horovod and TensorFlow start.

Owns the values and their reasons. What is set already, by the user or the launcher, is never
changed.

Measured with TensorFlow 2.21: TF_NUM_INTRAOP_THREADS and TF_NUM_INTEROP_THREADS are honoured when
set inside the process, also after `import tensorflow`, up to the first operation or variable (with
7 and 5 the process had 5 inter-op and 7 intra-op threads; set after one operation they did
nothing). `tf.config.threading` still reports 0 then, so count threads to see them.

    threads = threads_per_rank(...)
    apply(launcher, threads, os.environ)
    from mpi4py import MPI
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, MutableMapping

from fittrain.runtime.launcher import Launcher

_ALWAYS = {
    # TensorFlow's start-up notices come once for each rank and hide the messages that matter. Its
    # oneDNN notice ignores this level.
    "TF_CPP_MIN_LOG_LEVEL": "2",
    # Milliseconds. At Horovod's own 1 ms a small all-reduce takes 1.07 ms, at 0.1 ms 0.40 ms.
    "HOROVOD_CYCLE_TIME": "0.1",
    # Names the ranks that did not come to a collective after this time.
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "60",
    # Horovod's own 0 means never: a job whose ranks went apart would hang until it is killed.
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "600",
}
# A rank that waits must not take a core from one that computes. Measured: 200 barriers of two ranks
# on one core take 0.8 s without it and 0.002 s with it.
_OPENMPI = {"OMPI_MCA_mpi_yield_when_idle": "1"}
# MVAPICH pins the process inside MPI_Init, after `widen_affinity`, to one core for all its threads.
_MVAPICH = {"MV2_ENABLE_AFFINITY": "0"}


def defaults(
    launcher: Launcher,
    threads_per_rank: int,
    environ: Mapping[str, str],
    mask_cores: int | None = None,
) -> dict[str, str]:
    """Returns the variables that are missing from the environment, with their values.

    Args:
        launcher: The result of `detect`.
        threads_per_rank: As `cores.threads_per_rank` says.
        environ: The environment; names that are in it are left out.
        mask_cores: Size of this rank's affinity mask, which is what TensorFlow takes by itself. A
            process alone on its host gets thread counts only if it should use fewer (a CPU quota).

    Example:
        >>> alone = Launcher()
        >>> defaults(alone, 2, {})["HOROVOD_CYCLE_TIME"]
        '0.1'
        >>> "TF_NUM_INTRAOP_THREADS" in defaults(alone, 2, {})
        False
    """
    wanted = dict(_ALWAYS)
    if launcher.local_size > 1 or threads_per_rank < (mask_cores or 0):
        wanted |= _threads(threads_per_rank)
    if launcher.name in ("openmpi", "slurm"):
        wanted |= _OPENMPI
    if launcher.name == "mvapich":
        wanted |= _MVAPICH
    return {name: value for name, value in wanted.items() if name not in environ}


def apply(
    launcher: Launcher,
    threads_per_rank: int,
    environ: MutableMapping[str, str],
    mask_cores: int | None = None,
) -> dict[str, str]:
    """Puts the defaults into the environment and returns what was put there.

    Args:
        launcher: The result of `detect`.
        threads_per_rank: As `cores.threads_per_rank` says.
        environ: The environment to change, usually `os.environ`.
        mask_cores: As in `defaults`.

    Example:
        >>> environ = {"HOROVOD_CYCLE_TIME": "5"}
        >>> "HOROVOD_CYCLE_TIME" in apply(Launcher(), 1, environ)
        False
    """
    added = defaults(launcher, threads_per_rank, environ, mask_cores)
    environ.update(added)
    return added


def tensorflow_started() -> bool:
    """Says whether TensorFlow already made its threads, so that thread counts come too late.

    A model or a variable made before `fittrain.init()` does that. Imports nothing.

    Example:
        >>> tensorflow_started()    # in a process that never touched TensorFlow
        False
    """
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return False
    threading = tensorflow.config.threading
    before = threading.get_intra_op_parallelism_threads()
    try:
        # TensorFlow refuses a change, and only a change, once its threads exist.
        threading.set_intra_op_parallelism_threads(before + 1)
    except RuntimeError:
        return True
    threading.set_intra_op_parallelism_threads(before)
    return False


def _threads(count: int) -> dict[str, str]:
    return {
        # The BLAS of NumPy and SciPy takes every core of the host otherwise, in each rank.
        "OMP_NUM_THREADS": str(count),
        # TensorFlow's own default is the whole mask, in each rank.
        "TF_NUM_INTRAOP_THREADS": str(count),
        # One thread may wait inside a collective; a second one keeps the graph going meanwhile.
        "TF_NUM_INTEROP_THREADS": str(max(2, count)),
    }
