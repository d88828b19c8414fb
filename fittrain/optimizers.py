"""Optimizers for large global batches that Keras does not have; it has Lamb.

They are plain Keras optimizers: what they get from a `Trainer` is the gradient of the global batch,
so that their norms are those of the global gradient on any number of ranks.

Synopsis::

    optimizer = fittrain.optimizers.LARS(0.1, momentum=0.9, weight_decay=1e-4)
    trainer = fittrain.Trainer(build, optimizer=optimizer, loss="mse")
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from fittrain.errors import ArgumentError


@keras.saving.register_keras_serializable("fittrain")
class LARS(keras.optimizers.Optimizer):  # type: ignore[misc]
    """Stochastic gradient descent with a rate of its own for each layer.

    The step of a weight tensor w with gradient g is in proportion to the norm of w, whatever the
    norm of g (You, Gitman and Ginsburg 2017, arXiv:1708.03888, algorithm 1)::

        local rate = trust_coefficient * |w| / (|g| + weight_decay * |w| + epsilon)
        v = momentum * v - learning_rate * local rate * (g + weight_decay * w)
        w = w + v

    Where |w| or |g| is 0 the local rate is 1. Biases and the scales of normalisation layers, which
    are vectors, take the plain step without decay: v = momentum * v - learning_rate * g.

    Args:
        learning_rate: a float, or a Keras schedule.
        momentum: share of the last step that is kept, from 0 to 1.
        weight_decay: the paper's beta; unlike with other Keras optimizers it joins the gradient.
        trust_coefficient: the paper's eta: how far a layer moves in relation to its norm.
        epsilon: keeps the local rate finite.
        nesterov: whether the step looks ahead by the momentum.
        exclude: regular expressions; variables whose path matches one take the plain step.
        exclude_vectors: whether variables of at most one dimension take the plain step.
        name: the optimizer's name.
        **options: of every Keras optimizer, such as `clipnorm` or `use_ema`.

    Raises:
        ArgumentError: if a number is out of range.

    Example:
        >>> LARS(0.1, weight_decay=1e-4).get_config()["trust_coefficient"]
        0.001
    """

    def __init__(  # noqa: PLR0913 - the algorithm's numbers
        self,
        learning_rate: Any = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        epsilon: float = 1e-8,
        nesterov: bool = False,
        exclude: Sequence[str] = (),
        exclude_vectors: bool = True,
        name: str = "lars",
        **options: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, name=name, **options)
        numbers = {"momentum": momentum, "weight_decay": weight_decay, "epsilon": epsilon}
        for key, value in {**numbers, "trust_coefficient": trust_coefficient}.items():
            if not value >= 0 or (key == "momentum" and value > 1):
                limits = "from 0 to 1" if key == "momentum" else "0 or more"
                raise ArgumentError(f"`{key}` must be {limits}. Received: {key}={value!r}.")
        self.momentum = float(momentum)
        self.weight_decay = float(weight_decay)
        self.trust_coefficient = float(trust_coefficient)
        self.epsilon = float(epsilon)
        self.nesterov = bool(nesterov)
        self.exclude = [exclude] if isinstance(exclude, str) else list(exclude)
        self.exclude_vectors = bool(exclude_vectors)

    def build(self, variables: list[Any]) -> None:
        """Creates a velocity for each variable, and notes which take the plain step."""
        if self.built:
            return
        super().build(variables)
        self._velocities = self.add_optimizer_variables(variables, "velocity")
        self._takes_plain_step = [
            (self.exclude_vectors and len(variable.shape) <= 1)
            or any(re.search(pattern, variable.path) for pattern in self.exclude)
            for variable in variables
        ]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """One step of one variable."""
        index, dtype = self._get_variable_index(variable), variable.dtype
        gradient = ops.cast(tf.convert_to_tensor(gradient), dtype)
        rate = ops.cast(learning_rate, dtype)
        if not self._takes_plain_step[index]:
            decay = ops.cast(self.weight_decay, dtype)
            rate = rate * ops.cast(self._local_rate(gradient, variable), dtype)
            gradient = gradient + decay * variable
        velocity, momentum = self._velocities[index], ops.cast(self.momentum, dtype)
        step = rate * gradient
        self.assign(velocity, momentum * velocity - step)
        self.assign_add(variable, momentum * velocity - step if self.nesterov else velocity)

    def _local_rate(self, gradient: Any, variable: Any) -> Any:
        weight_norm, gradient_norm = _norm(variable), _norm(gradient)
        size = gradient_norm + self.weight_decay * weight_norm + self.epsilon
        is_known = ops.logical_and(weight_norm > 0, gradient_norm > 0)
        safe = ops.where(is_known, size, 1.0)
        return ops.where(is_known, self.trust_coefficient * weight_norm / safe, 1.0)

    def _apply_weight_decay(self, variables: Any) -> None:
        """Nothing: here the decay is part of the step, not a step of its own."""

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        own = ("momentum", "trust_coefficient", "epsilon", "nesterov", "exclude_vectors")
        found = {key: getattr(self, key) for key in own}
        return {**super().get_config(), **found, "exclude": list(self.exclude)}


def _norm(tensor: Any) -> Any:
    """Euclidean norm over all elements, in float32: a sum of squares leaves float16's range."""
    return ops.sqrt(ops.sum(ops.square(ops.cast(tensor, "float32"))))
