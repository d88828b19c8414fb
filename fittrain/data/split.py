"""Dividing data that is not shuffled: validation parts and contiguous parts for prediction."""

from __future__ import annotations

from typing import Any

from fittrain.data.arrays import ArraySource
from fittrain.errors import ArgumentError


def split_validation(
    source: ArraySource, validation_split: float, validation_data: Any
) -> tuple[ArraySource, ArraySource | None]:
    """Training and validation data, by Keras's two arguments for it.

    Args:
        source: all the samples.
        validation_split: part of the samples, taken from the end, in [0, 1).
        validation_data: (x, y) or (x, y, sample_weight); or None. Wins over the split, as in Keras.

    Raises:
        ArgumentError: if either argument cannot work.
    """
    if not isinstance(validation_split, (int, float)) or not 0.0 <= validation_split < 1.0:
        raise ArgumentError(
            "`validation_split` must be at least 0 and less than 1. "
            f"Received: validation_split={validation_split!r}."
        )
    if validation_data is not None:
        if not isinstance(validation_data, (tuple, list)) or len(validation_data) not in (2, 3):
            raise ArgumentError(
                "`validation_data` must be (x, y) or (x, y, sample_weight). "
                f"Received: {type(validation_data).__name__}."
            )
        return source, _named(validation_data)
    if validation_split == 0.0:
        return source, None
    edge = int(source.length * (1.0 - validation_split))
    if edge in (0, source.length):
        raise ArgumentError(
            f"`validation_split`={validation_split} of {source.length} samples leaves "
            f"{edge} for training and {source.length - edge} for validation. Change the split."
        )
    return source.slice(0, edge), source.slice(edge, source.length)


def _named(validation_data: Any) -> ArraySource:
    try:
        return ArraySource(*validation_data)
    except ArgumentError as error:
        raise ArgumentError(f"`validation_data`: {error}") from None


def contiguous_part(length: int, rank: int, size: int) -> tuple[int, int]:
    """First and last + 1 sample of a rank's part, parts differing by one sample at most.

    Example:
        >>> [contiguous_part(5, rank, 2) for rank in (0, 1)]
        [(0, 2), (2, 5)]
    """
    return length * rank // size, length * (rank + 1) // size
