"""This rank's share of its host, claimed before MPI and TensorFlow start.

`import fittrain` claims it where a launcher started the process: a script that builds an
optimizer before anything else has already started TensorFlow's threads, and then it is too late.

    share = claim(os.environ)
    share.threads, share.remarks
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from dataclasses import dataclass, field

from fittrain.runtime import environment, slurm
from fittrain.runtime.affinity import widen_affinity
from fittrain.runtime.cores import threads_per_rank, usable_cores
from fittrain.runtime.launcher import Launcher, detect


@dataclass(frozen=True)
class HostShare:
    """What this rank may use of its host.

    Args:
        launcher: what started this process.
        threads: TensorFlow threads of this rank.
        remarks: lines for the log, with their levels.
    """

    launcher: Launcher
    threads: int
    remarks: list[tuple[int, str]] = field(default_factory=list)


_claimed: HostShare | None = None


def claim_under_launcher(environ: MutableMapping[str, str]) -> None:
    """Claims where a launcher started this process; elsewhere an import changes nothing.

    Raises:
        LaunchError: if a launcher's variables are incomplete or contradict each other.
    """
    if detect(environ).name != "none":
        claim(environ)


def claim(environ: MutableMapping[str, str]) -> HostShare:
    """Widens this rank's affinity and sets the environment of MPI, Horovod and TensorFlow, once.

    Args:
        environ: the environment to read and complete, usually `os.environ`.

    Raises:
        LaunchError: if a launcher's variables are incomplete or contradict each other.
    """
    global _claimed
    if _claimed is None:
        _claimed = _claim(environ)
    return _claimed


def _claim(environ: MutableMapping[str, str]) -> HostShare:
    launcher = detect(environ)
    affinity = widen_affinity(launcher, environ)
    usable = usable_cores(affinity.available)
    threads = threads_per_rank(launcher.local_size, len(affinity.mask), usable)
    late = environment.tensorflow_started()
    added = environment.apply(launcher, threads, environ, len(affinity.mask))
    remarks = [(affinity.level, affinity.message)] if affinity.message else []
    missing = slurm.missing_srun(environ)
    if missing is not None and launcher.size == 1:
        remarks.append((logging.WARNING, missing))
    if late and "TF_NUM_INTRAOP_THREADS" in added:
        remarks.append(
            (
                logging.WARNING,
                "TensorFlow has started with threads for the whole host, which "
                f"{launcher.local_size} ranks share. Import fittrain before the script makes its "
                f"first model or tensor, or set TF_NUM_INTRAOP_THREADS={threads}.",
            )
        )
    return HostShare(launcher, int(environ.get("TF_NUM_INTRAOP_THREADS", threads)), remarks)
