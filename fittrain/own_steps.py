"""Models that bring their own Keras `train_step`, `test_step` or `predict_step`.

Such a step returns logs. A value that is a metric's result is taken from the metric's state added
up over ranks; any other is, as in Keras, the last batch's, here averaged over its samples.

Synopsis::

    steps = OwnSteps(model, board)
    steps.get("train")                  # the method, or None where it is Keras's
    steps.run("train", batch.data)      # in the graph
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from fittrain.batch import required
from fittrain.comm.base import on_all_ranks
from fittrain.errors import ArgumentError
from fittrain.metrics import LastValue, MetricBoard, flat_logs

METHODS = {"train": "train_step", "evaluate": "test_step", "predict": "predict_step"}


class OwnSteps:
    """The steps that a model defines itself.

    Args:
        model: a compiled model.
        board: told which logs the steps return.
    """

    def __init__(self, model: keras.Model, board: MetricBoard) -> None:
        self.model = model
        self.board = board

    def get(self, name: str) -> Callable[[Any], Any] | None:
        """The model's own method for "train", "evaluate" or "predict"; None if it is Keras's."""
        method = getattr(self.model, METHODS[name])
        return None if type_of_definition(method).startswith("keras.") else method

    def run(self, name: str, data: Any) -> tf.Tensor:
        """In the graph: runs a step and keeps what it returns for the logs.

        Returns:
            The last of the returned values that are called a loss, or 0.
        """
        step = self.get(name)
        with _results_noted(self.model.metrics) as results:
            logs = step(data) if step is not None else {}
        self._keep(name, logs if isinstance(logs, dict) else {"loss": logs}, results)
        return tf.constant(0.0)

    @property
    def has_own_metrics(self) -> bool:
        """Whether the model defines `compute_metrics` itself, and so what is in the logs."""
        return not type_of_definition(self.model.compute_metrics).startswith("keras.")

    def compute_metrics(self, name: str, *batch: Any) -> None:
        """In the graph: the model's own `compute_metrics`, in fittrain's step.

        Args:
            name: "train" or "evaluate".
            batch: x, y, y_pred, sample_weight.
        """
        x, y, y_pred, sample_weight = batch
        with _results_noted(self.model.metrics) as results:
            logs = self.model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        self._keep(name, logs or {}, results)
        # The model's own tracker of the loss does not know how many samples count.
        self.board.own_logs[name]["loss"] = self.board.loss

    def _keep(self, name: str, logs: Mapping[str, Any], results: Mapping[int, Any]) -> None:
        known = self.board.own_logs.setdefault(name, {})
        for key, value in flat_logs(logs).items():
            metric = results.get(id(value))
            if metric is None:
                _check_single(key, value, METHODS[name])
                metric = known.get(key)
                if not isinstance(metric, LastValue):
                    # Outside of the graph, where variables are made.
                    with tf.init_scope():
                        metric = LastValue(name=key)
                metric.update_state(value, sample_weight=required(METHODS[name]).count)
            known[key] = metric


def _check_single(key: str, value: Any, method: str) -> None:
    shape = getattr(value, "shape", None if value is None else np.shape(value))
    if shape is None or tf.TensorShape(shape).rank != 0:
        what = type(value).__name__ + (f" of shape {tuple(shape)}" if shape is not None else "")
        raise on_all_ranks(
            ArgumentError(
                f"`{method}` must return numbers for the logs: results of metrics, or scalars such "
                f"as the mean loss of the batch. Received for `{key}`: {what}. Take its mean over "
                "the samples, or count it in a metric and return the metric's result."
            )
        )


def type_of_definition(method: Any) -> str:
    """Where a method was written, "keras." at the start for Keras's own."""
    return f"{getattr(method, '__module__', '')}."


@contextlib.contextmanager
def _results_noted(metrics: list[Any]) -> Iterator[dict[int, Any]]:
    """Notes which tensor is the result of which metric."""
    found: dict[int, Any] = {}
    kept: list[Any] = []
    single = [one for metric in metrics for one in (getattr(metric, "metrics", None) or [metric])]

    def noted(metric: Any, original: Callable[[], Any]) -> Callable[[], Any]:
        def result() -> Any:
            value = original()
            kept.append(value)  # an id is one object's only while that object lives
            found[id(value)] = metric
            return value

        return result

    for metric in single:
        object.__setattr__(metric, "result", noted(metric, metric.result))
    try:
        yield found
    finally:
        for metric in single:
            object.__delattr__(metric, "result")
