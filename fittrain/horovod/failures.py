"""What went wrong, in one line, out of a program's output.

Owns the translation from the output of pip, the compiler and MPI into a `BuildError` that names
the cause and the remedy, and the log file that keeps the whole output.

Example::

    if done.exit_code:
        raise failure("Compiling Horovod", done, log_folder)
"""

from __future__ import annotations

import re
from pathlib import Path

from fittrain.errors import BuildError
from fittrain.horovod.commands import Completed

_FULL_DISK = r"No space left on device|Disk quota exceeded|File too large|\[Errno (28|122|27)\]"

# Order matters: a full disk also makes pip and the compiler say other things.
_CAUSES: tuple[tuple[str, str], ...] = (
    (
        _FULL_DISK,
        "The disk is full. Free some space, or set TMPDIR (build) and XDG_CACHE_HOME (cache) to "
        "folders on another disk.",
    ),
    (
        r"THESE PACKAGES DO NOT MATCH THE HASHES|HashMismatch",
        "The package index sent a Horovod that is not the one of the official release (SHA-256 "
        "differs). Use an index or mirror that you trust.",
    ),
    (
        r"NewConnectionError|Failed to establish a new connection|Name or service not known"
        r"|Temporary failure in name resolution|ConnectionError|ProxyError|ReadTimeout"
        r"|Network is unreachable|SSLError|Could not fetch URL|Max retries exceeded",
        "The package index cannot be reached. Check the network, or set PIP_INDEX_URL, PIP_PROXY "
        "or PIP_FIND_LINKS as for any other pip command.",
    ),
    (
        r"No matching distribution found|Could not find a version that satisfies",
        "The package index cannot be reached, or does not have what is needed (see the line "
        "below). Check the network, PIP_INDEX_URL and PIP_NO_INDEX.",
    ),
    (
        r"Killed signal terminated program|cc1plus: out of memory|Cannot allocate memory",
        "The compiler ran out of memory. Try again with `--jobs 1`.",
    ),
    (
        r"Permission denied|Read-only file system",
        "A folder cannot be written (see the line below).",
    ),
)
_TELLING_LINE = re.compile(r"\b(fatal )?error\b|No space left|denied|Killed", re.IGNORECASE)


def failure(step: str, done: Completed, log_folder: Path | None = None) -> BuildError:
    """Returns the error of a step that failed.

    Args:
        step: What was being done, as the beginning of a sentence.
        done: The program that failed.
        log_folder: Folder that keeps the whole output; `None` keeps nothing.
    """
    if done.timed_out:
        cause = "It took too long and was ended."
    else:
        cause = _cause(done.output) or f"It ended with exit code {done.exit_code}."
    parts = [f"{step} failed. {cause}", _telling_line(done.output)]
    log = _keep(done.output, log_folder)
    if log is not None:
        parts.append(f"Whole output: {log}")
    return BuildError("\n".join(part for part in parts if part))


def os_failure(step: str, error: OSError) -> BuildError:
    """Returns the error of a file operation that failed."""
    text = f"[Errno {error.errno}] {error.strerror}: {error.filename or ''}".rstrip(": ")
    return BuildError(f"{step} failed. {_cause(text) or 'A file operation failed.'}\n{text}")


def _cause(output: str) -> str | None:
    return next((text for pattern, text in _CAUSES if re.search(pattern, output)), None)


def _telling_line(output: str) -> str:
    """Returns the first line that names an error; make repeats the later ones."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if _TELLING_LINE.search(line)]
    line = (telling or lines[-1:] or [""])[0]
    return line if len(line) <= 300 else line[:297] + "..."


def _keep(output: str, folder: Path | None) -> Path | None:
    if folder is None:
        return None
    log = folder / "last-failure.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        log.write_text(output, encoding="utf-8")
    except OSError:
        # The failure itself may be a full disk; the message must come out all the same.
        return None
    return log
