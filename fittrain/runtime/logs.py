"""What each rank says, and where.

Owns the handlers of the "fittrain" logger: the console (rank 0 speaks, the others only warn) and one
file for each rank. Handlers that the user installed are never touched, and nothing is installed on
import.

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
    handlers: list[logging.Handler] = [_Console(rank, size), _Relay()]
    if run_dir is not None:
        handlers.append(_open_file(log_path(run_dir, rank)))
    remove()
    logger = logging.getLogger(_NAME)
    for handler in handlers:
        logger.addHandler(handler)
    # The relay passes records on instead: with DEBUG open for our file, propagation would flood
    # the user's handlers with lines that the root logger's level is meant to keep out.
    logger.propagate = False
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.DEBUG)


def remove() -> None:
    """Takes away and closes the handlers that `configure` installed."""
    logger = logging.getLogger(_NAME)
    ours = [each for each in logger.handlers if isinstance(each, (_Console, _Relay, _File))]
    for handler in ours:
        logger.removeHandler(handler)
        handler.close()
    if ours:
        logger.propagate = True
        logger.setLevel(logging.NOTSET if logger.level == logging.DEBUG else logger.level)


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
    """Passes records on to the root logger's handlers, as its level says."""

    def emit(self, record: logging.LogRecord) -> None:
        root = logging.getLogger()
        # Without handlers the logging module would print warnings itself, a second time.
        if root.handlers and record.levelno >= root.level:
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


def _root_shows(record: logging.LogRecord) -> bool:
    """Says whether a console handler of the user's prints this record anyway."""
    root = logging.getLogger()
    return record.levelno >= root.level and any(
        record.levelno >= handler.level
        and isinstance(handler, logging.StreamHandler)
        and handler.stream in (sys.stderr, sys.stdout, sys.__stderr__, sys.__stdout__)
        for handler in root.handlers
    )
