"""Half precision on the wire: sums over ranks in 16 bits that neither overflow nor vanish.

Every variable has a scale of its own, the same on all ranks: a power of two, so that scaling rounds
nothing, chosen from a bound on the sum over ranks. Ranks agree on the bound in a small exchange
before the gradients travel; see `fittrain.comm.flat`. Everything here runs inside the graph.

Synopsis::

    bound = total_over_ranks(power_above(gradient))
    packing = Packing(tf.float16, scale_for(bound))
    total = packing.unpack(all_reduce(packing.pack(gradient)))
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

EXPONENT_OF_SUMS = 14
"""Scaled sums stay below 2 to this power plus 1: half of what a float16 holds, since partial sums
are rounded too, each by at most 2**-11; that is room for more than a thousand ranks."""

LARGEST_EXPONENT = 126
"""Of a scale: both it and its inverse are normal float32 numbers."""

DOUBLE_BITS, DOUBLE_BIAS = 52, 1023
SINGLE_BITS, SINGLE_BIAS = 23, 127


@dataclass(frozen=True)
class Packing:
    """How a tensor travels.

    Args:
        dtype: its dtype on the wire.
        scale: what it is multiplied by before, float32 scalar; None where it travels as it is.
    """

    dtype: tf.DType
    scale: tf.Tensor | None = None

    def scaled(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor in the range that travels, not yet shortened."""
        return tensor if self.scale is None else tensor * self.scale

    def unscaled(self, tensor: tf.Tensor) -> tf.Tensor:
        """What `scaled` began with."""
        return tensor if self.scale is None else tensor / self.scale

    def pack(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor as it travels."""
        return tf.cast(self.scaled(tensor), self.dtype)

    def unpack(self, tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """A tensor that travelled, or a sum of such, in the dtype it had before."""
        return self.unscaled(tf.cast(tensor, dtype))


def power_above(tensor: tf.Tensor, factor: tf.Tensor | float = 1.0) -> tf.Tensor:
    """A power of two above every absolute value of factor * tensor; NaN unless all are finite.

    Sums of powers of two are exact in whatever order ranks are added up, so that all ranks find the
    same scale.

    Args:
        tensor: float32, any shape; may be empty.
        factor: scalar; where it is 0, the tensor may hold anything.

    Returns:
        A float64 scalar; next to 0 where every element is 0.

    Example:
        >>> float(power_above(tf.constant([0.0, -3.0])))
        4.0
    """
    largest = tf.cast(tf.reduce_max(tf.abs(tensor)), tf.float64)
    # The maximum of nothing is minus infinity.
    largest = tf.where(largest < 0, tf.zeros_like(largest), largest)
    largest = tf.math.multiply_no_nan(largest, tf.cast(factor, tf.float64))
    return tf.where(
        tf.math.is_finite(largest), _power_of_two(_exponent(largest) + 1), _not_a_number(largest)
    )


def scale_for(bound: tf.Tensor) -> tf.Tensor:
    """The power of two that brings a sum below `bound` safely into a float16.

    Args:
        bound: float64, any shape; upper bounds of the absolute values of sums over ranks.

    Returns:
        float32 like `bound`. NaN where the bound is not finite: whatever is scaled by it becomes
        NaN on all ranks, so that all of them see that the update is to be skipped.

    Example:
        >>> scale_for(tf.constant([4.0, 2.0**20], tf.float64)).numpy().tolist()
        [4096.0, 0.015625]
    """
    exponent = tf.clip_by_value(
        EXPONENT_OF_SUMS - _exponent(bound), -LARGEST_EXPONENT, LARGEST_EXPONENT
    )
    bits = tf.bitwise.left_shift(
        tf.cast(exponent, tf.int32) + SINGLE_BIAS, tf.constant(SINGLE_BITS, tf.int32)
    )
    scale = tf.bitcast(bits, tf.float32)
    return tf.where(tf.math.is_finite(bound), scale, _not_a_number(scale))


def _exponent(positive: tf.Tensor) -> tf.Tensor:
    """Floor of the binary logarithm of float64 numbers, from their bits: nothing is rounded."""
    bits = tf.bitcast(positive, tf.int64)
    return tf.bitwise.right_shift(bits, tf.constant(DOUBLE_BITS, tf.int64)) - DOUBLE_BIAS


def _power_of_two(exponent: tf.Tensor) -> tf.Tensor:
    bits = tf.bitwise.left_shift(exponent + DOUBLE_BIAS, tf.constant(DOUBLE_BITS, tf.int64))
    return tf.bitcast(bits, tf.float64)


def _not_a_number(like: tf.Tensor) -> tf.Tensor:
    return tf.fill(tf.shape(like), tf.constant(float("nan"), like.dtype))
