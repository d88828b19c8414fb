"""What each rank says, and where.

Owns the handlers of the "fittrain" logger: the console (rank 0 speaks, the others only warn) and
one file for each rank. Handlers that the user installed are never touched, and nothing is installed
on import.

    configure(rank=0, size=8, run_dir=Path("runs/digits"))
    logging.getLogger("fittrain.trainer").info("Epoch 1 of 20")
"""

from __future__ import annotations

import logging
import socket
import sys
from datetime import datetime
from pathlib import Path

from fittrain.errors import ArgumentError

_NAME = "fittrain"
# Lets everything through, and differs from every level that a user would set.
_EVERYTHING = 1


def configure(rank: int, size: int, run_dir: Path | None = None) -> None:
    """Installs this rank's handlers; a second call replaces those of the first.

    Args:
        rank: This process among all.
        size: Number of processes; a process alone needs no prefix.
        run_dir: The run folder. `RUN/logs/rank-000.log` is appended to, with everything from DEBUG
            up. None writes no file.

    Raises:
        ArgumentError: The log file cannot be opened.

    Example:
        >>> configure(rank=0, size=1)
    """
    file = None if run_dir is None else _open_file(log_path(run_dir, rank))
    remove()
    logger = logging.getLogger(_NAME)
    logger.addHandler(_Console(rank, size))
    if file is not None:
        logger.addHandler(file)
    if logger.propagate:
        # Plain propagation ignores the root logger's level, so our file's DEBUG lines would flood
        # the user's handlers.
        logger.addHandler(_Relay())
        logger.propagate = False
    if logger.level == logging.NOTSET:
        logger.setLevel(_EVERYTHING)


def remove() -> None:
    """Takes away and closes the handlers that `configure` installed."""
    logger = logging.getLogger(_NAME)
    for handler in list(logger.handlers):
        if isinstance(handler, (_Console, _Relay, _File)):
            logger.removeHandler(handler)
            handler.close()
            logger.propagate = logger.propagate or isinstance(handler, _Relay)
    if logger.level == _EVERYTHING:
        logger.setLevel(logging.NOTSET)


def log_path(run_dir: Path, rank: int) -> Path:
    """Returns the log file of a rank.

    Example:
        >>> log_path(Path("runs/digits"), 3).as_posix()
        'runs/digits/logs/rank-003.log'
    """
    return run_dir / "logs" / f"rank-{rank:03d}.log"


class _Console(logging.Handler):
    """Writes to the current `sys.stderr`, which notebooks and test runners replace."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(logging.INFO if rank == 0 else logging.WARNING)
        self._prefix = f"[rank {rank} {socket.gethostname()}] " if rank > 0 and size > 1 else ""

    def emit(self, record: logging.LogRecord) -> None:
        if _root_shows(record):
            return
        try:
            word = f"{record.levelname}: " if record.levelno >= logging.WARNING else ""
            # One write for the whole line, so that ranks do not break each other's lines.
            sys.stderr.write(f"{self._prefix}{word}{self.format(record)}\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


class _Relay(logging.Handler):
    """Passes records on to the root logger's handlers, as levels without ours would."""

    def emit(self, record: logging.LogRecord) -> None:
        root = logging.getLogger()
        # Without handlers the logging module would print warnings itself, a second time.
        if root.handlers and _reaches_root(record):
            root.handle(record)


class _File(logging.FileHandler):
    """Appends to the rank's file; every record is flushed."""


class _IsoTime(logging.Formatter):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        time = datetime.fromtimestamp(record.created).astimezone()
        return time.isoformat(timespec="milliseconds")


def _open_file(path: Path) -> logging.Handler:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = _File(path, mode="a", encoding="utf-8")
    except OSError as error:
        raise ArgumentError(
            f"`run_dir` must be a folder this process can write to. Received {path.parent.parent}: "
            f"{error.strerror}. Choose another folder, or None to write no files."
        ) from error
    handler.setFormatter(_IsoTime("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    return handler


def _reaches_root(record: logging.LogRecord) -> bool:
    # Somebody who set a level on one of our loggers wants that level, whatever the root's is.
    level = logging.getLogger(record.name).getEffectiveLevel()
    return level != _EVERYTHING or record.levelno >= logging.getLogger().level


def _root_shows(record: logging.LogRecord) -> bool:
    """Says whether a console handler of the user's prints this record anyway."""
    consoles = (sys.stderr, sys.stdout, sys.__stderr__, sys.__stdout__)
    return _reaches_root(record) and any(
        record.levelno >= handler.level
        and isinstance(handler, logging.StreamHandler)
        and handler.stream in consoles
        for handler in logging.getLogger().handlers
    )
