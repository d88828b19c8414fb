"""Metrics of one's own, tried on a few rows: does their state add up over ranks?

Keras's metrics all do. One that keeps a maximum, a running mean or the last value does not, and its
sum over ranks would be a wrong number that looks right. So before the first update the state after
one batch is compared with the states after its two parts, added up.

Synopsis::

    check_metrics(model, source, size=8)      # raises ArgumentError, naming metric and variable
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from fittrain.data.arrays import ArraySource
from fittrain.errors import ArgumentError
from fittrain.metrics import State, states

ROWS, FIRST_ROWS = 8, 3
"""Rows that are tried, and how many of them are one part: uneven, so that means do not add up."""

TOLERANCES = {"float16": 1e-2, "bfloat16": 1e-1}
"""Rounding of sums in half precision, relative to the parts; in other dtypes 1e-4 is ample."""


def check_metrics(model: keras.Model, source: ArraySource, size: int) -> None:
    """Refuses metrics whose state does not add up over ranks and that do not say how it merges.

    Costs nothing where all metrics are Keras's own or say how they merge, or there is one rank.

    Args:
        model: a compiled and built model.
        source: its data, of which a few rows are tried. No state changes.
        size: number of ranks.

    Raises:
        ArgumentError: naming the metric, the variable and the ways out; also where a metric cannot
            be updated with these rows.
    """
    tried = [one for one in states(model) if one.operation is None and not one.is_keras_own]
    if size < 2 or not tried:
        return
    for one, counted in zip(tried, _count_in_parts(model, source, tried), strict=True):
        if not counted.adds_up(one.variable.dtype):
            raise ArgumentError(
                f"The state `{one.variable.name}` of the metric `{one.metric.name}` "
                f"({type(one.metric).__name__}) does not add up over ranks: after {ROWS} rows it "
                f"is {_shown(counted.whole)}, and {_shown(counted.sum)} as the sum over two parts "
                "of them. Keep sums and counts in the state and divide in `result`; or say with "
                '`merge_over_ranks` how it merges ("max", "min", "sum", or a dict by variable); or '
                "leave the metric out and compute it from what `Trainer.predict` returns, which "
                "all ranks hold."
            )


@dataclass(frozen=True)
class Counted:
    """One state variable, as float64: at the start, after all rows, and after two parts of them."""

    start: np.ndarray
    whole: np.ndarray
    first: np.ndarray
    second: np.ndarray

    @property
    def sum(self) -> np.ndarray:
        """What adding up over ranks would give."""
        # A state that starts at infinity adds up to no number, and is told like any other.
        with np.errstate(invalid="ignore"):
            return np.asarray(self.first + self.second - self.start)

    def adds_up(self, dtype: str) -> bool:
        """Whether the sum over parts is the state after all rows, to rounding."""
        sizes = np.abs([self.whole, self.first, self.second])
        scale = np.max(sizes, where=np.isfinite(sizes), initial=0.0)
        tolerance = TOLERANCES.get(dtype, 1e-4) * scale
        return bool(np.allclose(self.sum, self.whole, 0.0, tolerance, equal_nan=True))


def _count_in_parts(model: keras.Model, source: ArraySource, tried: list[State]) -> list[Counted]:
    def trial(data: Any) -> list[list[tf.Tensor]]:
        with keras.StatelessScope() as scope:
            model.reset_metrics()
        initial = [
            (variable, scope.get_current_value(variable)) for variable in model.metrics_variables
        ]
        # A `reset_state` of one's own may leave some as they are.
        initial = [(v, v.value if value is None else value) for v, value in initial]
        outputs, whole = _count(model, data, None, initial)
        counts = [{id(variable): value for variable, value in initial}, whole]
        for part in (slice(None, FIRST_ROWS), slice(FIRST_ROWS, None)):
            _, count = _count(model, rows_of(data, part), rows_of(outputs, part), initial)
            counts.append(count)
        return [[tf.cast(one[id(state.variable)], tf.float64) for one in counts] for state in tried]

    names = ", ".join(dict.fromkeys(f"`{one.metric.name}`" for one in tried))
    # From all over the data: the first rows may be alike, or all zero.
    rows = source.gather(np.linspace(0, source.length - 1, ROWS).astype(np.int64))
    try:
        run = trial if model.run_eagerly else tf.function(trial, autograph=False)
        counted = run(keras.tree.map_structure(tf.convert_to_tensor, rows))
    except Exception as error:  # noqa: BLE001 - whatever the user's metric or model raises
        raise ArgumentError(
            f"Whether the states of the metrics {names} add up over ranks could not be tried with "
            f"{ROWS} rows of the data ({type(error).__name__}: {error}). Correct the metric, or "
            'say with `merge_over_ranks` how its state merges ("sum", "max", "min", or a dict by '
            "variable)."
        ) from error
    return [Counted(*(tensor.numpy() for tensor in one)) for one in counted]


def _count(
    model: keras.Model, data: Any, outputs: Any, initial: list[tuple[Any, tf.Tensor]]
) -> tuple[Any, dict[int, tf.Tensor]]:
    """The model's outputs for one batch, and the state of its metrics afterwards, by variable.

    Compiled metrics count `outputs` where given, so that only they are tried and not the model.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    with keras.StatelessScope(state_mapping=initial) as scope:
        own_outputs = model(x)
        if y is not None or model.loss is None:
            y_pred = own_outputs if outputs is None else outputs
            model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
    return own_outputs, {id(variable): scope.get_current_value(variable) for variable, _ in initial}


def rows_of(structure: Any, part: slice) -> Any:
    """Some rows of every tensor, with their masks."""

    def cut(tensor: tf.Tensor) -> tf.Tensor:
        rows = tensor[part]
        mask = getattr(tensor, "_keras_mask", None)
        if mask is not None:
            rows._keras_mask = mask[part]
        return rows

    return keras.tree.map_structure(cut, structure)


def _shown(value: np.ndarray) -> str:
    return np.array2string(value, precision=6, threshold=8)
