"""`fittrain horovod build` and `fittrain horovod check`.

Owns the options and what is printed; the work is in `fittrain.horovod`.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from fittrain.cli.progress import TerminalProgress
from fittrain.errors import MissingDependencyError
from fittrain.horovod.build import BuildOptions, BuildResult
from fittrain.horovod.features import Features


@click.group()
def horovod() -> None:
    """Build, install and check Horovod.

    Horovod's last release does not compile against current TensorFlow as it is. `build` fetches
    it, checks it, applies fittrain's patches and compiles it against the TensorFlow and MPI of
    this Python.
    """


# \b tells click to keep the lines of the paragraph as they are.
_BUILD_EXAMPLES = """\b
Examples:
  fittrain horovod build
  fittrain horovod build --jobs 8
  fittrain horovod build --wheel-dir wheels/
  fittrain horovod build --gpu nccl
"""


@horovod.command(epilog=_BUILD_EXAMPLES)
@click.option("--force", is_flag=True, help="Compile, install and prove again, whatever is there.")
@click.option(
    "--jobs", "-j", type=click.IntRange(min=1), metavar="N",
    help="Compilers at a time. [default: what cores and memory allow]",
)  # fmt: skip
@click.option(
    "--wheel-dir", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="Also copy the wheel to DIR, for machines without a compiler.",
)  # fmt: skip
@click.option(
    "--gpu", type=click.Choice(["nccl"]),
    help="Compile GPU operations too. Needs the CUDA toolkit, NCCL and a GPU TensorFlow.",
)  # fmt: skip
def build(force: bool, jobs: int | None, wheel_dir: Path | None, gpu: str | None) -> None:
    """Compile and install Horovod for this Python, TensorFlow and MPI.

    Takes about three minutes on two cores, once: the wheel is kept in the cache folder
    ($XDG_CACHE_HOME or ~/.cache, under fittrain/horovod) and used again for the same versions.
    When the right Horovod is installed already, nothing is done.

    Ends with a job of two ranks whose all-reduce has a known answer. If that fails, Horovod is
    uninstalled again.
    """
    from fittrain.horovod.build import build as build_horovod

    progress = TerminalProgress()
    failed = True
    try:
        result = build_horovod(BuildOptions(force, jobs, wheel_dir, gpu), progress)
        failed = False
    finally:
        progress.end(failed)
    click.echo(_summary(result))


@horovod.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(as_json: bool) -> None:
    """Show what is installed and built in, or why it does not load.

    Loads Horovod in a process of its own. Exit code 0 if it loads, 1 if not.
    """
    from fittrain.horovod.environment import base_environment
    from fittrain.horovod.features import read_features
    from fittrain.horovod.mpi_library import loaded_by_mpi4py

    environment = base_environment()
    features = read_features(environment)
    try:
        mpi = str(loaded_by_mpi4py(environment))
    except MissingDependencyError as error:
        # Horovod itself loads, so this is a fact to show and no reason to fail.
        mpi = str(error).splitlines()[0]
    click.echo(_as_json(features, mpi) if as_json else _as_table(features, mpi))


def _summary(result: BuildResult) -> str:
    lines = [f"Horovod {result.version}: {result.action}."]
    if result.proof is not None:
        lines.append(f"Proof: {result.proof}.")
    if result.wheel is not None:
        lines.append(f"Wheel: {result.wheel}")
    return "\n".join(lines)


def _as_table(features: Features, mpi: str) -> str:
    by_fittrain = "+fittrain." in features.version
    rows = [
        ("Horovod", features.version + ("" if by_fittrain else "  (not built by fittrain)")),
        ("Folder", str(features.folder)),
        ("TensorFlow", features.tensorflow or "unknown"),
        ("MPI library", mpi),
    ]
    names = {"mpi": "MPI", "gloo": "Gloo", "nccl": "NCCL", "cuda": "CUDA", "rocm": "ROCm"}
    rows += [(names.get(n, n), "yes" if built else "no") for n, built in features.built.items()]
    return "\n".join(f"{name:<12} {value}" for name, value in rows)


def _as_json(features: Features, mpi: str) -> str:
    described = {
        "version": features.version,
        "folder": str(features.folder),
        "tensorflow": features.tensorflow,
        "mpi_library": mpi,
        "built": dict(features.built),
    }
    return json.dumps(described)
