"""How long work tells its listener where it is.

Owns the protocol only; the command line draws it (`fittrain.cli.progress`). Library code calls
`step` when a new piece of work begins, `tick` at least once a second while it runs, and `note` for
a fact people should keep.
"""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Listener of long work."""

    def step(self, title: str) -> None:
        """A new piece of work begins; the one before it is done."""

    def tick(self, percent: int | None = None) -> None:
        """Work goes on, `percent` done where that is known."""

    def note(self, text: str) -> None:
        """A fact that people should see and keep."""


class Silent:
    """Listener that shows nothing; for callers without a terminal."""

    def step(self, title: str) -> None:
        """Ignores the step."""

    def tick(self, percent: int | None = None) -> None:
        """Ignores the tick."""

    def note(self, text: str) -> None:
        """Ignores the note."""
