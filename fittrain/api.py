"""The few functions beside `Trainer`: starting, and knowing which rank this is.

Synopsis::

    import fittrain

    fittrain.init(seed=7)
    data = load() if fittrain.is_chief() else None
    data = fittrain.broadcast_object(data)
"""

from __future__ import annotations

import os
from typing import TypeVar

from fittrain import session
from fittrain.comm.base import Communicator

Value = TypeVar("Value")


def init(
    backend: str | Communicator = "auto",
    *,
    seed: int | None = None,
    run_dir: str | os.PathLike[str] | None = None,
) -> session.Session:
    """Starts fittrain in this process. Collective; calling it twice is harmless.

    Pins a GPU, sets threads, starts the backend, seeds Python, NumPy and TensorFlow, and makes the
    job end when a rank fails. `Trainer` calls it where the script did not. Call it before the first
    TensorFlow operation if the script builds its model itself, so that thread counts hold.

    Args:
        backend: "auto", "horovod", "mpi", "local", or a `Communicator`.
        seed: base of every random stream; the same on all ranks. None draws one.
        run_dir: folder for logs and error reports. None writes no files.

    Raises:
        ArgumentError: if another backend was started before.
        MissingDependencyError: if what the backend needs is not installed.
        LaunchError: if launcher, MPI library and ranks do not fit together.
    """
    return session.start(backend, seed=seed, run_dir=run_dir)


def rank() -> int:
    """Number of this process, from 0. Collective where it starts fittrain."""
    return session.start().communicator.rank


def size() -> int:
    """Number of processes. Collective where it starts fittrain."""
    return session.start().communicator.size


def local_rank() -> int:
    """Number of this process among those on its host. Collective where it starts fittrain."""
    return session.start().communicator.local_rank


def is_chief() -> bool:
    """Whether this is rank 0, which speaks for all. Collective where it starts fittrain."""
    return session.start().communicator.is_chief


def barrier() -> None:
    """Collective: returns when every rank has called it."""
    session.start().communicator.barrier()


def broadcast_object(value: Value, root: int = 0) -> Value:
    """Collective: `root`'s value on every rank. Any picklable object of any size."""
    return session.start().communicator.broadcast(value, root)
