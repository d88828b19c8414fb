"""Metric values over all ranks: the states are added up, never the results.

Keras metrics keep sums and counts in variables. Added over ranks they are the state that one
process would hold, so the result is exact, also where a mean of results would not be (AUC,
precision, RMSE).

Synopsis::

    board = MetricBoard(model)
    flat = board.state()                       # in the graph: this rank's state, one vector
    board.results(communicator.reduce(flat))   # {"loss": 0.31, "accuracy": 0.93}
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf


class MetricBoard:
    """The loss and the compiled metrics of one model.

    Args:
        model: a compiled Keras model whose metrics are built.
    """

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self.loss = keras.metrics.Mean(name="loss")
        self._results = tf.function(self._results_from, reduce_retracing=True, autograph=False)

    @property
    def variables(self) -> list[Any]:
        """State of the loss and of every metric, in a fixed order."""
        return [*self.loss.variables, *self.model.metrics_variables]

    @property
    def per_output_losses(self) -> list[Any]:
        """State of the losses of single outputs, which Keras counts by batch."""
        losses = getattr(self.model, "_compile_loss", None)
        return [] if losses is None else [v for metric in losses.metrics for v in metric.variables]

    def reset(self) -> None:
        """Starts counting anew."""
        self.loss.reset_state()
        self.model.reset_metrics()

    def state(self) -> tf.Tensor:
        """In the graph: this rank's state as one float64 vector."""
        return tf.concat(
            [tf.reshape(tf.cast(variable.value, tf.float64), [-1]) for variable in self.variables],
            axis=0,
        )

    def results(self, state: np.ndarray) -> dict[str, float]:
        """Metric values for a state added up over ranks."""
        values = self._results(tf.constant(state, tf.float64))
        return {name: _plain(value.numpy()) for name, value in values.items()}

    def _results_from(self, state: tf.Tensor) -> dict[str, tf.Tensor]:
        shapes = [variable.shape for variable in self.variables]
        pieces = tf.split(state, [int(np.prod(shape, dtype=np.int64)) for shape in shapes])
        mapping = [
            (variable, tf.cast(tf.reshape(piece, shape), variable.dtype))
            for variable, piece, shape in zip(self.variables, pieces, shapes, strict=True)
        ]
        with keras.StatelessScope(state_mapping=mapping):
            # Keras's own loss tracker is not used: ours knows how many samples count.
            return {**self.model.get_metrics_result(), self.loss.name: self.loss.result()}


def _plain(value: np.ndarray) -> Any:
    """A float for a scalar; metrics with a vector result, such as F1 by class, stay arrays."""
    return float(value) if np.ndim(value) == 0 else value
