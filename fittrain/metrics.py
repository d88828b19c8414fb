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


class LastValue(keras.metrics.Metric):  # type: ignore[misc]
    """The value of the last batch, averaged over its samples; adds up over ranks."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.total = self.add_variable((), "zeros", dtype="float32", name="total")
        self.count = self.add_variable((), "zeros", dtype="float32", name="count")

    def update_state(self, value: Any, sample_weight: Any = None) -> None:
        """Forgets the batch before.

        Args:
            value: a scalar.
            sample_weight: samples it is the mean of.
        """
        weight = tf.cast(sample_weight, tf.float32)
        self.total.assign(tf.math.multiply_no_nan(tf.cast(value, tf.float32), weight))
        self.count.assign(weight)

    def result(self) -> Any:
        """The mean."""
        return tf.math.divide_no_nan(self.total.value, self.count.value)


class MetricBoard:
    """The loss and the compiled metrics of one model.

    Args:
        model: a compiled Keras model whose metrics are built.

    Attributes:
        own_logs: what steps that the model brings itself return, a metric for each name, by
            "train" and "evaluate".
    """

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self.own_logs: dict[str, dict[str, Any]] = {}
        self.loss = keras.metrics.Mean(name="loss")
        self._results = tf.function(self._results_from, reduce_retracing=True, autograph=False)

    @property
    def variables(self) -> list[Any]:
        """State of the loss and of every metric, in a fixed order."""
        last = [m for m in self._own_metrics() if isinstance(m, LastValue)]
        own = [variable for metric in last for variable in metric.variables]
        return [*self.loss.variables, *self.model.metrics_variables, *own]

    def _own_metrics(self) -> list[Any]:
        return [metric for logs in self.own_logs.values() for metric in logs.values()]

    def reset(self) -> None:
        """Starts counting anew."""
        self.loss.reset_state()
        self.model.reset_metrics()
        for metric in self._own_metrics():
            metric.reset_state()

    def state(self) -> tf.Tensor:
        """In the graph: this rank's state as one float64 vector."""
        return tf.concat(
            [tf.reshape(tf.cast(variable.value, tf.float64), [-1]) for variable in self.variables],
            axis=0,
        )

    def results(self, state: np.ndarray, step: str = "train") -> dict[str, float]:
        """Metric values for a state added up over ranks.

        Args:
            state: as `state` gives it.
            step: "train" or "evaluate", whose own logs are wanted if the model has such.
        """
        values = self._results(tf.constant(state, tf.float64), step)
        return {name: _plain(value.numpy()) for name, value in values.items()}

    def _results_from(self, state: tf.Tensor, step: str) -> dict[str, tf.Tensor]:
        shapes = [variable.shape for variable in self.variables]
        pieces = tf.split(state, [int(np.prod(shape, dtype=np.int64)) for shape in shapes])
        mapping = [
            (variable, tf.cast(tf.reshape(piece, shape), variable.dtype))
            for variable, piece, shape in zip(self.variables, pieces, shapes, strict=True)
        ]
        with keras.StatelessScope(state_mapping=mapping):
            if step in self.own_logs:
                return {name: one.result() for name, one in self.own_logs[step].items()}
            # Keras's own loss tracker is not used: ours knows how many samples count.
            return {**self.model.get_metrics_result(), self.loss.name: self.loss.result()}


def _plain(value: np.ndarray) -> Any:
    """A float for a scalar; metrics with a vector result, such as F1 by class, stay arrays."""
    return float(value) if np.ndim(value) == 0 else value
