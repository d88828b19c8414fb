"""`fittrain horovod build`: from whatever is there to a Horovod that is proved to work.

Owns the order of events: look at this machine, take a wheel from the cache or make one, install it,
prove it with two ranks. Installing comes after everything that usually fails, and a wheel that does
not prove itself is taken out again.

Example::

    result = build(BuildOptions(jobs=2), progress)
    print(result.version, result.proof)
"""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fittrain.errors import BuildError, MissingDependencyError
from fittrain.horovod.compile import CompilePlan, compile_wheel
from fittrain.horovod.environment import base_environment
from fittrain.horovod.failures import os_failure
from fittrain.horovod.features import require_horovod
from fittrain.horovod.gpu import NcclToolkit, architectures, find_nccl_toolkit
from fittrain.horovod.install import install_wheel, uninstall
from fittrain.horovod.mpi_library import MpiLibrary, loaded_by_mpi4py
from fittrain.horovod.patches import digest, patches_for
from fittrain.horovod.progress import Progress, Silent
from fittrain.horovod.proof import prove
from fittrain.horovod.requirements import (
    BUILD_MEGABYTES,
    WHEEL_MEGABYTES,
    Package,
    default_jobs,
    find_tools,
    installed,
    installed_tensorflow,
    require_pip,
    require_platform,
    require_room,
    require_writable,
)
from fittrain.horovod.sources import HOROVOD_VERSION
from fittrain.horovod.wheel_cache import WheelCache, WheelKey


@dataclass(frozen=True)
class BuildOptions:
    """What people may choose.

    Args:
        force: Build, install and prove again, whatever is there.
        jobs: Compilers at a time; `None` means as many as cores and memory allow.
        wheel_dir: Folder that gets a copy of the wheel.
        gpu: `"nccl"` for GPU operations through NCCL, or `None`.
    """

    force: bool = False
    jobs: int | None = None
    wheel_dir: Path | None = None
    gpu: str | None = None


@dataclass(frozen=True)
class BuildResult:
    """What was done.

    Args:
        version: The installed version of Horovod.
        action: `"already installed"`, `"installed from the cache"` or `"built"`.
        proof: The answer of the 2-rank job, or `None` if it was not needed.
        wheel: The copy in `wheel_dir`, or `None`.
    """

    version: str
    action: str
    proof: str | None = None
    wheel: Path | None = None


@dataclass(frozen=True)
class _Stack:
    """This machine, as far as the wheel depends on it."""

    tensorflow: Package
    mpi: MpiLibrary
    toolkit: NcclToolkit | None
    key: WheelKey


def build(
    options: BuildOptions, progress: Progress | None = None, cache: WheelCache | None = None
) -> BuildResult:
    """Builds, installs and proves Horovod, doing only what is not done yet.

    Args:
        options: What people chose.
        progress: Listener; `None` shows nothing.
        cache: Wheels; `None` means the user's cache folder.

    Raises:
        MissingDependencyError: Something that must be installed first is missing.
        BuildError: A step failed. Horovod is then as it was before, or, if the step was the
            proof, not installed.
    """
    progress = progress or Silent()
    cache = cache or WheelCache()
    environment = base_environment()
    stack = _look(environment, options.gpu)
    wheel = None if options.force else cache.find(stack.key)
    has_copy = options.wheel_dir is None or wheel is not None
    if not options.force and has_copy and _is_current(stack.key, cache, wheel):
        copy = _copy(wheel, options.wheel_dir)
        return BuildResult(stack.key.version, "already installed", wheel=copy)
    launcher = find_tools(environment).launcher
    action = "built" if wheel is None else "installed from the cache"
    if wheel is None:
        wheel = _make(stack, options, environment, progress, cache)
    copy = _copy(wheel, options.wheel_dir)
    progress.step(f"Installing {wheel.name}")
    install_wheel(wheel, environment, progress, cache.folder)
    proof = _prove(stack.key, launcher, environment, progress, cache)
    return BuildResult(stack.key.version, action, proof, copy)


def _look(environment: dict[str, str], gpu: str | None) -> _Stack:
    require_platform()
    tensorflow = installed_tensorflow()
    require_pip()
    toolkit = find_nccl_toolkit(environment, tensorflow) if gpu == "nccl" else None
    mpi = loaded_by_mpi4py(environment)
    generations = environment.get("HOROVOD_BUILD_CUDA_CC_LIST") or architectures(environment)
    key = WheelKey(
        horovod=HOROVOD_VERSION,
        patches=digest(patches_for(gpu)),
        tensorflow=str(tensorflow),
        python=f"cp{sys.version_info[0]}{sys.version_info[1]}",
        machine=platform.machine(),
        mpi=str(mpi),
        gpu="none" if toolkit is None else f"{toolkit}, {generations or 'all generations'}",
    )
    return _Stack(tensorflow, mpi, toolkit, key)


def _is_current(key: WheelKey, cache: WheelCache, cached: Path | None) -> bool:
    """Whether the installed Horovod is this key's, whole, and proved as far as is known."""
    package = installed("horovod")
    if package is None or package.version != key.version:
        return False
    try:
        require_horovod()
    except MissingDependencyError:
        return False
    return cached is None or cache.is_proved(key)


def _make(
    stack: _Stack,
    options: BuildOptions,
    environment: dict[str, str],
    progress: Progress,
    cache: WheelCache,
) -> Path:
    """Compiles the wheel in a scratch folder and moves it into the cache."""
    require_writable(cache.folder, "the wheel cache")
    require_room(cache.folder, WHEEL_MEGABYTES, "XDG_CACHE_HOME")
    if options.wheel_dir is not None:
        require_writable(options.wheel_dir, "`--wheel-dir`")
    require_room(Path(tempfile.gettempdir()), BUILD_MEGABYTES, "TMPDIR")
    plan = CompilePlan(
        key=stack.key,
        tools=find_tools(environment),
        loaded_mpi=stack.mpi,
        toolkit=stack.toolkit,
        environment=environment,
        jobs=options.jobs or default_jobs(),
        log_folder=cache.folder,
    )
    try:
        with tempfile.TemporaryDirectory(
            prefix="fittrain-horovod-", ignore_cleanup_errors=True
        ) as scratch:
            return cache.store(compile_wheel(plan, Path(scratch), progress), stack.key)
    except OSError as error:
        raise os_failure("Building Horovod", error) from error


def _prove(
    key: WheelKey,
    launcher: str,
    environment: dict[str, str],
    progress: Progress,
    cache: WheelCache,
) -> str:
    """Proves the installed wheel; takes it out of Python and cache if that fails."""
    progress.step("Proving it: 2 ranks, one all-reduce of known answer")
    try:
        proof = prove(launcher, environment, progress, cache.folder)
    except BuildError as error:
        uninstall(environment)
        cache.drop(key)
        raise BuildError(f"{error}\nHorovod was uninstalled again.") from error
    cache.mark_proved(key)
    return proof


def _copy(wheel: Path | None, folder: Path | None) -> Path | None:
    """Copies the wheel into the folder that people asked for."""
    if wheel is None or folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy2(wheel, folder / wheel.name))
    except OSError as error:
        raise os_failure(f"Copying the wheel to `{folder}`", error) from error
