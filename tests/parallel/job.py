"""Starting real `mpirun` jobs, under a time limit, and looking for what they leave behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import psutil

HERE = Path(__file__).parent
MARK = "FITTRAIN_TEST_JOB"
TENSORFLOW_NOTICES = ("absl::InitializeLog", "oneDNN custom operations", "rebuild TensorFlow")


@dataclass
class Job:
    """A finished job."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float
    survivors: list[str] = field(default_factory=list)

    @property
    def errors(self) -> str:
        """Standard error without TensorFlow's start-up notices."""
        lines = self.stderr.splitlines()
        return "\n".join(
            line for line in lines if not any(notice in line for notice in TENSORFLOW_NOTICES)
        )


def mpirun_path() -> str | None:
    """The `mpirun` beside this interpreter, or the one in PATH."""
    beside = Path(sys.executable).with_name("mpirun")
    return str(beside) if beside.exists() else shutil.which("mpirun")


def run(command: list[str], *, timeout_seconds: float = 150, **environ: str) -> Job:
    """Runs a command in a process group of its own; kills the group at the time limit."""
    mark = uuid.uuid4().hex
    full = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    full |= {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", MARK: mark, **environ}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        started = time.monotonic()
        process = subprocess.Popen(command, stdout=out, stderr=err, env=full, cwd=HERE.parents[1])
        try:
            returncode = process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            returncode = -1
        seconds = time.monotonic() - started
        survivors = _survivors(mark, patience_seconds=3 if returncode != -1 else 0)
        for survivor in survivors:
            survivor.kill()
        process.wait()
        out.seek(0)
        err.seek(0)
        return Job(returncode, out.read(), err.read(), seconds, [str(p) for p in survivors])


def mpirun(ranks: int, *command: str, timeout_seconds: float = 150, **environ: str) -> Job:
    """Runs `python COMMAND` on `ranks` ranks."""
    launcher = [mpirun_path() or "mpirun", "-np", str(ranks)]
    return run([*launcher, sys.executable, *command], timeout_seconds=timeout_seconds, **environ)


@cache
def cases(ranks: int, backend: str) -> dict[str, list]:
    """Results of every case of `cases.py` for this many ranks, one list entry for each rank.

    One job runs them all, since starting TensorFlow takes longer than most of them.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = mpirun(ranks, str(HERE / "worker.py"), folder, backend, timeout_seconds=900)
        found = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
    if job.returncode != 0 or len(found) != ranks or job.survivors:
        finished = sorted({name for one in found for name in one})
        raise AssertionError(
            f"the job ended with {job.returncode} after {job.seconds:.0f} s, survivors "
            f"{job.survivors}; finished cases: {finished}\n{job.errors[-6000:]}"
        )
    return {name: [one[name] for one in found] for name in found[0]}


def _survivors(mark: str, patience_seconds: float) -> list[psutil.Process]:
    deadline = time.monotonic() + patience_seconds
    while True:
        alive = [process for process in psutil.process_iter() if _is_marked(process, mark)]
        if not alive or time.monotonic() > deadline:
            return alive
        time.sleep(0.2)


def _is_marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark
    except psutil.Error:
        return False
