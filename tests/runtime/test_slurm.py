"""Slurm's variables."""

import pytest

from fittrain.errors import LaunchError
from fittrain.runtime.slurm import in_step, missing_srun, step_ranks, tasks_per_node

from .environments import SLURM_BATCH, SLURM_SALLOC, SLURM_SHELL_STEP, SRUN


@pytest.mark.parametrize(
    ("text", "counts"), [("1", [1]), ("4(x2),3", [4, 4, 3]), ("2,1(x3)", [2, 1, 1, 1])]
)
def test_tasks_per_node_reads_the_short_form(text, counts):
    assert tasks_per_node(text) == counts


@pytest.mark.parametrize("text", ["", "4(x)", "four", "4(2)", "4,,3"])
def test_tasks_per_node_refuses_another_form(text):
    with pytest.raises(LaunchError, match="`SLURM_STEP_TASKS_PER_NODE` must be of the form"):
        tasks_per_node(text)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"SLURM_PROCID": "7"}, "`SLURM_PROCID` must be below `SLURM_STEP_NUM_TASKS`"),
        ({"SLURM_LOCALID": "3"}, "`SLURM_LOCALID` must be below `SLURM_STEP_TASKS_PER_NODE`"),
        ({"SLURM_NODEID": "3"}, "`SLURM_NODEID` must be below the number of nodes. Received 3"),
        ({"SLURM_NODEID": "x"}, "`SLURM_NODEID` must be a whole number"),
    ],
)
def test_step_ranks_refuses_contradictions(changed, message):
    with pytest.raises(LaunchError, match=message):
        step_ranks(SRUN | changed)


@pytest.mark.parametrize(
    "name",
    ["PROCID", "LOCALID", "NODEID", "STEP_NUM_TASKS", "STEP_TASKS_PER_NODE"],
)
def test_step_ranks_names_a_missing_variable(name):
    half = {key: value for key, value in SRUN.items() if key != f"SLURM_{name}"}
    with pytest.raises(LaunchError, match=f"`SLURM_{name}` is missing"):
        step_ranks(half)


@pytest.mark.parametrize("environ", [SLURM_BATCH, SLURM_SALLOC, SLURM_SHELL_STEP])
def test_missing_srun_warns_inside_an_allocation_for_several_tasks(environ):
    assert not in_step(environ)
    hint = missing_srun(environ)
    assert hint is not None
    assert "allocation is for 7 tasks" in hint
    assert "`srun python ...`" in hint
    assert "\n" not in hint


@pytest.mark.parametrize("environ", [{}, SRUN, {"SLURM_NTASKS": "1"}, {"SLURM_NTASKS": "x"}])
def test_missing_srun_is_silent_elsewhere(environ):
    assert missing_srun(environ) is None
