"""Keras-style training on MPI clusters: N ranks compute what one rank would, faster.

Synopsis::

    import fittrain

    trainer = fittrain.Trainer(build, optimizer="adam", loss="mse", run_dir="runs/first")
    trainer.fit(x, y, batch_size=256, epochs=20)

Importing this package loads neither TensorFlow nor MPI. In a process that a launcher started it
claims this rank's share of the host: it must come before TensorFlow makes its threads.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
from typing import TYPE_CHECKING, Any

from fittrain.errors import ArgumentError, LaunchError, MissingDependencyError
from fittrain.runtime import host
from fittrain.version import __version__

if TYPE_CHECKING:
    from fittrain import layers, optimizers
    from fittrain.api import (
        barrier,
        broadcast_object,
        init,
        is_chief,
        local_rank,
        rank,
        size,
    )
    from fittrain.callback import Callback
    from fittrain.learning_rate import Warmup
    from fittrain.trainer import Trainer

_HOMES = {
    "Callback": "fittrain.callback",
    "Trainer": "fittrain.trainer",
    "Warmup": "fittrain.learning_rate",
    "barrier": "fittrain.api",
    "broadcast_object": "fittrain.api",
    "init": "fittrain.api",
    "is_chief": "fittrain.api",
    "local_rank": "fittrain.api",
    "rank": "fittrain.api",
    "size": "fittrain.api",
}

_MODULES = ("layers", "optimizers")
"""What is imported when it is first named, too."""

__all__ = [
    "Callback",
    "Trainer",
    "Warmup",
    "__version__",
    "barrier",
    "broadcast_object",
    "init",
    "is_chief",
    "layers",
    "local_rank",
    "optimizers",
    "rank",
    "size",
]

# Only environment variables and the affinity mask, and only under a launcher. What is wrong with
# the launcher's variables is said by `init`, not by an import.
with contextlib.suppress(LaunchError):
    host.claim_under_launcher(os.environ)


def __getattr__(name: str) -> Any:
    if name not in _HOMES and name not in _MODULES:
        raise AttributeError(f"module 'fittrain' has no attribute {name!r}")
    _require_tensorflow()
    if name in _MODULES:
        return importlib.import_module(f"fittrain.{name}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def _require_tensorflow() -> None:
    """Says what is wrong before Keras says it in its own way."""
    if importlib.util.find_spec("tensorflow") is None:
        raise MissingDependencyError(
            "TensorFlow is missing: pip install 'fittrain[cpu]' (or 'fittrain[gpu]')"
        )
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    if backend != "tensorflow":
        raise ArgumentError(
            "fittrain needs Keras on TensorFlow. "
            f"Received: KERAS_BACKEND={backend!r}. Set KERAS_BACKEND=tensorflow."
        )


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
