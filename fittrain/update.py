"""What is known of one update while it is traced: votes, and gradients gathered for it.

Synopsis::

    update = Update(stop=tf.constant(0.0))
    update.window = Window(model.trainable_variables)
    update.window.add(gradients, variables, weight=batch.count, optimizer=optimizer)
    update.window.weighted_gradients
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fittrain.errors import ArgumentError


class Update:
    """One update being traced.

    Args:
        stop: whether a rank asked to stop so far, a scalar, more than 0 if so.

    Attributes:
        applied: how often the step of this (micro-)batch has handed gradients over.
        window: gradients gathered over micro-batches, or None.
        graph: where it is traced, or None.
        has_nested: whether gradients came from a function that the step calls.
    """

    def __init__(self, stop: tf.Tensor) -> None:
        self.stop = stop
        self.applied = 0
        self.window: Window | None = None
        self.graph = current_graph()
        self.has_nested = False


class Window:
    """Gradients of several micro-batches, each weighted by its samples.

    Args:
        variables: what they may belong to.
    """

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = list(variables)
        self.sums = [tf.zeros(variable.shape, variable.dtype) for variable in variables]
        self.weight = tf.constant(0.0)
        self.optimizer: Any = None
        self._places = {id(variable): place for place, variable in enumerate(variables)}
        self._touched: set[int] = set()

    @property
    def state(self) -> list[tf.Tensor]:
        """What a loop over micro-batches carries along."""
        return [self.weight, *self.sums]

    @state.setter
    def state(self, values: Sequence[tf.Tensor]) -> None:
        self.weight, *self.sums = values

    def add(
        self, gradients: Sequence[Any], variables: Sequence[Any], weight: tf.Tensor, optimizer: Any
    ) -> None:
        """Adds the gradients of one micro-batch."""
        for gradient, variable in zip(gradients, variables, strict=True):
            place = self._places.get(id(variable))
            if place is None:
                raise ArgumentError(
                    "`apply_gradients` with `accumulate_steps` takes trainable variables that were "
                    "there before the first update. "
                    f"Received: {getattr(variable, 'path', variable)!r}."
                )
            if gradient is not None:
                self._touched.add(place)
                self.sums[place] = _add_weighted(self.sums[place], gradient, weight)
        self.weight = self.weight + weight
        self.optimizer = optimizer

    @property
    def touched(self) -> list[Any]:
        """The variables that a micro-batch gave a gradient for."""
        return [self.variables[place] for place in sorted(self._touched)]

    @property
    def weighted_gradients(self) -> list[tf.Tensor]:
        """Sums of gradients times samples, of the `touched` variables."""
        return [self.sums[place] for place in sorted(self._touched)]


def current_graph() -> Any:
    """The graph under construction; None where operations run at once."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _add_weighted(total: tf.Tensor, gradient: Any, weight: tf.Tensor) -> tf.Tensor:
    weight = tf.cast(weight, total.dtype)
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.math.multiply_no_nan(tf.cast(gradient.values, total.dtype), weight)
        return tf.tensor_scatter_nd_add(total, gradient.indices[:, None], values)
    return total + tf.math.multiply_no_nan(tf.cast(gradient, total.dtype), weight)
