"""From the package index to a wheel, in a scratch folder.

Owns the steps in between: tools, source, patches, compilation. Nothing outside the scratch folder
changes; the caller moves the wheel where it belongs and removes the folder.

Example::

    wheel = compile_wheel(plan, scratch, progress)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from fittrain.errors import BuildError
from fittrain.horovod.commands import run
from fittrain.horovod.environment import compile_variables, with_build_tools
from fittrain.horovod.failures import failure
from fittrain.horovod.gpu import NcclToolkit, architectures
from fittrain.horovod.mpi_library import MpiLibrary, linked_by, require_same
from fittrain.horovod.patches import apply_patches, patches_for
from fittrain.horovod.progress import Progress
from fittrain.horovod.requirements import Tools
from fittrain.horovod.sources import fetch_sdist, install_build_tools, pip, unpack
from fittrain.horovod.wheel_cache import WheelKey


@dataclass(frozen=True)
class CompilePlan:
    """All that a compilation is made of.

    Args:
        key: The versions, which the wheel is named after.
        tools: Compiler, mpicxx and mpirun.
        loaded_mpi: The MPI library that mpi4py loads.
        toolkit: CUDA and NCCL, or `None` for CPU operations only.
        environment: Cleaned variables of the user.
        jobs: Compilers at a time.
        log_folder: Where the output of a failed step is kept.
    """

    key: WheelKey
    tools: Tools
    loaded_mpi: MpiLibrary
    toolkit: NcclToolkit | None
    environment: dict[str, str]
    jobs: int
    log_folder: Path


def compile_wheel(plan: CompilePlan, scratch: Path, progress: Progress) -> Path:
    """Makes the wheel and returns its place in `scratch`.

    Raises:
        BuildError: A step fails; the message names the step, the cause and the remedy.
    """
    temporary = scratch / "tmp"
    temporary.mkdir()
    # An interrupted pip leaves its own temporary folders; inside `scratch` they go with it.
    plan = replace(plan, environment={**plan.environment, "TMPDIR": str(temporary)})
    progress.step(f"Checking that {plan.tools.mpi_compiler} is {plan.loaded_mpi}")
    linked = linked_by(plan.tools.mpi_compiler, plan.environment, scratch)
    require_same(linked, plan.loaded_mpi, plan.tools.mpi_compiler)
    tools_folder = scratch / "tools"
    progress.step("Fetching the build tools")
    install_build_tools(tools_folder, plan.environment, progress, plan.log_folder)
    environment = with_build_tools(plan.environment, tools_folder)
    source = _patched_source(plan, environment, scratch, progress)
    environment.update(_variables(plan, linked, scratch))
    environment["HOROVOD_CMAKE"] = str(tools_folder / "bin" / "cmake")
    return _build(plan, source, environment, progress)


def _patched_source(
    plan: CompilePlan, environment: dict[str, str], scratch: Path, progress: Progress
) -> Path:
    progress.step(f"Fetching Horovod {plan.key.horovod} and checking its SHA-256")
    downloads = scratch / "downloads"
    downloads.mkdir()
    source = unpack(fetch_sdist(downloads, environment, progress, plan.log_folder), scratch)
    patches = patches_for("nccl" if plan.toolkit is not None else None)
    progress.step(f"Applying {len(patches)} patches")
    apply_patches(patches, source)
    return source


def _variables(plan: CompilePlan, linked: MpiLibrary, scratch: Path) -> dict[str, str]:
    variables = compile_variables(
        jobs=plan.jobs,
        mpi=linked,
        mpi_compiler=plan.tools.mpi_compiler,
        local_version=plan.key.local_version,
        nccl=plan.toolkit is not None,
    )
    if plan.toolkit is not None:
        variables.update(plan.toolkit.variables(scratch))
        generations = architectures(plan.environment)
        if generations is not None and "HOROVOD_BUILD_CUDA_CC_LIST" not in plan.environment:
            variables["HOROVOD_BUILD_CUDA_CC_LIST"] = generations
    return variables


def _build(
    plan: CompilePlan, source: Path, environment: dict[str, str], progress: Progress
) -> Path:
    progress.step(f"Compiling Horovod for {plan.key.tensorflow} and {linked_name(plan)}")
    output = source.parent / "wheel"
    # Verbose, since pip otherwise swallows make's percentages and, on failure, the error.
    command: list[str | Path] = [
        *pip(), "wheel", "--verbose", "--no-deps", "--no-build-isolation", "--use-pep517",
        "--no-cache-dir", "--wheel-dir", output, source,
    ]  # fmt: skip
    done = run(command, environment=environment, folder=source, progress=progress)
    if done.exit_code:
        raise failure("Compiling Horovod", done, plan.log_folder)
    wheels = sorted(output.glob(f"horovod-{plan.key.version}-*.whl"))
    if len(wheels) != 1:
        raise BuildError(
            f"Compiling Horovod left {len(wheels)} wheels of version {plan.key.version} instead "
            "of one. Run `fittrain horovod build --force` again."
        )
    return wheels[0]


def linked_name(plan: CompilePlan) -> str:
    """Returns MPI and, where it is used, NCCL, for people."""
    return f"{plan.loaded_mpi}" + (f", {plan.toolkit}" if plan.toolkit is not None else "")
