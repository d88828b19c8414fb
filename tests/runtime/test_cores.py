"""Counting the cores a process may use."""

import os

import pytest

from fittrain.runtime.cores import cpu_quota, physical_cores, threads_per_rank, usable_cores


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("limit", "cores"),
    [("200000 100000", 2.0), ("150000 100000", 1.5), ("max 100000", None), ("broken", None)],
)
def test_quota_of_control_groups_version_2(tmp_path, limit, cores):
    write(tmp_path / "job" / "cpu.max", limit)
    assert cpu_quota("0::/job", tmp_path) == cores


def test_quota_takes_the_tightest_group_above(tmp_path):
    write(tmp_path / "job" / "cpu.max", "300000 100000")
    write(tmp_path / "job" / "task" / "cpu.max", "max 100000")
    write(tmp_path / "cpu.max", "800000 100000")
    assert cpu_quota("0::/job/task", tmp_path) == 3.0


def test_quota_in_a_container_is_at_the_mount(tmp_path):
    write(tmp_path / "cpu.max", "200000 100000")
    assert cpu_quota("0::/kubepods/pod7/abc", tmp_path) == 2.0
    assert cpu_quota("0::/../../abc", tmp_path) == 2.0


@pytest.mark.parametrize("controllers", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize(("microseconds", "cores"), [("250000", 2.5), ("-1", None)])
def test_quota_of_control_groups_version_1(tmp_path, controllers, microseconds, cores):
    write(tmp_path / controllers / "docker" / "cpu.cfs_quota_us", microseconds)
    write(tmp_path / controllers / "docker" / "cpu.cfs_period_us", "100000")
    assert cpu_quota(f"4:memory:/docker\n3:{controllers}:/docker\n0::/", tmp_path) == cores


@pytest.mark.parametrize(
    ("limit", "cores"),
    [("max 100000", 8), ("250000 100000", 3), ("10000 100000", 1), ("1600000 100000", 8)],
)
def test_usable_cores_is_mask_and_quota_rounded_up(tmp_path, limit, cores):
    write(tmp_path / "cpu.max", limit)
    assert usable_cores(range(8), "0::/", tmp_path) == cores


def test_usable_cores_never_exceed_this_process_mask():
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("local_size", "mask_cores", "usable", "threads"),
    [(2, 2, 2, 1), (1, 8, 8, 8), (2, 4, 8, 4), (4, 2, 2, 1), (2, 8, 8, 4), (2, 1, 8, 1)],
)
def test_run_01_ranks_share_the_cores(local_size, mask_cores, usable, threads):
    assert threads_per_rank(local_size, mask_cores, usable) == threads


def test_hardware_threads_of_one_core_count_once(tmp_path):
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        write(tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list", f"{siblings}\n")
    assert physical_cores({0, 2}, tmp_path) == 1
    assert physical_cores({0, 1, 2, 3}, tmp_path) == 2


def test_processors_without_a_description_count_as_cores(tmp_path):
    assert physical_cores({0, 5}, tmp_path) == 2
