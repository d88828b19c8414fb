"""From the arguments of a call to checked numbers and data, before anything is done.

Synopsis::

    sampler = make_sampler(len(x), config, communicator, seed)
    sampler.updates
"""

from __future__ import annotations

import logging
import sys
from dataclasses import asdict, dataclass
from typing import Any

from fittrain.comm.base import Communicator
from fittrain.config import FitConfig
from fittrain.data.arrays import ArraySource
from fittrain.data.sampler import Sampler
from fittrain.errors import ArgumentError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FitPlan:
    """What a `fit` works with.

    Args:
        config: its numbers.
        source: training data.
        sampler: which rows belong to which update and rank.
        held_out: validation data, or None.
    """

    config: FitConfig
    source: ArraySource
    sampler: Sampler
    held_out: ArraySource | None

    def numbers(self) -> dict[str, Any]:
        """What must be the same on all ranks, by name."""
        held_out = self.held_out.describe() if self.held_out is not None else {}
        return {
            **asdict(self.config),
            **self.source.describe(),
            **{f"validation_data {path}": value for path, value in held_out.items()},
        }


def make_sampler(length: int, config: FitConfig, communicator: Communicator, seed: int) -> Sampler:
    """The sampler of a `fit`, with what it leaves out or leaves idle said aloud.

    Raises:
        ArgumentError: if no update would be left.
    """
    batch_size = config.batch_size_global(communicator.size)
    sampler = Sampler(
        length=length,
        batch_size=batch_size,
        rank=communicator.rank,
        size=communicator.size,
        seed=seed,
        shuffle=config.shuffle,
        drop_remainder=config.drop_remainder,
    )
    if sampler.updates == 0:
        raise ArgumentError(
            f"`drop_remainder` leaves no update: {length} samples do not fill one global batch "
            f"of {batch_size}. Use a smaller batch, or drop_remainder=False."
        )
    if communicator.is_chief:
        _say_what_is_lost(sampler)
    return sampler


def _say_what_is_lost(sampler: Sampler) -> None:
    if sampler.dropped:
        logger.info(
            "`drop_remainder` leaves out %d of %d samples in each epoch",
            sampler.dropped,
            sampler.length,
        )
    if sampler.batch_size < sampler.size:
        logger.warning(
            "`batch_size` is %d for %d ranks: %d of them have nothing to do",
            sampler.batch_size,
            sampler.size,
            sampler.size - sampler.batch_size,
        )


def resolve_verbose(verbose: int | str) -> int:
    """0, 1 or 2; "auto" is a progress bar on a terminal and a line for each epoch elsewhere.

    Raises:
        ArgumentError: if it is none of them.
    """
    if not isinstance(verbose, (int, str)) or verbose not in (0, 1, 2, "auto"):
        raise ArgumentError(f"`verbose` must be 0, 1, 2 or 'auto'. Received: {verbose!r}.")
    if verbose == "auto":
        return 1 if sys.stdout.isatty() else 2
    return int(verbose)
