"""Gives a rank its cores back when the launcher pinned it to one.

Open MPI and Intel MPI pin each of a few ranks to a single core by default, and then all threads of
TensorFlow share that core. Owns the mask of this process; `cores.py` counts.

    affinity = widen_affinity(launcher, os.environ)
    logger.log(affinity.level, affinity.message)        # where there is a message
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fittrain.runtime.cores import physical_cores
from fittrain.runtime.launcher import Launcher

# Names as the kernel keeps them, cut after 15 characters.
_DAEMONS = frozenset(
    ("prterun", "prted", "orted", "mpirun", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy")
    + ("mpispawn", "mpirun_rsh", "slurmstepd")
)
_AVOID = "`mpirun --bind-to none` avoids this"
_AVOIDS = {"intelmpi": "I_MPI_PIN=off avoids this"}
# Slurm's one core for a task is a share of the allocation, so other jobs may own the rest.
_WIDENS = ("openmpi", "mpich", "intelmpi", "mvapich")


@dataclass(frozen=True)
class Affinity:
    """Where this rank may run, and what was done about it.

    Args:
        mask: Processor numbers that this process may use now.
        available: Processor numbers that the launcher on this host had to give.
        widened: Whether the mask was changed.
        message: One line for the log, or None when there is nothing to say.
    """

    mask: frozenset[int]
    available: frozenset[int]
    widened: bool = False
    message: str | None = None

    @property
    def level(self) -> int:
        """The logging level of the message: INFO once healed, else WARNING."""
        return logging.INFO if self.widened else logging.WARNING


def widen_affinity(launcher: Launcher, environ: Mapping[str, str]) -> Affinity:
    """Takes the launcher's whole mask for this process if it was pinned to one core of many.

    A mask of several cores is somebody's decision (`--map-by :PE=4`) and stays, and so does the
    mask of a process that no launcher started (`taskset`).

    Args:
        launcher: The result of `detect`.
        environ: The environment; FITTRAIN_KEEP_BINDING=1 keeps the mask as it is.

    Returns:
        The masks as they are afterwards, with a line for the log.

    Example:
        >>> widen_affinity(Launcher(), {}).widened
        False
    """
    own = frozenset(os.sched_getaffinity(0))
    if launcher.name == "none":
        return Affinity(own, own)
    available = launcher_mask() | own
    if not is_pinned(own, available):
        return Affinity(own, available)
    avoid = _AVOIDS.get(launcher.name, _AVOID)
    if environ.get("FITTRAIN_KEEP_BINDING") == "1":
        return _keep(own, available, f" and FITTRAIN_KEEP_BINDING=1 keeps it there; {avoid}.")
    if launcher.name not in _WIDENS:
        return _keep(own, available, "; `srun --cpus-per-task=N` gives each rank N cores.")
    return _widen(own, available, avoid)


def is_pinned(own: frozenset[int], available: frozenset[int]) -> bool:
    """Says whether `own` is one core out of several.

    Example:
        >>> is_pinned(frozenset({0, 1}), frozenset({0, 1}))
        False
    """
    return own < available and physical_cores(own) == 1 and physical_cores(available) > 1


def launcher_mask() -> frozenset[int]:
    """Returns the mask of the launcher's process on this host.

    That is this process's parent, or further up when a shell script stands between; the walk never
    goes beyond the launcher, so that `taskset -c 0,1 mpirun ...` keeps its meaning.
    """
    parent = process = os.getppid()
    while process > 1:
        name, above = _name_and_parent(process)
        if name in _DAEMONS:
            return _mask_of(process)
        process = above
    return _mask_of(parent)


def _keep(own: frozenset[int], available: frozenset[int], reason: str) -> Affinity:
    return Affinity(own, available, message=_pinned(own, available) + reason)


def _pinned(own: frozenset[int], available: frozenset[int]) -> str:
    cores, total = ",".join(map(str, sorted(own))), physical_cores(available)
    return f"The launcher pinned this rank to one core (processor {cores}) of {total}"


def _widen(own: frozenset[int], available: frozenset[int], avoid: str) -> Affinity:
    try:
        _set_all_threads(available)
    except OSError as error:
        return _keep(own, available, f" and the system refuses more ({error.strerror}); {avoid}.")
    message = f"{_pinned(own, available)}; it may now use all of them. {avoid}."
    return Affinity(frozenset(os.sched_getaffinity(0)), available, True, message)


def _set_all_threads(mask: frozenset[int]) -> None:
    # New threads inherit the mask; those that an import already started do not follow.
    os.sched_setaffinity(0, mask)
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task), mask)


def _name_and_parent(process: int) -> tuple[str, int]:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return "", 0
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return fields["Name"].strip(), int(fields["PPid"])


def _mask_of(process: int) -> frozenset[int]:
    try:
        return frozenset(os.sched_getaffinity(process))
    except OSError:
        return frozenset(os.sched_getaffinity(0))
