"""From the arguments of a call to checked numbers and data, before anything is done.

Synopsis::

    sampler = make_sampler(len(x), config, communicator, seed)
    sampler.updates
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fittrain.comm.base import Communicator
from fittrain.config import FitConfig
from fittrain.data.arrays import ArraySource
from fittrain.data.class_weight import describe_class_weight
from fittrain.data.sampler import Sampler
from fittrain.data.split import Sets, describe_sets
from fittrain.errors import ArgumentError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FitPlan:
    """What a `fit` works with.

    Args:
        config: its numbers.
        source: training data.
        sampler: which rows belong to which update and rank.
        held_out: validation data by name; empty if there is none.
        class_weight: weight of each class, or None.
    """

    config: FitConfig
    source: ArraySource
    sampler: Sampler
    held_out: Sets = field(default_factory=dict)
    class_weight: Mapping[Any, Any] | None = None

    @property
    def sources(self) -> list[ArraySource]:
        """All data, that for training first."""
        return [self.source, *self.held_out.values()]

    def numbers(self) -> dict[str, Any]:
        """What must be the same on all ranks, by name."""
        return {
            **asdict(self.config),
            **self.source.describe(),
            "class_weight": describe_class_weight(self.class_weight),
            **describe_sets(self.held_out, "validation_data"),
        }


def evaluation_sampler(
    source: ArraySource, config: FitConfig, communicator: Communicator
) -> Sampler:
    """Which rows each rank evaluates, in their order."""
    return Sampler(
        length=source.length,
        batch_size=config.validation_batch_size_global(communicator.size),
        rank=communicator.rank,
        size=communicator.size,
        shuffle=False,
    )


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


def check_gather(gather: Any) -> str:
    """On which ranks outputs are put together.

    Raises:
        ArgumentError: if it is neither "all" nor "chief".
    """
    if not isinstance(gather, str) or gather not in ("all", "chief"):
        raise ArgumentError(
            "`gather` must be 'all' for the outputs on every rank, or 'chief' for rank 0 alone. "
            f"Received: gather={gather!r}."
        )
    return gather


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
