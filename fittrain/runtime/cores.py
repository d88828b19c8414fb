"""How many processor cores this process may use.

Owns the count: affinity mask, container quota, hardware threads of a core, threads for each rank.
`affinity.py` changes the mask.

    threads = threads_per_rank(launcher.local_size, len(affinity.mask),
                               usable_cores(affinity.available))
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

_CGROUPS = Path("/sys/fs/cgroup")
_CPUS = Path("/sys/devices/system/cpu")


def usable_cores(
    mask: Iterable[int] | None = None,
    groups: str | None = None,
    mount: Path = _CGROUPS,
) -> int:
    """Returns how many cores are free to use: the affinity mask, capped by the CPU quota.

    `os.cpu_count()` knows neither: in a container with 2 CPUs on a host of 64 it says 64.

    Args:
        mask: Processor numbers; this process's own by default. Where the launcher gives each rank a
            part, pass the whole that the parts are taken from.
        groups: The text of `/proc/self/cgroup`, read when None.
        mount: Where the control groups are mounted.

    Returns:
        At least 1. A quota that is not whole is rounded up.

    Example:
        >>> usable_cores([0, 1, 2, 3], groups="")
        4
    """
    count = len(set(os.sched_getaffinity(0) if mask is None else mask))
    quota = cpu_quota(_own_groups() if groups is None else groups, mount)
    return max(1, count if quota is None else min(count, math.ceil(quota)))


def threads_per_rank(local_size: int, mask_cores: int, usable: int) -> int:
    """Returns how many threads a rank gets, so that the ranks of a host share its cores.

    Args:
        local_size: Ranks on this host.
        mask_cores: Cores in this rank's own affinity mask.
        usable: Cores that all ranks of this host have together.

    Example:
        >>> threads_per_rank(local_size=4, mask_cores=16, usable=16)
        4
    """
    return max(1, min(mask_cores, usable // local_size))


def cpu_quota(groups: str, mount: Path = _CGROUPS) -> float | None:
    """Returns the tightest CPU quota over this process, in cores.

    Args:
        groups: The text of `/proc/self/cgroup`.
        mount: Where the control groups are mounted, version 1 or 2 or both.

    Returns:
        None where nothing is limited.

    Example:
        >>> cpu_quota("0::/", Path("/nowhere")) is None
        True
    """
    quotas = []
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            quotas += [_quota_v2(folder) for folder in _upwards(mount, path)]
        elif "cpu" in controllers.split(","):
            quotas += [_quota_v1(folder) for folder in _upwards(mount / controllers, path)]
            quotas += [_quota_v1(folder) for folder in _upwards(mount / "cpu", path)]
    return min((quota for quota in quotas if quota is not None), default=None)


def physical_cores(mask: Iterable[int], cpus: Path = _CPUS) -> int:
    """Returns the number of cores behind a mask: hardware threads of one core count once.

    Args:
        mask: Processor numbers.
        cpus: Where the kernel describes the processors.

    Example:
        >>> physical_cores([0], Path("/nowhere"))
        1
    """
    return len({_siblings(cpus, number) for number in mask})


def _own_groups() -> str:
    try:
        return Path("/proc/self/cgroup").read_text()
    except OSError:
        return ""


def _upwards(root: Path, path: str) -> list[Path]:
    # Inside a container the path is often the host's and does not exist below the mount; the
    # mount's root is then the container's own group, and it comes last here.
    relative = PurePosixPath(path.lstrip("/"))
    parts = [part for part in (relative, *relative.parents) if ".." not in part.parts]
    return [root / part for part in parts] or [root]


def _quota_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _quota_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 and period > 0 else None


def _siblings(cpus: Path, number: int) -> str:
    try:
        return (cpus / f"cpu{number}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(number)
