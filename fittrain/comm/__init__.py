"""Choosing and starting the way in which ranks talk.

Synopsis::

    name, reason = choose("auto", size=8)     # "horovod", "Horovod is installed"
    communicator = create(name)
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from fittrain.comm.agreement import name_ranks
from fittrain.comm.base import Communicator
from fittrain.errors import ArgumentError

__all__ = ["BACKENDS", "Communicator", "choose", "create", "name_ranks"]

BACKENDS = {
    "local": "fittrain.comm.local:LocalCommunicator",
    "horovod": "fittrain.comm.hvd:HorovodCommunicator",
    "mpi": "fittrain.comm.mpi:MpiCommunicator",
}


def choose(backend: str, size: int) -> tuple[str, str]:
    """The backend to use and, in words, why.

    Args:
        backend: a name of `BACKENDS`, or "auto".
        size: number of ranks that the launcher started.

    Raises:
        ArgumentError: if `backend` is unknown.
    """
    if backend != "auto":
        if backend not in BACKENDS:
            raise ArgumentError(
                f"`backend` must be 'auto', {', '.join(map(repr, BACKENDS))} or a Communicator. "
                f"Received: backend={backend!r}."
            )
        return backend, "asked for"
    if size == 1:
        return "local", "there is one rank"
    if importlib.util.find_spec("horovod") is not None:
        return "horovod", "Horovod is installed"
    return "mpi", "Horovod is not installed (fittrain horovod build)"


def create(name: str, **options: Any) -> Communicator:
    """Starts the communicator called `name`. Collective where there are several ranks.

    Args:
        name: a name of `BACKENDS`.
        **options: for the communicator's constructor.

    Raises:
        MissingDependencyError: if what the backend needs is not installed.
        LaunchError: if the parts it stands on do not fit together.
    """
    module, attribute = BACKENDS[name].split(":")
    communicator: Communicator = getattr(importlib.import_module(module), attribute)(**options)
    return communicator
