"""What a build with NCCL needs, and how it is told to Horovod.

Owns the search for nvcc and NCCL. NCCL may come from a toolkit or from NVIDIA's pip wheel, which
holds `nccl.h` and `libnccl.so.2` but not the `libnccl.so` that a linker asks for: a small folder of
links stands in for it.

Example::

    nccl = find_nccl_toolkit(environment, tensorflow)
    variables = nccl.variables(scratch)
"""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fittrain.errors import MissingDependencyError
from fittrain.horovod.commands import run
from fittrain.horovod.requirements import Package

_SYSTEM_CUDA = Path("/usr/local/cuda")
_SYSTEM_PREFIX = Path("/usr")
_CUDA_VARIABLES = ("HOROVOD_CUDA_HOME", "CUDA_HOME", "CUDAToolkit_ROOT", "CUDA_PATH")
_NEEDS = (
    "A build with NCCL needs: the CUDA toolkit with `nvcc` (12 preferred, as TensorFlow uses; set "
    "HOROVOD_CUDA_HOME if it is not in PATH), NCCL with `nccl.h` (in `fittrain[gpu]`; else set "
    "HOROVOD_NCCL_HOME), and a TensorFlow built for CUDA (`pip install 'fittrain[gpu]'`)."
)


@dataclass(frozen=True)
class NcclToolkit:
    """CUDA and NCCL as found on this machine.

    Args:
        cuda_home: Folder whose `bin/nvcc` compiles.
        cuda_version: Of nvcc, such as "12.9".
        header: `nccl.h`.
        library: `libnccl.so` or `libnccl.so.2`.
        nccl_version: From the header, such as "2.27.7".
    """

    cuda_home: Path
    cuda_version: str
    header: Path
    library: Path
    nccl_version: str

    def __str__(self) -> str:
        return f"NCCL {self.nccl_version}, CUDA {self.cuda_version}"

    def variables(self, scratch: Path) -> dict[str, str]:
        """Returns Horovod's build variables; links to NCCL are made in `scratch`."""
        home = scratch / "nccl"
        (home / "lib").mkdir(parents=True)
        (home / "lib" / "libnccl.so").symlink_to(self.library)
        (home / "include").symlink_to(self.header.parent)
        return {
            "HOROVOD_GPU_OPERATIONS": "NCCL",
            "HOROVOD_CUDA_HOME": str(self.cuda_home),
            "HOROVOD_NCCL_HOME": str(home),
            "HOROVOD_NCCL_LINK": "SHARED",
        }


def find_nccl_toolkit(environment: Mapping[str, str], tensorflow: Package) -> NcclToolkit:
    """Finds nvcc and NCCL.

    Raises:
        MissingDependencyError: One is missing; the message lists all that is needed.
    """
    if tensorflow.name != "tensorflow":
        raise MissingDependencyError(f"{tensorflow} has no CUDA. {_NEEDS}")
    cuda_home = _cuda_home(environment)
    if cuda_home is None:
        raise MissingDependencyError(f"No `nvcc` found. {_NEEDS}")
    found = _nccl(environment)
    if found is None:
        raise MissingDependencyError(f"No NCCL (`nccl.h` with its library) found. {_NEEDS}")
    header, library = found
    version = _nvcc_version(cuda_home, environment)
    return NcclToolkit(cuda_home, version, header, library, _nccl_version(header))


def architectures(environment: Mapping[str, str]) -> str | None:
    """Returns this machine's GPU generations as Horovod wants them ("90"), or `None`.

    Compiling for every generation that nvcc knows takes longer and makes a larger library.
    """
    program = shutil.which("nvidia-smi", path=environment.get("PATH", ""))
    if program is None:
        return None
    query = [program, "--query-gpu=compute_cap", "--format=csv,noheader"]
    done = run(query, environment=environment, timeout_seconds=30)
    found = sorted({line.strip().replace(".", "") for line in done.output.splitlines()})
    good = done.exit_code == 0 and found and all(text.isdigit() for text in found)
    return ",".join(found) if good else None


def _cuda_home(environment: Mapping[str, str]) -> Path | None:
    candidates = [Path(environment[name]) for name in _CUDA_VARIABLES if environment.get(name)]
    in_path = shutil.which("nvcc", path=environment.get("PATH", ""))
    if in_path is not None:
        candidates.append(Path(in_path).resolve().parents[1])
    candidates.append(_SYSTEM_CUDA)
    return next(filter(_is_toolkit, candidates), None)


def _is_toolkit(home: Path) -> bool:
    """Whether a folder has nvcc and its headers; an nvcc in PATH may be a mere wrapper script."""
    headers = [*home.glob("include/cuda_runtime.h"), *home.glob("targets/*/include/cuda_runtime.h")]
    return bool(headers) and os.access(home / "bin" / "nvcc", os.X_OK)


def _nccl(environment: Mapping[str, str]) -> tuple[Path, Path] | None:
    """Returns the header and the library of the first NCCL that has both."""
    for home in _nccl_homes(environment):
        header = home / "include" / "nccl.h"
        folders = [home / "lib", home / "lib64", *home.glob("lib/*-linux-gnu")]
        names = [folder / name for folder in folders for name in ("libnccl.so.2", "libnccl.so")]
        library = next((name for name in names if name.exists()), None)
        if header.exists() and library is not None:
            return header, library
    return None


def _nccl_homes(environment: Mapping[str, str]) -> list[Path]:
    given = environment.get("HOROVOD_NCCL_HOME")
    wheel = Path(sysconfig.get_path("platlib")) / "nvidia" / "nccl"
    cuda = _cuda_home(environment)
    return [*([Path(given)] if given else []), wheel, *([cuda] if cuda else []), _SYSTEM_PREFIX]


def _nvcc_version(cuda_home: Path, environment: Mapping[str, str]) -> str:
    done = run([cuda_home / "bin" / "nvcc", "--version"], environment=environment)
    found = re.search(r"release (\d+\.\d+)", done.output)
    return found.group(1) if found else "unknown"


def _nccl_version(header: Path) -> str:
    text = header.read_text(encoding="utf-8", errors="replace")
    numbers = [
        re.search(rf"#define\s+NCCL_{part}\s+(\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")
    ]
    return ".".join(number.group(1) for number in numbers if number) or "unknown"
