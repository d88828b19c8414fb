"""Affinity masks, really set in child processes."""

import json
import logging
import os
import subprocess
import sys

import pytest

from fittrain.runtime import affinity
from fittrain.runtime.affinity import Affinity, is_pinned, launcher_mask, widen_affinity
from fittrain.runtime.launcher import Launcher

CORES = sorted(os.sched_getaffinity(0))
OPENMPI = Launcher("openmpi", rank=0, size=2, local_rank=0, local_size=2)
several_cores = pytest.mark.skipif(len(CORES) < 2, reason="needs two processors")

# A rank that is pinned to `sys.argv[3]` and already has a second thread, as after an import.
RANK = """
import json, os, sys, threading
from fittrain.runtime.affinity import widen_affinity
from fittrain.runtime.launcher import Launcher

os.sched_setaffinity(0, json.loads(sys.argv[3]))
stop = threading.Event()
thread = threading.Thread(target=stop.wait)
thread.start()
result = widen_affinity(Launcher(sys.argv[1], 0, 2, 0, 2), json.loads(sys.argv[2]))
tasks = [sorted(os.sched_getaffinity(int(task))) for task in os.listdir("/proc/self/task")]
stop.set()
print(json.dumps([sorted(result.mask), result.widened, result.message, tasks]))
"""


def rank(launcher, cores, environ=None):
    command = [sys.executable, "-c", RANK, launcher, json.dumps(environ or {}), json.dumps(cores)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)


@several_cores
@pytest.mark.parametrize("launcher", ["openmpi", "mpich", "mvapich"])
def test_run_02_one_core_of_many_is_widened_for_all_threads(launcher):
    mask, widened, message, tasks = rank(launcher, CORES[:1])
    assert widened
    assert mask == CORES
    assert tasks == [CORES, CORES]
    assert message == (
        f"The launcher pinned this rank to one core (processor {CORES[0]}) of {len(CORES)}; it may "
        "now use all of them. `mpirun --bind-to none` avoids this."
    )


@several_cores
def test_intel_mpi_is_told_its_own_setting():
    mask, widened, message, _ = rank("intelmpi", CORES[:1])
    assert (mask, widened) == (CORES, True)
    assert message.endswith("I_MPI_PIN=off avoids this.")


@several_cores
def test_run_02_a_kept_binding_is_warned_of():
    mask, widened, message, _ = rank("openmpi", CORES[:1], {"FITTRAIN_KEEP_BINDING": "1"})
    assert (mask, widened) == (CORES[:1], False)
    assert "one core" in message
    assert "FITTRAIN_KEEP_BINDING=1 keeps it there; `mpirun --bind-to none`" in message
    assert "\n" not in message


@several_cores
def test_slurm_cores_are_never_taken_from_other_jobs():
    mask, widened, message, _ = rank("slurm", CORES[:1])
    assert (mask, widened) == (CORES[:1], False)
    assert "`srun --cpus-per-task=N` gives each rank N cores" in message


@several_cores
def test_a_mask_set_without_a_launcher_stays():
    assert rank("none", CORES[:1])[:3] == [CORES[:1], False, None]


def test_a_mask_of_all_cores_stays():
    assert rank("openmpi", CORES)[:3] == [CORES, False, None]


def test_a_deliberate_mask_of_several_cores_is_not_pinned(monkeypatch):
    monkeypatch.setattr(affinity, "physical_cores", len)
    assert not is_pinned(frozenset({0, 1}), frozenset(range(8)))
    assert is_pinned(frozenset({0}), frozenset(range(8)))


def test_two_hardware_threads_of_one_core_are_pinned(monkeypatch):
    monkeypatch.setattr(affinity, "physical_cores", lambda mask: len({cpu % 4 for cpu in mask}))
    assert is_pinned(frozenset({0, 4}), frozenset(range(8)))
    assert not is_pinned(frozenset({0}), frozenset({0, 4}))


def test_a_refusal_of_the_system_is_a_warning(monkeypatch):
    def refuse(process, mask):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    monkeypatch.setattr(affinity, "launcher_mask", lambda: frozenset({0, 1}))
    monkeypatch.setattr(affinity, "physical_cores", len)
    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    result = widen_affinity(OPENMPI, {})
    assert (result.mask, result.widened, result.level) == ({0}, False, logging.WARNING)
    assert "the system refuses more (Operation not permitted)" in (result.message or "")


def test_healed_is_told_at_info():
    assert Affinity(frozenset({0}), frozenset({0}), widened=True).level == logging.INFO


def test_the_walk_to_the_launcher_goes_through_scripts_and_stops(monkeypatch):
    processes = {9: ("bash", 8), 8: ("prterun", 7), 7: ("bash", 1)}
    masks = {9: {0}, 8: {0, 1}, 7: {0, 1, 2, 3}}
    monkeypatch.setattr(os, "getppid", lambda: 9)
    monkeypatch.setattr(affinity, "_name_and_parent", processes.__getitem__)
    monkeypatch.setattr(os, "sched_getaffinity", masks.__getitem__)
    assert launcher_mask() == {0, 1}


def test_without_a_known_daemon_the_parent_counts(monkeypatch):
    processes = {9: ("agent", 8), 8: ("init", 1)}
    monkeypatch.setattr(os, "getppid", lambda: 9)
    monkeypatch.setattr(affinity, "_name_and_parent", processes.__getitem__)
    monkeypatch.setattr(os, "sched_getaffinity", {9: {0, 1}, 8: {0, 1, 2}}.__getitem__)
    assert launcher_mask() == {0, 1}


def test_a_parent_that_is_gone_leaves_the_own_mask(monkeypatch):
    monkeypatch.setattr(os, "getppid", lambda: 2**22 + 1)
    assert launcher_mask() == frozenset(CORES)
