"""The one exchange of an update: gradients, weights and sums as flat tensors, one for each dtype.

Flat tensors rather than a list: the order of summation is the same in every run, and one message
costs one latency. Everything here runs inside the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def reduce_weighted(
    all_reduce: Callable[[tf.Tensor], tf.Tensor],
    gradients: Sequence[tf.Tensor | tf.IndexedSlices | None],
    weight: tf.Tensor | float,
    sums: Sequence[tf.Tensor | float],
) -> tuple[list[tf.Tensor | None], tf.Tensor, list[tf.Tensor]]:
    """Sum(weight * gradient) / sum(weight) over ranks, and `sums` added up over ranks.

    Args:
        all_reduce: element-wise sum over ranks of a flat tensor.
        gradients: dense or sparse tensors, or None.
        weight: scalar weight of this rank.
        sums: scalars.

    Returns:
        The means (dense, each in its own dtype), the total weight, the reduced sums.
    """
    weight = tf.cast(weight, tf.float32)
    scalars = [weight, *(tf.cast(value, tf.float32) for value in sums)]
    dense = {i: tf.convert_to_tensor(g) for i, g in enumerate(gradients) if g is not None}
    groups: dict[tf.DType, list[int]] = {tf.float32: []}
    for index, gradient in dense.items():
        groups.setdefault(wire_dtype(gradient.dtype), []).append(index)

    # float32 first: its tail holds the total weight that the other dtypes divide by.
    means: list[tf.Tensor | None] = [None] * len(gradients)
    totals: list[tf.Tensor] = []
    for dtype, members in groups.items():
        tensors = [dense[index] for index in members]
        flat, sums_here = _reduce_group(
            all_reduce, tensors, dtype, weight, [] if totals else scalars
        )
        totals = totals or sums_here
        flat = tf.math.divide_no_nan(flat, tf.cast(totals[0], dtype))
        for index, mean in zip(members, split_like(flat, tensors), strict=True):
            means[index] = tf.cast(mean, dense[index].dtype)
    return means, totals[0], totals[1:]


def _reduce_group(
    all_reduce: Callable[[tf.Tensor], tf.Tensor],
    tensors: list[tf.Tensor],
    dtype: tf.DType,
    weight: tf.Tensor,
    scalars: list[tf.Tensor],
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """One exchange: weighted sum of the tensors as one flat one, and sums of the scalars."""
    parts = [tf.reshape(tf.cast(tensor, dtype), [-1]) for tensor in tensors]
    flat = tf.concat(parts, 0) if parts else tf.zeros([0], dtype)
    # Where the weight is 0 the gradient may be anything, even NaN, and must not count.
    flat = tf.math.multiply_no_nan(flat, tf.cast(weight, dtype))
    if not scalars:
        return all_reduce(flat), []
    reduced = all_reduce(tf.concat([flat, tf.stack(scalars)], 0))
    return reduced[: -len(scalars)], tf.unstack(reduced[-len(scalars) :], num=len(scalars))


def wire_dtype(dtype: tf.DType) -> tf.DType:
    """The dtype a gradient travels in: half precisions are summed in float32."""
    return tf.float32 if dtype in (tf.float16, tf.bfloat16) else dtype


def split_like(flat: tf.Tensor, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Cuts a flat tensor into pieces shaped like `tensors`."""
    if not tensors:
        return []
    pieces = tf.split(flat, [size_of(tensor) for tensor in tensors])
    return [
        tf.ensure_shape(tf.reshape(piece, tf.shape(tensor)), tensor.shape)
        for piece, tensor in zip(pieces, tensors, strict=True)
    ]


def size_of(tensor: tf.Tensor) -> int | tf.Tensor:
    """Number of elements, static where the shape is known."""
    static = tensor.shape.num_elements()
    return tf.size(tensor) if static is None else static


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
