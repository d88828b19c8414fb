"""The one started fittrain of this process: launcher, communicator, supervision, logs, seeds.

Synopsis::

    session = start(backend="auto", seed=7, run_dir="runs/digits")
    session.communicator.rank
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

import keras

from fittrain import comm
from fittrain.comm.base import Communicator
from fittrain.errors import ArgumentError
from fittrain.runtime import devices, host, logs, seeds
from fittrain.runtime.launcher import Launcher, check_library, check_size
from fittrain.supervise import Supervisor

logger = logging.getLogger(__name__)


@dataclass
class Session:
    """What `fittrain.init` started.

    Attributes:
        launcher: what started this process.
        communicator: how ranks talk.
        backend_reason: why this backend, in words.
        threads_per_rank: TensorFlow threads of this rank.
        supervisor: ends the job when a rank fails.
        seed: the base of every random stream; the same on all ranks.
        run_dir: the run folder, or None.
    """

    launcher: Launcher
    communicator: Communicator
    backend_reason: str
    threads_per_rank: int
    supervisor: Supervisor
    seed: int
    run_dir: Path | None = None

    def use_run_dir(self, run_dir: str | os.PathLike[str]) -> None:
        """Sends logs and error reports of this rank to a run folder from now on."""
        self.run_dir = self.supervisor.run_dir = Path(run_dir)
        logs.configure(self.communicator.rank, self.communicator.size, self.run_dir)


_session: Session | None = None
_preferred: str | Communicator = "auto"


def current() -> Session | None:
    """The session, if one was started."""
    return _session


def prefer(backend: str | Communicator) -> None:
    """Remembers the backend that a trainer asks for, until something starts fittrain.

    A script may ask for its rank between making a trainer and training.
    """
    global _preferred
    if backend != "auto":
        _preferred = backend


def start(
    backend: str | Communicator = "auto",
    *,
    seed: int | None = None,
    run_dir: str | os.PathLike[str] | None = None,
) -> Session:
    """Starts fittrain in this process, or returns what was started before. Collective.

    Args:
        backend: "auto", "local", "horovod", "mpi", or a `Communicator`.
        seed: base of every random stream. None draws one on rank 0.
        run_dir: folder for logs and error reports. None writes no files.

    Raises:
        ArgumentError: if a different backend was started before.
        MissingDependencyError: if what the backend needs is not installed.
        LaunchError: if launcher, MPI library and ranks do not fit together.
    """
    global _session
    if _session is None:
        _session = _start(_preferred if backend == "auto" else backend, seed, run_dir)
    else:
        _check_same_backend(_session, backend)
        if seed is not None:
            _session.communicator.agree({"seed": seed})
            _session.seed = seed
            seeds.set_seeds(seed)
        if run_dir is not None:
            _session.use_run_dir(run_dir)
    return _session


def _start(
    backend: str | Communicator, seed: int | None, run_dir: str | os.PathLike[str] | None
) -> Session:
    if keras.config.backend() != "tensorflow":
        raise ArgumentError(
            "fittrain needs Keras on TensorFlow. "
            f"Received: {keras.config.backend()!r} in keras.json. Set KERAS_BACKEND=tensorflow."
        )
    share = host.claim(os.environ)
    launcher = share.launcher
    communicator, reason = _communicator(backend, launcher)
    folder = None if run_dir is None else Path(run_dir)
    logs.configure(communicator.rank, communicator.size, folder)
    for level, message in share.remarks:
        logger.log(level if communicator.is_chief else logging.DEBUG, "%s", message)
    devices.pin_gpu(communicator.local_rank, communicator.local_size)
    supervisor = Supervisor(communicator, folder)
    supervisor.install()
    communicator.agree({"seed": seed})
    common_seed = communicator.broadcast(secrets.randbelow(2**32) if seed is None else seed)
    seeds.set_seeds(common_seed)
    session = Session(
        launcher, communicator, reason, share.threads, supervisor, common_seed, folder
    )
    _introduce(session)
    return session


def _communicator(backend: str | Communicator, launcher: Launcher) -> tuple[Communicator, str]:
    if isinstance(backend, Communicator):
        return backend, "given"
    name, reason = comm.choose(backend, launcher.size)
    if name != "local":
        from fittrain.comm.mpi import library_version

        check_library(launcher, library_version())
    communicator = comm.create(name)
    # Refused before anything is trained: every rank would train alone, in the same folders.
    check_size(launcher, name, communicator.size)
    return communicator, reason


def _introduce(session: Session) -> None:
    communicator = session.communicator
    logger.info(
        "%d rank%s on %d host%s, backend %s (%s), %d thread%s each",
        communicator.size,
        "s" * (communicator.size > 1),
        hosts := len(set(communicator.gather(socket.gethostname()))),
        "s" * (hosts > 1),
        communicator.name,
        session.backend_reason,
        session.threads_per_rank,
        "s" * (session.threads_per_rank > 1),
    )


def _check_same_backend(session: Session, backend: str | Communicator) -> None:
    name = backend.name if isinstance(backend, Communicator) else backend
    if name not in ("auto", session.communicator.name):
        raise ArgumentError(
            f"`backend` {name!r} was asked for, but fittrain was started with "
            f"{session.communicator.name!r}. Call fittrain.init(backend={name!r}) first."
        )
    if isinstance(backend, Communicator) and backend is not session.communicator:
        raise ArgumentError(
            "`backend` is another Communicator than the started one, and a process holds one. "
            "Pass the same object, or start a new process."
        )
