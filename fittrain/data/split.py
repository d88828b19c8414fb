"""Dividing data that is not shuffled: validation parts and contiguous parts for prediction."""

from __future__ import annotations

import re
from typing import Any

from fittrain.data.arrays import ArraySource
from fittrain.errors import ArgumentError

Sets = dict[str, ArraySource]
"""Data to evaluate on, by name; one set without a name is called ""."""

NAME = re.compile(r"[A-Za-z0-9_-]+")


def split_validation(
    source: ArraySource, validation_split: float, validation_data: Any
) -> tuple[ArraySource, Sets]:
    """Training and validation data, by Keras's two arguments for it.

    Args:
        source: all the samples.
        validation_split: part of the samples, taken from the end, in [0, 1).
        validation_data: (x, y) or (x, y, sample_weight), a dict of these by name, or None. Wins
            over the split, as in Keras.

    Raises:
        ArgumentError: if either argument cannot work.
    """
    if not isinstance(validation_split, (int, float)) or not 0.0 <= validation_split < 1.0:
        raise ArgumentError(
            "`validation_split` must be at least 0 and less than 1. "
            f"Received: validation_split={validation_split!r}."
        )
    if isinstance(validation_data, dict):
        return source, _named_sets(validation_data, "validation_data")
    if validation_data is not None:
        return source, {"": _one_set(validation_data, "validation_data")}
    if validation_split == 0.0:
        return source, {}
    edge = int(source.length * (1.0 - validation_split))
    if edge in (0, source.length):
        raise ArgumentError(
            f"`validation_split`={validation_split} of {source.length} samples leaves "
            f"{edge} for training and {source.length - edge} for validation. Change the split."
        )
    return source.slice(0, edge), {"": source.slice(edge, source.length)}


def evaluation_sets(x: Any, y: Any, sample_weight: Any) -> Sets:
    """The data of an `evaluate`: one set, or several by name.

    A dict whose every value is a tuple or list of 2 or 3 entries, given without targets, names
    sets; any other dict holds the inputs of a model.

    Raises:
        ArgumentError: if the data cannot work.
    """
    is_named = isinstance(x, dict) and bool(x) and all(map(_looks_like_a_set, x.values()))
    if is_named and y is None and sample_weight is None:
        return _named_sets(x, "x")
    return {"": ArraySource(x, y, sample_weight)}


def describe_sets(sets: Sets, argument: str) -> dict[str, Any]:
    """What must be the same on all ranks about sets of data, by name.

    Args:
        sets: the data.
        argument: what it was given as; "" for the arguments of a call themselves.
    """
    # Their order too: all ranks must come to the same set at the same time.
    found: dict[str, Any] = {f"names in {argument}": list(sets)} if any(sets) else {}
    for name, source in sets.items():
        label = f"{argument}[{name!r}] " if name else f"{argument} ".lstrip()
        found |= {f"{label}{path}": value for path, value in source.describe().items()}
    return found


def _named_sets(sets: dict[Any, Any], argument: str) -> Sets:
    names = list(sets)
    for name in names:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ArgumentError(
                f"`{argument}` must name its sets with letters, digits, '_' and '-', since the "
                f"names become part of those of metrics. Received: {name!r}."
            )
    if not names:
        raise ArgumentError(f"`{argument}` is an empty dict. Leave it out, or name a set.")
    for name in names:
        longer = next((other for other in names if other.startswith(f"{name}_")), None)
        if longer is not None:
            raise ArgumentError(
                f"`{argument}` names the sets {name!r} and {longer!r}, whose metrics may get the "
                "same names in the logs. Rename one so that it does not begin with the other."
            )
    return {name: _one_set(one, f"{argument}[{name!r}]") for name, one in sets.items()}


def _one_set(data: Any, argument: str) -> ArraySource:
    if not _looks_like_a_set(data):
        raise ArgumentError(
            f"`{argument}` must be (x, y) or (x, y, sample_weight). "
            f"Received: {type(data).__name__}."
        )
    try:
        return ArraySource(*data)
    except ArgumentError as error:
        raise ArgumentError(f"`{argument}`: {error}") from None


def _looks_like_a_set(data: Any) -> bool:
    return isinstance(data, (tuple, list)) and len(data) in (2, 3)


def contiguous_part(length: int, rank: int, size: int) -> tuple[int, int]:
    """First and last + 1 sample of a rank's part, parts differing by one sample at most.

    Example:
        >>> [contiguous_part(5, rank, 2) for rank in (0, 1)]
        [(0, 2), (2, 5)]
    """
    return length * rank // size, length * (rank + 1) // size
