"""Sparse gradients: the sum over ranks of tables of which each rank holds some rows.

A table's rows travel as a list, each rank's after the other, or as a whole table, whichever moves
fewer bytes. How many rows there are is known only when they are, so the choice is made in the
graph, from a count over all ranks that is the same on all of them. No path holds more than a few
tables, whatever the number of ranks. Everything here runs inside the graph.

Synopsis::

    own = own_rows(gradient, factor=weight)
    total = sum_rows(communicator, own, Packing(tf.float32), total_count, "gradients.rows")
"""

from __future__ import annotations

from typing import Any, Protocol

import tensorflow as tf

from fittrain.comm.half import Packing
from fittrain.errors import ArgumentError

LARGEST_SHORT_INDEX = 2**31 - 1

BYTES_OF_A_REDUCED_ELEMENT = 2
"""Times its size that an element of a sum over ranks travels: once to be added up, once back."""


class Exchanges(Protocol):
    """What sums are built from; a `Communicator`."""

    def all_reduce(self, flat: Any, name: str = ...) -> Any:
        """Element-wise sum over ranks."""

    def all_gather(self, rows: Any, name: str = ...) -> Any:
        """Rows of all ranks, one after the other."""


def merge_rows(gradient: tf.Tensor | tf.IndexedSlices | None) -> Any:
    """A sparse gradient with every row once; anything else as it is.

    Optimizers that square gradients give another result for a row in two parts than for its sum,
    which is what ranks exchange.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def divide(gradient: Any, by: Any) -> Any:
    """A gradient, or None, divided by a scalar; sparse as before; 0 where the scalar is 0."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = divide(gradient.values, by)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    gradient = tf.convert_to_tensor(gradient)
    return tf.math.divide_no_nan(gradient, tf.cast(by, gradient.dtype))


def stays_sparse(gradient: Any) -> bool:
    """Whether rows may be fewer than the table has: decided alike on all ranks, from shapes alone.

    Raises:
        ArgumentError: if a sparse gradient does not say how large its table is.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return False
    if gradient.dense_shape is None:
        raise ArgumentError(
            "`gradients` has a tf.IndexedSlices without `dense_shape`, whose table cannot be added "
            "up over ranks. Give it the shape of its variable."
        )
    table_rows = _static_table_rows(gradient)
    slices = gradient.indices.shape[0]
    # Run eagerly, every shape is known, and may be another one on another rank.
    is_known = not tf.executing_eagerly() and table_rows is not None and slices is not None
    return not (is_known and slices >= table_rows)


def own_rows(gradient: tf.IndexedSlices, factor: tf.Tensor, dtype: tf.DType) -> tf.IndexedSlices:
    """This rank's part of the sum: `factor` times the gradient, every row once.

    Args:
        gradient: sparse.
        factor: float32 scalar; where it is 0 the gradient may hold anything and no row is left.
        dtype: of the sum.
    """
    merged = merge_rows(gradient)
    count = tf.where(tf.equal(factor, 0), 0, tf.size(merged.indices))
    values = tf.cast(merged.values[:count], dtype) * tf.cast(factor, dtype)
    return tf.IndexedSlices(values, merged.indices[:count], merged.dense_shape)


def sum_rows(
    communicator: Exchanges,
    own: tf.IndexedSlices,
    packing: Packing,
    total_count: tf.Tensor,
    name: str,
) -> tf.IndexedSlices:
    """Collective: the sum over ranks of sparse tensors, every row once.

    Args:
        communicator: carries it.
        own: this rank's rows, each once.
        packing: how values travel.
        total_count: rows of all ranks together, float64 scalar, the same on all ranks.
        name: of these exchanges.

    Returns:
        Rows in the same order and with the same values on all ranks.
    """
    short = (_static_table_rows(own) or LARGEST_SHORT_INDEX + 1) <= LARGEST_SHORT_INDEX
    wire_index = tf.int32 if short else tf.int64

    def gathered() -> tuple[tf.Tensor, tf.Tensor]:
        rows = communicator.all_gather(tf.cast(own.indices, wire_index), f"{name}.indices")
        values = communicator.all_gather(packing.pack(own.values), f"{name}.values")
        merged = merge_rows(
            tf.IndexedSlices(packing.unpack(values, own.dtype), rows, own.dense_shape)
        )
        return merged.values, tf.cast(merged.indices, own.indices.dtype)

    def added_up() -> tuple[tf.Tensor, tf.Tensor]:
        table = packing.pack(tf.convert_to_tensor(own))
        flat = communicator.all_reduce(tf.reshape(table, [-1]), f"{name}.table")
        table = packing.unpack(tf.reshape(flat, tf.shape(table)), own.dtype)
        return table, tf.range(tf.shape(table)[0], dtype=own.indices.dtype)

    # All ranks take the same way: the count is the same.
    is_short = gathering_moves_less(
        total_count, own.dense_shape, packing.dtype.size, wire_index.size
    )
    values, indices = tf.cond(is_short, gathered, added_up)
    values.set_shape([None, *own.values.shape[1:]])
    indices.set_shape([None])
    return tf.IndexedSlices(values, indices, own.dense_shape)


def gathering_moves_less(
    total_count: tf.Tensor, table_shape: tf.Tensor, element_bytes: int, index_bytes: int
) -> tf.Tensor:
    """Whether a list of rows is shorter than a whole table, added up over ranks.

    Every rank receives (size - 1) / size of the list, and as much of the table twice: a sum
    over ranks needs that much (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
    clusters of workstations", 2009).

    Args:
        total_count: rows in the list, float64 scalar.
        table_shape: shape of the table.
        element_bytes: bytes of an element as it travels.
        index_bytes: bytes of a row's number as it travels.

    Example:
        >>> bool(gathering_moves_less(tf.constant(9.0, tf.float64), tf.constant([10, 8]), 4, 4))
        True
    """
    shape = tf.cast(table_shape, tf.float64)
    row_bytes = tf.reduce_prod(shape[1:]) * element_bytes
    return total_count * (row_bytes + index_bytes) < (
        BYTES_OF_A_REDUCED_ELEMENT * shape[0] * row_bytes
    )


def _static_table_rows(gradient: tf.IndexedSlices) -> int | None:
    shape = tf.get_static_value(gradient.dense_shape, partial=True)
    return None if shape is None or shape[0] is None else int(shape[0])
