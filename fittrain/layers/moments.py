"""Mean and variance of a tensor over the samples of all ranks, and their exact gradient.

One exchange each way. Forward travel, for every channel, the count, the sum and the sum of squares,
in float64: they are put together from a mean and squared deviations that each rank computes around
its own mean, so that nothing cancels in the data's precision, and what cancels between ranks does
so 29 bits below it.

Backward: ranks are weighted by their samples later, when gradients are averaged. The derivative of
the global loss by a moment is sum(n_q * u_q) / N over ranks, for u_q the derivative of the mean
loss of rank q's n_q samples; rank r's own gradient will be multiplied by n_r / N. What it must use
for the moment is therefore sum(n_q * u_q) / n_r.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fittrain.batch import Batch
from fittrain.comm.base import on_all_ranks
from fittrain.errors import ArgumentError

WIRE_DTYPE = tf.float64


def moments_over_ranks(
    x: tf.Tensor, axes: Sequence[int], valid: tf.Tensor | None, batch: Batch
) -> tuple[tf.Tensor, tf.Tensor]:
    """Collective, in the graph: mean and variance over all valid elements of all ranks.

    A rank whose row only stands in contributes nothing and gets the same moments.

    Args:
        x: floats of any shape; at most one axis is not in `axes`.
        axes: the axes to reduce.
        valid: bool, like `x`: the elements that count. None: all.
        batch: the batch under way.

    Returns:
        Mean and (biased) variance, shape (channels,), in the dtype of `x`.
    """
    channels = next((size for axis, size in enumerate(x.shape) if axis not in axes), 1)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def moments(x: tf.Tensor) -> tuple[tuple[tf.Tensor, tf.Tensor], Any]:
        count, mean, variance = _reduce(x, axes, valid, batch, channels)
        outputs = tuple(tf.cast(moment, x.dtype) for moment in (mean, variance))

        def gradient(by_mean: tf.Tensor, by_variance: tf.Tensor) -> tf.Tensor:
            flat = tf.cast(tf.concat([by_mean, by_variance], 0), WIRE_DTYPE)
            own = tf.cast(batch.count, WIRE_DTYPE)
            # What a row that stands in gives may be anything, even NaN.
            total = batch.all_reduce(tf.math.multiply_no_nan(flat, own), "batch_norm_gradient")
            by_mean, by_variance = tf.split(tf.math.divide_no_nan(total, own), 2)
            shape = [1 if axis in axes else -1 for axis in range(x.shape.rank)]
            by_mean, twice = (
                tf.reshape(tf.cast(tf.math.divide_no_nan(part, count), x.dtype), shape)
                for part in (by_mean, 2.0 * by_variance)
            )
            by_x = by_mean + twice * (x - tf.reshape(outputs[0], shape))
            return _differentiable_once(_where(valid, by_x))

        return outputs, gradient

    mean, variance = moments(x)
    return tf.ensure_shape(mean, [channels]), tf.ensure_shape(variance, [channels])


def _reduce(
    x: tf.Tensor,
    axes: Sequence[int],
    valid: tf.Tensor | None,
    batch: Batch,
    channels: int,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Collective: count, mean and variance over ranks, float64, shape (channels,)."""
    count = _count(x, axes, valid)
    center = tf.math.divide_no_nan(
        tf.reduce_sum(_where(valid, x), axes, keepdims=True), tf.cast(count, x.dtype)
    )
    deviations = _where(valid, x - center)
    # The mean is rounded, so deviations from it do not quite add up to 0.
    rest, squares, center = (
        tf.cast(part, WIRE_DTYPE)
        for part in (
            tf.reduce_sum(deviations, axes, keepdims=True),
            tf.reduce_sum(tf.square(deviations), axes, keepdims=True),
            center,
        )
    )
    sums = [count, count * center + rest, squares + center * (count * center + 2.0 * rest)]
    flat = tf.concat([tf.reshape(part, [channels]) for part in sums], 0)
    counts_here = tf.cast(batch.count > 0, WIRE_DTYPE)
    total = batch.all_reduce(tf.math.multiply_no_nan(flat, counts_here), "batch_norm")
    count, first, second = tf.split(total, 3)
    mean = tf.math.divide_no_nan(first, count)
    variance = tf.maximum(tf.math.divide_no_nan(second, count) - tf.square(mean), 0.0)
    return count, mean, variance


def _count(x: tf.Tensor, axes: Sequence[int], valid: tf.Tensor | None) -> tf.Tensor:
    """Elements of each channel that count, float64, in the rank of `x`."""
    if valid is not None:
        return tf.reduce_sum(tf.cast(valid, WIRE_DTYPE), axes, keepdims=True)
    sizes = tf.cast(tf.gather(tf.shape(x), axes), WIRE_DTYPE)
    shape = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    return tf.fill(shape, tf.reduce_prod(sizes))


def _where(valid: tf.Tensor | None, x: tf.Tensor) -> tf.Tensor:
    """`x` where it counts and 0 elsewhere, also where it is NaN."""
    return x if valid is None else tf.where(valid, x, tf.zeros([], x.dtype))


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _differentiable_once(by_x: tf.Tensor) -> tuple[tf.Tensor, Any]:
    def refuse(*_: tf.Tensor) -> None:
        raise on_all_ranks(
            ArgumentError(
                "SyncBatchNormalization has no second derivatives, which a penalty on gradients "
                "needs. Use keras.layers.BatchNormalization, or a normalisation of single samples "
                "such as keras.layers.LayerNormalization, in the model that is differentiated "
                "twice."
            )
        )

    return tf.identity(by_x), refuse
