"""Progress of long commands, drawn on standard error.

On a terminal one line is rewritten twice a second; elsewhere (a log file, a CI page) a line is
added every 15 seconds, so that silence never looks like a hang. Standard output stays free for
results.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable

import click

_SECONDS_BETWEEN_LINES = 15.0
_SECONDS_BETWEEN_REDRAWS = 0.5
_BAR_WIDTH = 20


class TerminalProgress:
    """Draws steps with elapsed time and, where it is known, percent.

    Args:
        live: Whether standard error is a terminal; `None` asks it.
        clock: Seconds, monotonic.
    """

    def __init__(
        self, live: bool | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._live = sys.stderr.isatty() if live is None else live
        self._clock = clock
        self._title = ""
        self._began = 0.0
        self._drawn = 0.0

    def step(self, title: str) -> None:
        """Ends the step before it and begins another one."""
        self.end()
        self._title = title
        self._began = self._drawn = self._clock()
        click.echo(self._fitted(title, " ..."), nl=not self._live, err=True)

    def tick(self, percent: int | None = None) -> None:
        """Redraws the line, or adds one, if it is time."""
        pause = _SECONDS_BETWEEN_REDRAWS if self._live else _SECONDS_BETWEEN_LINES
        now = self._clock()
        if not self._title or now - self._drawn < pause:
            return
        self._drawn = now
        self._draw(self._line(percent))

    def note(self, text: str) -> None:
        """Adds a line that stays."""
        self.end()
        click.echo(text, err=True)

    def end(self, failed: bool = False) -> None:
        """Ends the running step, if there is one."""
        if not self._title:
            return
        line = f"{self._title}: {'failed' if failed else 'done'} ({self._elapsed()})"
        self._draw(line)
        if self._live:
            click.echo(err=True)
        self._title = ""

    def _draw(self, line: str) -> None:
        # Erase to the end of the line, since the new text may be shorter.
        click.echo(f"\r{line}\x1b[K" if self._live else line, nl=not self._live, err=True)

    def _line(self, percent: int | None) -> str:
        if percent is None:
            return self._fitted(self._title, f" ... {self._elapsed()}")
        if not self._live:
            return f"{self._title} ... {percent}%, {self._elapsed()}"
        bar = "#" * (_BAR_WIDTH * percent // 100)
        ending = f" [{bar:<{_BAR_WIDTH}}] {percent}%, {self._elapsed()}"
        return self._fitted(self._title, ending)

    def _fitted(self, title: str, ending: str) -> str:
        """Shortens the title on a terminal: a line that wraps cannot be rewritten."""
        room = shutil.get_terminal_size().columns - len(ending) - 1
        if not self._live or len(title) <= room:
            return title + ending
        return title[: max(0, room - 3)] + "..." + ending

    def _elapsed(self) -> str:
        seconds = int(self._clock() - self._began)
        return f"{seconds // 60}:{seconds % 60:02d}"
