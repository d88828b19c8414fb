"""Batch normalisation whose batch is the global one.

Synopsis::

    model = keras.Sequential(
        [keras.Input((32, 32, 3)), keras.layers.Conv2D(8, 3), SyncBatchNormalization()]
    )
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from fittrain.batch import under_way
from fittrain.layers.moments import moments_over_ranks


@keras.saving.register_keras_serializable(package="fittrain")
class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """Keras's BatchNormalization with the moments of the samples of all ranks.

    In an update of a `fittrain.Trainer` the mean and variance that it normalises with are those of
    the global batch, so that N ranks compute what one would, gradients included; empty and uneven
    parts are exact. Everywhere else (plain Keras, validation, prediction) it is its base class. It
    costs two small exchanges for each call of the layer: one forward, one backward. Where an update
    is put together from several micro-batches, each of them is normalised by its own moments over
    all ranks, as one process would do it.

    Moments are computed in float32 where the layer computes in half precision. The moving averages
    are the same on all ranks, to the bit. Second derivatives are refused.

    Files with this layer need `import fittrain.layers` to be opened; `convert_batch_norm(model,
    synchronized=False)` gives a model that does not.

    Args:
        **arguments: those of `keras.layers.BatchNormalization`, whose weights it has as well. Its
            `synchronized` is about `tf.distribute` and has no effect here.

    Call arguments:
        inputs: floats of any rank; `axis` is the axis of the channels.
        training: whether to normalise with the batch, and to move the averages.
        mask: bool, the inputs' shape without its last axis: the positions that count.

    Raises:
        ArgumentError: where a gradient of its gradient is asked for.

    References:
        Ioffe and Szegedy, 2015, https://arxiv.org/abs/1502.03167, algorithm 1, with the batch of
        all ranks for the mini-batch.

    Example:
        >>> layer = SyncBatchNormalization(momentum=0.9)
        >>> outputs = layer(np.array([[0.0], [10.0]]), training=True)
        >>> layer.moving_mean.numpy().item(), round(layer.moving_variance.numpy().item(), 3)
        (0.5, 3.4)
    """

    # Read in `fittrain.replica`: a row that only stands in leaves no trace in this state.
    is_the_same_on_all_ranks = True

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        """Where the base class computes moments; called in training mode only."""
        batch = under_way()
        if batch is None or not batch.is_training:
            return super()._moments(inputs, mask)  # type: ignore[no-any-return]
        valid = None
        if mask is not None:
            valid = tf.broadcast_to(tf.cast(mask, tf.bool)[..., tf.newaxis], tf.shape(inputs))
            valid = tf.ensure_shape(valid, inputs.shape)
        return moments_over_ranks(inputs, self._reduction_axes, valid, batch)
