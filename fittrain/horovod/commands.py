"""Running other programs: output kept, progress told, nothing left behind.

Owns the start and the end of child processes. It does not own what a failure means (`failures`).

Example::

    done = run(["make"], environment=dict(os.environ), folder=source, progress=progress)
    if done.exit_code:
        print(done.last_lines(20))
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fittrain.errors import BuildError
from fittrain.horovod.progress import Progress, Silent

_MAKE_PERCENT = re.compile(r"\[\s*(\d{1,3})%\]")
_SECONDS_TO_END = 2.0


@dataclass(frozen=True)
class Completed:
    """A program that has ended.

    Args:
        exit_code: Its exit status; negative for a signal.
        output: Everything it wrote, both streams in the order of arrival.
        timed_out: Whether it was ended because its time was over.
    """

    exit_code: int
    output: str
    timed_out: bool = False

    def last_lines(self, count: int) -> str:
        """Returns the last lines of the output that are not empty."""
        lines = [line for line in self.output.splitlines() if line.strip()]
        return "\n".join(lines[-count:])


def run(
    command: Sequence[str | Path],
    *,
    environment: Mapping[str, str],
    folder: Path | None = None,
    progress: Progress | None = None,
    timeout_seconds: float | None = None,
) -> Completed:
    """Runs a program to its end and returns what it said.

    The program gets a session of its own, so that whatever it started ends with it, also when
    people press Ctrl-C here.

    Raises:
        BuildError: The program is not there or cannot be started.
    """
    try:
        process = subprocess.Popen(
            [str(part) for part in command],
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise BuildError(f"Cannot run `{command[0]}`: {error.strerror}.") from error
    end = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    try:
        output, timed_out = _read(process, progress or Silent(), end)
        if not timed_out:
            return Completed(process.wait(), output)
        return Completed(_end(process), output, timed_out=True)
    finally:
        _end(process)


def _read(
    process: subprocess.Popen[bytes], progress: Progress, end: float | None
) -> tuple[str, bool]:
    """Collects output until the pipe closes or the time is over."""
    if process.stdout is None:
        return "", False
    chunks: list[bytes] = []
    follow = _percent_follower(progress)
    with selectors.DefaultSelector() as selector, process.stdout as pipe:
        selector.register(pipe, selectors.EVENT_READ)
        while end is None or time.monotonic() < end:
            ready = selector.select(timeout=0.5)
            chunk = os.read(pipe.fileno(), 65536) if ready else b""
            if ready and not chunk:
                return _text(chunks), False
            chunks.append(chunk)
            follow(chunk)
    return _text(chunks), True


def _percent_follower(progress: Progress) -> Callable[[bytes], None]:
    """Returns a function that reads `[ 42%]` out of make's output and tells it."""
    percent: int | None = None

    def follow(chunk: bytes) -> None:
        nonlocal percent
        found = _MAKE_PERCENT.findall(chunk.decode(errors="replace"))
        if found:
            percent = max(percent or 0, *(int(number) for number in found))
        progress.tick(percent)

    return follow


def _end(process: subprocess.Popen[bytes]) -> int:
    """Ends the program and its children, if it still runs, gently first."""
    if process.poll() is not None:
        return process.returncode
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(timeout=_SECONDS_TO_END)
    return process.wait()


def _text(chunks: list[bytes]) -> str:
    return b"".join(chunks).decode(errors="replace")
