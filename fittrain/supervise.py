"""Ends the whole job when one rank can no longer take part, and says why.

MPI waits for ever for a rank that raised, called `sys.exit` or simply returned while the others are
in a collective. Three parts prevent that:

- an uncaught exception, or one that leaves a training loop, is shown, written to
  `RUN/errors/rank-NNN.json`, and ends every rank;
- a rank that leaves tells the others how many collectives it has entered;
- a thread on every rank watches for such notes, and ends the job when this rank is in a collective
  that a departed rank never entered.

Ranks that die of a signal are the launcher's business: it ends the job within a second.

Synopsis::

    supervisor = Supervisor(communicator, run_dir=Path("runs/digits"))
    supervisor.install()
    with supervisor.guard():
        train()
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from fittrain.comm.base import Communicator, raised_on_all_ranks
from fittrain.errors import FittrainError, PeerError
from fittrain.versions import versions

logger = logging.getLogger(__name__)

DEPARTURE_TAG = 7501
POLL_SECONDS = 0.2
PEER_GRACE_SECONDS = 3.0
"""How long a rank that was failed by a peer waits for that peer's own report to end the job."""

PEER_FAILURE_MARKS = ("Horovod has been shut down", "HorovodInternalError", "MPI_ERR_PROC_FAILED")


class Supervisor:
    """Watches this rank and its peers.

    Args:
        communicator: the running communicator.
        run_dir: where `errors/rank-NNN.json` goes; None writes no file.
    """

    def __init__(self, communicator: Communicator, run_dir: Path | None = None) -> None:
        self.communicator = communicator
        self.run_dir = run_dir
        self.position: dict[str, int] = {}
        self._exit: SystemExit | None = None
        self._watcher: _Watcher | None = None
        self._failing = threading.Lock()
        self._pid = os.getpid()

    def install(self) -> None:
        """Collective: takes over what happens to uncaught errors and at exit on this rank."""
        self._previous_hook = sys.excepthook
        sys.excepthook = self._on_uncaught
        sys.exit = self._on_sys_exit  # type: ignore[assignment]
        channel = getattr(self.communicator, "control_channel", None)
        if channel is not None:
            self._watcher = _Watcher(channel(), self.communicator, self._on_departure)
            self._watcher.start()
        atexit.register(self._on_exit)

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Around a loop that all ranks run: an error that leaves it ends the job.

        A caught error would leave the other ranks waiting, so there is no way around this.
        """
        try:
            yield
        except SystemExit as request:
            if request.code not in (None, 0):
                self.fail(request, exit_code=_exit_code(request))
            raise
        except (Exception, KeyboardInterrupt) as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException, exit_code: int = 1) -> None:
        """Records `error` and ends the job; returns only where the error itself does that."""
        if not self._is_this_process():
            return
        if self._is_told_elsewhere(error):
            # The rank that tells it ends this one too, before the time is over.
            time.sleep(PEER_GRACE_SECONDS)
        self._tell_and_end(error, exit_code)

    def _tell_and_end(self, error: BaseException, exit_code: int) -> None:
        # One at a time: the watching thread and the main one may fail of the same cause.
        with self._failing:
            self.record(error)
            self.communicator.end_job(lambda: self._show(error), exit_code)

    def _is_told_elsewhere(self, error: BaseException) -> bool:
        if is_peer_failure(error):
            return True
        return raised_on_all_ranks(error) and not self.communicator.is_chief

    def record(self, error: BaseException) -> None:
        """Writes `RUN/errors/rank-NNN.json`: the temporary file first, then one rename."""
        if self.run_dir is None:
            return
        path = self.run_dir / "errors" / f"rank-{self.communicator.rank:03d}.json"
        # The error matters more than its file: neither a full disk nor an error that cannot
        # print itself must hide it.
        with contextlib.suppress(Exception):
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{path.name}.{os.getpid()}")
            with partial.open("w") as file:
                json.dump(self._report(error), file, indent=2)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)

    def _report(self, error: BaseException) -> dict[str, Any]:
        return {
            "rank": self.communicator.rank,
            "size": self.communicator.size,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "time_ns": time.time_ns(),
            **self.position,
            "type": type(error).__name__,
            "message": str(error),
            "traceback": "".join(traceback.format_exception(error)),
            "primary": not is_peer_failure(error),
            "versions": versions(),
        }

    def _show(self, error: BaseException) -> None:
        rank, host = self.communicator.rank, socket.gethostname()
        lines = "".join(traceback.format_exception(error)).rstrip()
        if isinstance(error, PeerError):
            lines = str(error)
        elif isinstance(error, SystemExit):
            lines = f"sys.exit({error.code!r})\n{lines}"
        text = f"[rank {rank} {host}] this rank ends the job:\n{lines}\n"
        # One write: lines of several ranks must not mix.
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os.write(2, text.encode(errors="backslashreplace"))
        logger.debug("this rank ends the job", exc_info=error)
        logging.shutdown()

    def _on_uncaught(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self.fail(error)
        self._previous_hook(kind, error, trace)

    def _on_sys_exit(self, status: Any = None, /) -> None:
        self._exit = SystemExit(status)
        raise self._exit

    def _on_exit(self) -> None:
        if self._watcher is None or not self._is_this_process():
            return
        request = self._exit if _ended_the_script(self._exit) else None
        if request is not None and request.code not in (None, 0):
            self.fail(request, _exit_code(request))
        how = "the end of its script" if request is None else f"sys.exit({request.code!r})"
        self._watcher.depart(how.replace("(None)", "()"))

    def _is_this_process(self) -> bool:
        """False in a forked child, which inherits the hooks and must not speak for the rank."""
        return os.getpid() == self._pid

    def _on_departure(self, rank: int, how: str, waiting_in: str, is_first: bool) -> None:
        if not is_first:
            time.sleep(PEER_GRACE_SECONDS)
        error = PeerError(
            f"rank {rank} left the job by {how} while rank {self.communicator.rank} waits "
            f"for it in {waiting_in}. All ranks must make the same calls."
        )
        self._tell_and_end(error, 1)


class _Watcher(threading.Thread):
    """Receives the notes of ranks that left, and reports those this rank is waiting for."""

    def __init__(
        self,
        channel: Any,
        communicator: Communicator,
        report: Callable[[int, str, str, bool], None],
    ) -> None:
        super().__init__(name="fittrain-watcher", daemon=True)
        self._channel = channel
        self._communicator = communicator
        self._report = report
        self._ending = threading.Event()
        self._departed: dict[int, tuple[int, str]] = {}
        self._notes: list[Any] = []

    def run(self) -> None:
        while not self._ending.wait(POLL_SECONDS) and not self._is_finalized():
            while self._channel.iprobe(tag=DEPARTURE_TAG):
                rank, entered, how = self._channel.recv(tag=DEPARTURE_TAG)
                self._departed[rank] = (entered, how)
            self._check()

    def _is_finalized(self) -> bool:
        """Whether the script ended MPI itself, after which no call to it is allowed."""
        from fittrain.comm.mpi import load_mpi

        return bool(load_mpi().Is_finalized())

    def _check(self) -> None:
        progress = self._communicator.progress
        waiting_in, entered = progress.inside, progress.entered
        for rank, (theirs, how) in self._departed.items():
            if waiting_in is not None and entered > theirs:
                # The lowest rank that is left tells it for all.
                own = self._communicator.rank
                is_first = all(peer in self._departed for peer in range(own))
                self._report(rank, how, progress.describe(), is_first)

    def depart(self, how: str) -> None:
        """Tells every other rank that this one takes part in nothing more."""
        self._ending.set()
        self.join()
        if self._is_finalized():
            return
        note = (self._communicator.rank, self._communicator.progress.entered, how)
        others = [r for r in range(self._communicator.size) if r != self._communicator.rank]
        # Not waited for: a note is small enough to leave at once.
        self._notes = [self._channel.isend(note, dest=r, tag=DEPARTURE_TAG) for r in others]


def is_peer_failure(error: BaseException) -> bool:
    """Whether `error` only says that another rank is gone."""
    if isinstance(error, PeerError):
        return True
    if isinstance(error, FittrainError):
        return False
    return any(mark in f"{type(error).__name__}: {error}" for mark in PEER_FAILURE_MARKS)


def _ended_the_script(request: SystemExit | None) -> bool:
    """Whether nobody caught it. In doubt no: then its peers find out when they wait for this rank.

    Up to Python 3.11 an exception that no handler touched has no traceback of its own when the
    interpreter ends; from 3.12 on its traceback ends where the script stopped.
    """
    if request is None:
        return False
    trace = request.__traceback__
    if trace is None:
        return True
    frame = trace.tb_frame
    in_script = frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__"
    return in_script and trace.tb_lasti == frame.f_lasti


def _exit_code(request: SystemExit) -> int:
    return request.code if isinstance(request.code, int) and 0 < request.code < 256 else 1
