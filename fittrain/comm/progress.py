"""Where a rank is, for the thread that watches its peers and for error reports.

Synopsis::

    with progress.within("Trainer.fit"), progress.enter("reduce"):
        ...                        # progress.describe() == "`Trainer.fit` (reduce)"
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Progress:
    """Counts the collectives this rank has entered, for the thread that watches its peers.

    Attributes:
        entered: collectives entered so far.
        inside: the one this rank is in now, or None.
        call: the public call around it, such as "Trainer.fit", or None.
    """

    def __init__(self) -> None:
        self.entered = 0
        self.inside: str | None = None
        self.call: str | None = None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def enter(self, what: str) -> Iterator[None]:
        """Marks this rank as waiting for its peers in `what`; nested marks count once."""
        with self._lock:
            outermost = self.inside is None
            if outermost:
                self.entered += 1
                self.inside = what
        try:
            yield
        finally:
            if outermost:
                with self._lock:
                    self.inside = None

    @contextlib.contextmanager
    def within(self, call: str) -> Iterator[None]:
        """Names the public call that the next collectives belong to."""
        outer, self.call = self.call, self.call or call
        try:
            yield
        finally:
            self.call = outer

    def describe(self) -> str:
        """What this rank waits in, in words."""
        return f"`{self.call}` ({self.inside})" if self.call else f"`{self.inside}`"
