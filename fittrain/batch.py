"""The batch under way: what everything that runs inside a step may ask about it.

There is one while a step is traced or runs eagerly, and none otherwise, so that a layer knows
whether it computes for one rank of many or for a plain Keras call.

Synopsis::

    with batch.entered():
        ...
        current = under_way()                # from a layer, far below
        if current is not None:
            total = current.all_reduce(tf.stack([count]), "counts")
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from fittrain.comm.base import Communicator
from fittrain.errors import ArgumentError

_local = threading.local()


@dataclass
class Batch:
    """One batch of one rank.

    Args:
        data: (x,), (x, y) or (x, y, sample_weight).
        count: rows that count here, float32 scalar; 0 where the one row only stands in.
        total: rows that count over all ranks, float32 scalar.
        is_training: whether the batch trains.
        communicator: how this rank talks to the others.
        collectives: exchanges asked for so far; numbers them alike on all ranks.
    """

    data: Any
    count: tf.Tensor
    total: tf.Tensor
    is_training: bool
    communicator: Communicator
    collectives: int = 0

    @contextlib.contextmanager
    def entered(self) -> Iterator[Batch]:
        """Makes this the batch under way, in this thread."""
        outer = under_way()
        _local.batch = self
        try:
            yield self
        finally:
            _local.batch = outer

    def all_reduce(self, flat: tf.Tensor, what: str) -> tf.Tensor:
        """Collective, in the graph: sum over ranks of one flat tensor.

        Args:
            flat: the same shape and dtype on all ranks.
            what: a word for it, part of the exchange's name.
        """
        return self.communicator.all_reduce(flat, self.name_collective(what))

    def name_collective(self, what: str) -> str:
        """A name no other exchange of this batch has, the same on all ranks."""
        self.collectives += 1
        return f"{what}.{self.collectives}"


def under_way() -> Batch | None:
    """The batch that this thread is tracing or computing, if any."""
    return getattr(_local, "batch", None)


def required(what: str) -> Batch:
    """The batch under way, for what makes sense in a step only.

    Raises:
        ArgumentError: if there is none.
    """
    batch = under_way()
    if batch is None:
        raise ArgumentError(
            f"`{what}` is for `train_step` of a Trainer subclass, and was called outside of it: "
            "`apply_gradients`, `update_metrics` and `batch_count` need the batch under way."
        )
    return batch
