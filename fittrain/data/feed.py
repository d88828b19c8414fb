"""Blocks of rows for the compiled step: how long a block is, and reading the next one in time.

Synopsis::

    planner = BlockPlanner("auto", row_bytes=source.row_bytes, rows=sampler.largest_part)
    for data, part in blocks(source, sampler, epoch=0, planner=planner):
        ...
        planner.observe(seconds, steps)
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from fittrain.config import BLOCK_BYTES, BLOCK_SECONDS, BLOCK_STEPS
from fittrain.data.arrays import ArraySource
from fittrain.data.sampler import Part, Sampler
from fittrain.errors import ArgumentError

Rows = tuple[tuple[Any, ...], Part]


class BlockPlanner:
    """How many updates the next call should do.

    All ranks must be told the same times, since they must do the same number of updates.

    Args:
        steps_per_execution: a fixed number, or "auto": as many as take about `BLOCK_SECONDS`.
        row_bytes: bytes of one row.
        rows: rows of one update on the rank that has most.
    """

    def __init__(self, steps_per_execution: int | str, row_bytes: int, rows: int) -> None:
        self._fixed = None if isinstance(steps_per_execution, str) else int(steps_per_execution)
        self._most = int(max(1, min(BLOCK_STEPS, BLOCK_BYTES // max(1, row_bytes * rows))))
        self._calls = 0
        self.steps = self._fixed or 1

    def observe(self, seconds: float, steps: int) -> None:
        """Learns from a call that took `seconds` for `steps` updates."""
        self._calls += 1
        # The first call includes the tracing of the program.
        if self._fixed is not None or self._calls == 1 or steps == 0:
            return
        wanted = int(BLOCK_SECONDS * steps / max(seconds, 1e-9))
        # In leaps of at most 16: a time measured over few updates is mostly the call itself.
        self.steps = max(1, min(wanted, self.steps * 16, self._most))


def check_steps_per_execution(value: Any) -> None:
    """Refuses anything but "auto" or a positive integer.

    Raises:
        ArgumentError: otherwise.
    """
    number = hasattr(value, "__index__") and not isinstance(value, bool) and int(value) >= 1
    if not number and not (isinstance(value, str) and value == "auto"):
        raise ArgumentError(
            "`steps_per_execution` must be 'auto' or a positive integer. "
            f"Received: steps_per_execution={value!r}."
        )


def blocks(
    source: ArraySource, sampler: Sampler, epoch: int, planner: BlockPlanner
) -> Iterator[Rows]:
    """This rank's rows of an epoch, block by block; the next is read while one is used.

    Yields:
        The rows of consecutive updates, and which part of the updates they are.
    """
    updates = sampler.updates
    with ThreadPoolExecutor(1, thread_name_prefix="fittrain-feed") as pool:
        pending: Future[Rows] | None = None
        asked = 0
        while asked < updates or pending is not None:
            ready = pending
            pending = None
            if asked < updates:
                steps = min(planner.steps, updates - asked)
                pending = pool.submit(_read, source, sampler, epoch, asked, steps)
                asked += steps
            if ready is not None:
                yield ready.result()


def _read(source: ArraySource, sampler: Sampler, epoch: int, first: int, steps: int) -> Rows:
    part = sampler.part(epoch, first, steps)
    return source.gather(part.indices), part
