"""What Slurm's variables say about this process.

Owns the difference between a task of a job step, which `srun` started and which is a rank, and a
batch script or an `salloc` shell, which only sits inside an allocation: both have SLURM_NTASKS, and
only the first has SLURM_STEP_NUM_TASKS.

    if in_step(os.environ):
        ranks = step_ranks(os.environ)
    else:
        hint = missing_srun(os.environ)         # None, or one line for the log
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from fittrain.errors import LaunchError
from fittrain.runtime.variables import check_below, whole_number

# Slurm numbers the steps that are not srun's from the top: 0xfffffffa is the shell of an `salloc`
# that runs on the node, 0xfffffffb the batch script.
_SHELL_STEPS = ("4294967290", "4294967291")
_STEP_ID = ("SLURM_STEP_ID", "SLURM_STEPID")
_GROUP = re.compile(r"(\d+)(?:\(x(\d+)\))?")


class StepRanks(NamedTuple):
    """The place of this process in its job step."""

    rank: int
    size: int
    local_rank: int
    local_size: int


def in_step(environ: Mapping[str, str]) -> bool:
    """Says whether `srun` started this process.

    Example:
        >>> in_step({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"})
        False
    """
    step_ids = [environ[name] for name in _STEP_ID if name in environ]
    if any(step_id in _SHELL_STEPS for step_id in step_ids):
        return False
    return bool(step_ids) or "SLURM_STEP_NUM_TASKS" in environ


def step_ranks(environ: Mapping[str, str]) -> StepRanks:
    """Returns ranks and sizes of this task of a job step.

    Raises:
        LaunchError: A variable is missing, is no number, or contradicts another one.

    Example:
        >>> step_ranks({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "7", "SLURM_LOCALID": "1",
        ...             "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "4,3"})
        StepRanks(rank=5, size=7, local_rank=1, local_size=3)
    """
    rank = whole_number(environ, "SLURM_PROCID")
    size = whole_number(environ, "SLURM_STEP_NUM_TASKS")
    local_rank = whole_number(environ, "SLURM_LOCALID")
    local_size = _tasks_on_this_node(environ)
    check_below("SLURM_PROCID", rank, "SLURM_STEP_NUM_TASKS", size)
    check_below("SLURM_LOCALID", local_rank, "SLURM_STEP_TASKS_PER_NODE", local_size)
    return StepRanks(rank, size, local_rank, local_size)


def tasks_per_node(text: str) -> list[int]:
    """Returns the number of tasks on each node.

    Args:
        text: Slurm's short form.

    Raises:
        LaunchError: `text` is not of that form.

    Example:
        >>> tasks_per_node("4(x2),3")
        [4, 4, 3]
    """
    counts: list[int] = []
    for part in text.split(","):
        group = _GROUP.fullmatch(part.strip())
        if group is None:
            raise LaunchError(
                "`SLURM_STEP_TASKS_PER_NODE` must be of the form '4(x2),3'. Received "
                f"{text!r}. Slurm sets it for each `srun`; do not set it by hand."
            )
        counts += [int(group[1])] * int(group[2] or 1)
    return counts


def missing_srun(environ: Mapping[str, str]) -> str | None:
    """Returns a warning for a process that shares an allocation for several tasks with nobody.

    Returns:
        One line that names `srun`, or None where there is nothing to warn of.

    Example:
        >>> missing_srun({"SLURM_NTASKS": "1"}) is None
        True
    """
    tasks = environ.get("SLURM_NTASKS", "1")
    if in_step(environ) or not tasks.isdigit() or int(tasks) < 2:
        return None
    return (
        f"This Slurm allocation is for {tasks} tasks, but only this process was started. "
        f"Use `srun python ...` inside it to start {tasks} ranks."
    )


def _tasks_on_this_node(environ: Mapping[str, str]) -> int:
    node = whole_number(environ, "SLURM_NODEID")
    if "SLURM_STEP_TASKS_PER_NODE" not in environ:
        # The common check has the message for a missing variable.
        whole_number(environ, "SLURM_STEP_TASKS_PER_NODE")
    text = environ["SLURM_STEP_TASKS_PER_NODE"]
    counts = tasks_per_node(text)
    if node >= len(counts):
        raise LaunchError(
            f"`SLURM_NODEID` must be below the number of nodes. Received {node} and "
            f"SLURM_STEP_TASKS_PER_NODE={text!r}. Unset variables left over from another job step."
        )
    return counts[node]
