"""Whether all ranks still hold the same weights, bit for bit.

Replicas are never sent to each other again after the start, so a difference would grow unseen.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from fittrain.comm.agreement import name_ranks
from fittrain.comm.base import Communicator, on_all_ranks
from fittrain.errors import DriftError


def digests(variables: Sequence[Any]) -> np.ndarray:
    """A checksum of each variable's bytes, int64, shape (variables,)."""
    return np.asarray(
        [zlib.crc32(_bytes(variable.numpy())) for variable in variables],
        np.int64,
    )


def _bytes(array: np.ndarray) -> memoryview:
    """The memory of an array, without a copy where it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def differing(variables: Sequence[Any], communicator: Communicator) -> list[int]:
    """Collective: positions of the variables that are not the same on all ranks, bit for bit."""
    own = digests(variables)
    # One exchange: the minimum of x and of -x gives both ends.
    ends = communicator.reduce(np.concatenate([own, -own]), "min")
    return [int(index) for index in np.flatnonzero(ends[: len(own)] != -ends[len(own) :])]


def check(variables: Sequence[Any], communicator: Communicator, when: str) -> None:
    """Collective: refuses to go on unless all ranks hold the same values.

    Args:
        variables: Keras variables, in the same order on all ranks.
        communicator: how ranks compare.
        when: for the message, such as "at the end of epoch 3".

    Raises:
        DriftError: on all ranks, naming the first variable that differs and the ranks.
    """
    different = differing(variables, communicator)
    if not different:
        return
    first = different[0]
    groups: dict[int, list[int]] = {}
    for rank, value in enumerate(communicator.gather(int(digests([variables[first]])[0]))):
        groups.setdefault(value, []).append(rank)
    parties = " and ".join(name_ranks(ranks) for ranks in groups.values())
    raise on_all_ranks(
        DriftError(
            f"`{variables[first].path}` differs between {parties} {when} ({len(different)} of "
            f"{len(variables)} variables differ). Something changed weights on some ranks only, "
            "such as a callback or `set_weights` under a condition on the rank. Do it on every "
            "rank."
        )
    )
