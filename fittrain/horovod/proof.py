"""Proof that the installed Horovod works: two ranks, one all-reduce, a known answer.

Owns the job and the reading of its answer; what the ranks run is `proof_program`.

Example::

    answer = prove(tools.launcher, environment, progress, log_folder)     # "2 ranks on CPU"
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fittrain.errors import BuildError
from fittrain.horovod.commands import Completed, run
from fittrain.horovod.environment import job_variables
from fittrain.horovod.failures import failure
from fittrain.horovod.features import explain
from fittrain.horovod.progress import Progress

TIMEOUT_SECONDS = 180.0
_PROGRAM = Path(__file__).with_name("proof_program.py")


def prove(
    launcher: str,
    environment: Mapping[str, str],
    progress: Progress,
    log_folder: Path,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> str:
    """Runs the 2-rank job and returns a line about it.

    Raises:
        BuildError: It fails, hangs, or gives another answer than the known one.
    """
    command = [launcher, "-n", "2", sys.executable, "-c", _PROGRAM.read_text(encoding="utf-8")]
    # A folder of its own: a `horovod` folder in the current one must not be imported instead.
    with tempfile.TemporaryDirectory(prefix="fittrain-proof-") as folder:
        done = run(
            command,
            environment={**environment, **job_variables()},
            folder=Path(folder),
            progress=progress,
            timeout_seconds=timeout_seconds,
        )
    if done.exit_code or done.timed_out:
        reason = explain(done.output)
        if reason is not None and not done.timed_out:
            raise BuildError(f"The 2-rank proof failed. {reason}")
        raise failure("The 2-rank proof", done, log_folder)
    return _judge(done)


def _judge(done: Completed) -> str:
    lines = re.findall(r"fittrain-proof (\{.*?\})", done.output)
    seen: list[dict[str, Any]] = [json.loads(line) for line in lines]
    if any(rank["size"] != 2 for rank in seen):
        raise BuildError(
            "The 2-rank proof failed: the launcher and Horovod's MPI do not fit, each rank saw "
            f"{seen[0]['size']} rank(s) instead of 2. Put the `mpirun` of the MPI that Horovod was "
            "built with first in PATH."
        )
    if sorted(rank["rank"] for rank in seen) != [0, 1] or any(rank["wrong"] for rank in seen):
        raise BuildError(f"The 2-rank proof gave a wrong answer: {seen or done.last_lines(3)}.")
    device = seen[0]["device"].partition(":")[0]
    unused = seen[0].get("nccl") and device == "CPU"
    remark = " (NCCL was not used: there is not one GPU for each rank)" if unused else ""
    return f"2 ranks on {device} gave the known answer{remark}"
