"""Comparing what ranks hold: a checksum to notice a difference, and words to tell it.

Synopsis::

    if digests_differ:
        told = describe_difference(everyone)     # "`seed` ... rank 0: 1; rank 1: 2"
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def digest(values: Mapping[str, Any]) -> np.ndarray:
    """A checksum of a mapping, by the `repr` of its values, in whatever order they come.

    Returns:
        Four non-negative int64 numbers.
    """
    text = repr(sorted((name, repr(value)) for name, value in values.items()))
    words = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint64)
    return np.asarray(words >> np.uint64(1), np.int64)


def describe_difference(everyone: Sequence[Mapping[str, Any]]) -> str | None:
    """The first name whose value is not the same on all ranks, and who holds what; None if none."""
    for key in dict.fromkeys(key for theirs in everyone for key in theirs):
        groups: dict[str, list[int]] = {}
        for rank, theirs in enumerate(everyone):
            groups.setdefault(repr(theirs.get(key)), []).append(rank)
        if len(groups) > 1:
            found = "; ".join(f"{name_ranks(ranks)}: {value}" for value, ranks in groups.items())
            return f"`{key}` must be the same on all ranks. Received: {found}."
    return None


def name_ranks(ranks: Sequence[int]) -> str:
    """Ranks in words, runs shortened.

    Example:
        >>> name_ranks([0, 1, 2, 5])
        'ranks 0-2, 5'
    """
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"rank {words}" if len(ranks) == 1 else f"ranks {words}"
