"""Metric values over all ranks: the states are merged, never the results.

Keras metrics keep sums and counts in variables. Added over ranks they are the state that one
process would hold, so the result is exact, also where a mean of results would not be (AUC,
precision, RMSE). A metric whose state is something else says how it merges:

Synopsis::

    class Highest(keras.metrics.Metric):
        merge_over_ranks = "max"       # or "min", or {"variable name": "max"}; the rest adds up

    board = MetricBoard(model)
    flat = board.state()                                # in the graph: this rank's, one vector
    merged, _ = board.merge(flat.numpy(), communicator)
    board.results(merged)                               # {"loss": 0.31, "accuracy": 0.93}
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from fittrain.comm.base import REDUCTIONS, Communicator
from fittrain.errors import ArgumentError


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
        self._compiled_reset = tf.function(self._reset, autograph=False)
        self._initial = np.zeros(0)

    def variables(self, step: str = "train") -> list[Any]:
        """State of the loss and of every metric, then of a step's own logs, in a fixed order."""
        own = [m for m in self.own_logs.get(step, {}).values() if isinstance(m, LastValue)]
        last = [variable for metric in own for variable in metric.variables]
        return [*self.loss.variables, *self.model.metrics_variables, *last]

    def reset(self) -> None:
        """Starts counting anew."""
        # Compiled, it is one call; but a metric of the user's may do more than the graph shows.
        is_plain = all(_is_keras_own(part) for one in self.model.metrics for part in _parts(one))
        reset = self._compiled_reset if is_plain else self._reset
        kinds = sum(len(self.variables(step)) for step in ("", *self.own_logs))
        self._initial = reset(kinds).numpy()

    def _reset(self, _: int) -> tf.Tensor:
        """Resets every metric and returns the state; the number of variables tells traces apart."""
        self.loss.reset_state()
        self.model.reset_metrics()
        for logs in self.own_logs.values():
            for metric in logs.values():
                metric.reset_state()
        return self.state(step="")

    def state(self, step: str = "train") -> tf.Tensor:
        """In the graph: this rank's state as one float64 vector."""
        flat = [tf.reshape(tf.cast(v.value, tf.float64), [-1]) for v in self.variables(step)]
        return tf.concat(flat, axis=0)

    def merge(
        self, state: np.ndarray, communicator: Communicator, sums: Sequence[float] = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        """Collective: the state that one rank would hold after the batches of all.

        One exchange for the numbers that add up, and one more for "max" and "min" where a metric
        asks for them.

        Args:
            state: this rank's, as `state` gives it.
            communicator: how ranks talk.
            sums: numbers to be added up over ranks on the way.

        Returns:
            The merged state, and the `sums`.
        """
        merged = state.copy()
        # A step's own logs, at the end, add up and start at 0.
        own = (0, len(state) - len(self._initial))
        operations = np.pad(self._operation_of_each_number, own, constant_values="sum")
        adds = operations == "sum"
        initial = np.pad(self._initial, own)[adds]
        # Every rank counts from the same start, which must be in the sum once.
        total = communicator.reduce(np.concatenate([sums, state[adds] - initial]))
        merged[adds] = total[len(sums) :] + initial
        for operation in ("max", "min"):
            mine = operations == operation
            if mine.any():
                merged[mine] = communicator.reduce(state[mine], operation)
        return merged, total[: len(sums)]

    def results(self, state: np.ndarray, step: str = "train") -> dict[str, float]:
        """Metric values for a state merged over ranks.

        Args:
            state: as `state` gives it.
            step: "train" or "evaluate", whose own logs are wanted if the model has such.
        """
        values = self._results(tf.constant(state, tf.float64), step)
        return {name: _plain(value.numpy()) for name, value in values.items()}

    def _results_from(self, state: tf.Tensor, step: str) -> dict[str, tf.Tensor]:
        variables = self.variables(step)
        shapes = [variable.shape for variable in variables]
        pieces = tf.split(state, [int(np.prod(shape, dtype=np.int64)) for shape in shapes])
        mapping = [
            (variable, tf.cast(tf.reshape(piece, shape), variable.dtype))
            for variable, piece, shape in zip(variables, pieces, shapes, strict=True)
        ]
        with keras.StatelessScope(state_mapping=mapping):
            if step in self.own_logs:
                results = {name: one.result() for name, one in self.own_logs[step].items()}
            else:
                # Keras's own loss tracker is not used: ours knows how many samples count.
                results = {**self.model.get_metrics_result(), self.loss.name: self.loss.result()}
            # Read here: a metric may return a variable, which outside holds this rank's value.
            return {name: _tensor(value) for name, value in flat_logs(results).items()}

    @functools.cached_property
    def _operation_of_each_number(self) -> np.ndarray:
        """Of the loss and the metrics, which are built by the time their states are merged."""
        declared = {id(one.variable): one.operation for one in states(self.model)}
        return np.concatenate(
            [
                np.full(int(np.prod(variable.shape)), declared.get(id(variable)) or "sum")
                for variable in self.variables(step="")
            ]
        )


@dataclass(frozen=True)
class State:
    """One variable of a metric.

    Args:
        variable: the Keras variable.
        metric: the metric that was compiled, or that a layer made.
        operation: how it merges over ranks: "sum", "max", "min"; None where nothing says so.
        is_keras_own: whether the metric and those inside it are Keras's own, whose states add.
    """

    variable: Any
    metric: Any
    operation: str | None
    is_keras_own: bool


def states(model: keras.Model) -> list[State]:
    """Every variable of every metric of a model, and how it merges.

    Raises:
        ArgumentError: if a metric's `merge_over_ranks` is none of what it may be.
    """
    return [
        State(variable, metric, operation, all(map(_is_keras_own, _with_parts(metric))))
        for metric in single_metrics(model)
        for variable, operation in _declared(metric, None)
    ]


def single_metrics(model: keras.Model) -> list[Any]:
    """The metrics of a model; Keras keeps the compiled ones together in one object."""
    return [
        single
        for metric in model.metrics
        for single in (
            metric.metrics if _is_keras_own(metric) and hasattr(metric, "metrics") else [metric]
        )
    ]


def describe_merging(model: keras.Model) -> str:
    """How the state of each metric merges, in words: what must be the same on all ranks."""
    return ", ".join(one.operation or "sum" for one in states(model))


def _declared(metric: Any, outer: Any) -> Iterator[tuple[Any, str | None]]:
    """Variables of a metric and of those inside it, in Keras's order; the inner word counts."""
    declared = getattr(metric, "merge_over_ranks", outer)
    if declared is not outer:
        _check_declaration(metric, declared)
    for variable in metric._variables:
        by_name = declared.get(variable.name, "sum") if isinstance(declared, Mapping) else declared
        yield variable, by_name
    for inner in metric._metrics:
        yield from _declared(inner, declared)


def _check_declaration(metric: Any, declared: Any) -> None:
    is_dict = isinstance(declared, Mapping)
    names = [variable.name for variable in metric.variables]
    operations = list(declared.values()) if is_dict else [declared]
    unknown = [name for name in declared if name not in names] if is_dict else []
    if unknown or any(operation not in REDUCTIONS for operation in operations):
        raise ArgumentError(
            f"`merge_over_ranks` of the metric `{metric.name}` must be one of {REDUCTIONS}, or a "
            f"dict from names of its variables ({', '.join(names)}) to one of these. "
            f"Received: {dict(declared) if is_dict else declared!r}."
        )


def _with_parts(metric: Any) -> Iterator[Any]:
    yield metric
    for inner in metric._metrics:
        yield from _with_parts(inner)


def _parts(metric: Any) -> Iterator[Any]:
    """A metric and all inside it; Keras keeps compiled ones in lists that are no parts yet."""
    inside = getattr(metric, "metrics", None)
    for one in [metric, *(inside if isinstance(inside, list) else [])]:
        yield from _with_parts(one)


def _is_keras_own(metric: Any) -> bool:
    return type(metric).__module__.partition(".")[0] == "keras"


def flat_logs(results: Mapping[str, Any]) -> dict[str, Any]:
    """Values by name, where one metric gives several by their own names, as in Keras's logs."""
    flat: dict[str, Any] = {}
    for name, value in results.items():
        flat |= flat_logs(value) if isinstance(value, Mapping) else {name: value}
    return flat


def _tensor(value: Any) -> tf.Tensor:
    return tf.convert_to_tensor(value.value if isinstance(value, keras.Variable) else value)


def _plain(value: np.ndarray) -> Any:
    """A float for a scalar; metrics with a vector result, such as F1 by class, stay arrays."""
    return float(value) if np.ndim(value) == 0 else value
