"""The rows that one call of a compiled step gets: several updates, one after the other.

Synopsis::

    block = Block.of(data, part, size=4, accumulate_steps=2)
    block.rows, block.pieces        # rows and micro-batches of each update
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from fittrain.batch import Batch
from fittrain.data.sampler import Part


@dataclass(frozen=True)
class Block:
    """Rows of several consecutive updates.

    Args:
        data: (x,), (x, y) or (x, y, sample_weight) in any nesting, shape (sum of rows, ...).
        rows: rows of each update, int32, shape (updates,).
        counts: rows that count in each update, int32, shape (updates,).
        totals: rows that count over all ranks, int32, shape (updates,).
        pieces: micro-batches of each update, int32, shape (updates,); the same on all ranks.
    """

    data: tuple[Any, ...]
    rows: np.ndarray
    counts: np.ndarray
    totals: np.ndarray
    pieces: np.ndarray

    @classmethod
    def of(cls, data: tuple[Any, ...], part: Part, size: int, accumulate_steps: int = 1) -> Block:
        """The rows of a part, in as many micro-batches as the largest part of any rank has rows."""
        largest = np.maximum(-(-part.totals // size), 1)
        pieces = np.minimum(largest, accumulate_steps).astype(np.int32)
        return cls(data, part.rows, part.counts, part.totals, pieces)

    @property
    def has_empty(self) -> bool:
        """Whether a micro-batch holds no row that counts, but one that stands in."""
        return bool((self.counts < self.pieces).any())


def data_key(data: Any) -> str:
    """What a compiled step is made for: structure, row shapes and dtypes of data."""
    return str(spec_of(data))


def piece_of(batch: Batch, piece: tf.Tensor, rows: tf.Tensor, pieces: tf.Tensor) -> Batch:
    """One of the micro-batches of a batch; where none of its rows is left, one stands in."""
    first, last = rows * piece // pieces, rows * (piece + 1) // pieces
    start = tf.minimum(first, rows - 1)
    counting = tf.minimum(tf.cast(last - first, tf.float32), batch.count)
    return replace(
        batch,
        data=rows_of(batch.data, start, tf.maximum(last, start + 1)),
        count=counting,
    )


def rows_of(data: Any, first: tf.Tensor, last: tf.Tensor) -> Any:
    """In the graph: the rows [first, last) of every array."""
    return keras.tree.map_structure(lambda leaf: leaf[first:last], data)


def spec_of(data: Any) -> Any:
    """Shapes and dtypes of data of any number of rows."""
    return keras.tree.map_structure(
        lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], tf.as_dtype(leaf.dtype)), data
    )


def tensors_of(data: Any) -> Any:
    """Arrays as tensors."""
    return keras.tree.map_structure(tf.convert_to_tensor, data)
