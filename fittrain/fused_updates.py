"""An optimizer's update of a weight as one TensorFlow kernel, where that gives Keras's numbers.

Keras writes an update as many small operations for each weight, each a pass over memory; TensorFlow
has kernels that do the same in one. Keras's own `apply` stays in charge: while it runs, only its
rule for one weight and its weight decay are exchanged, so that clipping, loss scaling,
accumulation, averaged weights, constraints and counters remain Keras's.

Synopsis::

    fused_updates.apply(optimizer, gradients, variables)     # for optimizer.apply(...)
    fused_updates.is_fused(keras.optimizers.Adam())          # True
    fused_updates.reason_against(keras.optimizers.Lion())    # "Lion has no fused kernel"
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf

# As Keras's assignments do, for threads that read a weight meanwhile.
LOCK = {"use_locking": True}
# In half precision a kernel's 1 - beta differs from Keras's by percents.
DTYPES = (tf.float32, tf.float64)


def apply(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """`optimizer.apply(gradients, variables)`, through fused kernels where `is_fused`.

    The result is Keras's, rounding apart; where it is not fused, it is Keras's.

    Args:
        optimizer: a Keras optimizer, built or not.
        gradients: one for each variable: dense, or sparse with every row once, or None.
        variables: Keras variables, in the same order.

    Example:
        >>> weight = keras.Variable([1.0, 2.0])
        >>> apply(keras.optimizers.SGD(0.5), [tf.constant([1.0, 1.0])], [weight])
        >>> weight.numpy().tolist()
        [0.5, 1.5]
    """
    with _fused(_innermost(optimizer)):
        optimizer.apply(gradients, variables)


def is_fused(optimizer: Any) -> bool:
    """Whether `apply` uses fused kernels for this optimizer's float32 and float64 weights."""
    return not reason_against(optimizer)


def reason_against(optimizer: Any) -> str:
    """Why an optimizer's updates are Keras's own, in words; "" where they are fused."""
    inner = _innermost(optimizer)
    name = type(inner).__name__
    # A subclass may have changed the rule.
    if type(inner) not in _RULES:
        return f"{name} has no fused kernel"
    if _METHODS & vars(inner).keys():
        return f"this {name} has an update rule of its own"
    if getattr(inner, "amsgrad", False):
        return f"{name} with amsgrad has no fused kernel"
    numbers = [getattr(inner, key, 0.0) for key in ("beta_1", "beta_2", "epsilon", "momentum")]
    if not all(isinstance(number, (int, float)) for number in numbers):
        return f"this {name} has betas, epsilon or momentum that are not plain numbers"
    made_under = getattr(inner, "_distribution_strategy", None)
    if tf.distribute.has_strategy() or made_under is not tf.distribute.get_strategy():
        return f"this {name} belongs to a tf.distribute strategy"
    return ""


class _Rule(Protocol):
    """One update of weights of one dtype; made once for all of them, called for each."""

    def __call__(self, variable: tf.Variable, gradient: tf.Tensor) -> None: ...


class _Descent:
    """w -= rate * g, as in Keras's SGD."""

    def __init__(self, optimizer: Any, learning_rate: Any, dtype: str) -> None:
        self._rate = keras.ops.cast(learning_rate, dtype)

    def __call__(self, variable: tf.Variable, gradient: tf.Tensor) -> None:
        tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle, alpha=self._rate, delta=gradient, **LOCK
        )


class _Momentum:
    """m = momentum * m - rate * g; w += m, or Nesterov's variant, as in Keras's SGD."""

    def __init__(self, optimizer: Any, learning_rate: Any, dtype: str) -> None:
        self._optimizer = optimizer
        self._rate = keras.ops.cast(learning_rate, dtype)
        self._momentum = keras.ops.cast(optimizer.momentum, dtype)

    def __call__(self, variable: tf.Variable, gradient: tf.Tensor) -> None:
        index = self._optimizer._get_variable_index(variable)
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=variable.handle,
            accum=self._optimizer.momentums[index].value.handle,
            lr=self._rate,
            grad=gradient,
            momentum=self._momentum,
            **LOCK,
            use_nesterov=bool(self._optimizer.nesterov),
        )


class _Adam:
    """Kingma & Ba 2014 (arXiv:1412.6980), "epsilon hat" form, as in Keras's Adam and AdamW."""

    def __init__(self, optimizer: Any, learning_rate: Any, dtype: str) -> None:
        self._optimizer = optimizer
        step = keras.ops.cast(optimizer.iterations + 1, dtype)
        self._scalars = {
            # Rounded where Keras rounds them: its cast of a plain number goes through float32.
            "beta1_power": keras.ops.power(keras.ops.cast(optimizer.beta_1, dtype), step),
            "beta2_power": keras.ops.power(keras.ops.cast(optimizer.beta_2, dtype), step),
            "beta1": tf.constant(optimizer.beta_1, dtype),
            "beta2": tf.constant(optimizer.beta_2, dtype),
            "epsilon": tf.constant(optimizer.epsilon, dtype),
            "lr": keras.ops.cast(learning_rate, dtype) * _rounding(optimizer.beta_2, step),
        }

    def __call__(self, variable: tf.Variable, gradient: tf.Tensor) -> None:
        index = self._optimizer._get_variable_index(variable)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._optimizer._momentums[index].value.handle,
            v=self._optimizer._velocities[index].value.handle,
            grad=gradient,
            **LOCK,
            **self._scalars,
        )


def _rounding(beta: float, step: tf.Tensor) -> tf.Tensor | float:
    """What Adam's rate is multiplied by, since the kernel rounds 1 - beta_2 unlike Keras.

    The kernel subtracts in the dtype of the weights, Keras in float64. For 0.999 in float32 the
    results a differ by 1.3e-5, and so do the second moments, until they forget their start. With a
    steady gradient they are as 1 - (1 - a)**step.
    """
    number = step.dtype.as_numpy_dtype
    kernel, ours = (float(a) for a in (number(1) - number(beta), number(1 - beta)))
    if kernel == ours:
        return 1.0
    exact = tf.cast(step, tf.float64)
    moments = [1.0 - tf.pow(tf.constant(1.0 - a, tf.float64), exact) for a in (kernel, ours)]
    return tf.cast(tf.sqrt(moments[0] / moments[1]), step.dtype)


class _Update:
    """Stands in for two methods of an optimizer, during one call of its `apply`."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._keras_update = optimizer.update_step
        self._keras_decay = optimizer._apply_weight_decay
        self._made: dict[Any, Any] = {}

    def update_step(self, gradient: Any, variable: tf.Variable, learning_rate: Any) -> None:
        make = _RULES[type(self._optimizer)](self._optimizer)
        is_sparse = isinstance(gradient, tf.IndexedSlices)
        # Of a sparse gradient plain descent changes its rows alone: Keras does that best. A shape
        # that does not fit Keras broadcasts, or refuses.
        fits = gradient.shape.is_compatible_with(variable.shape)
        if variable.dtype not in DTYPES or not fits or (is_sparse and make is _Descent):
            self._keras_update(gradient, variable, learning_rate)
            return
        dense = _dense(gradient, variable.shape[0]) if is_sparse else gradient
        dtype = variable.dtype.name
        rule = self._once(dtype, lambda: make(self._optimizer, learning_rate, dtype))
        rule(variable, tf.cast(dense, dtype))

    def apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """W -= rate * decay * w, for each weight that is not excluded from it."""
        optimizer = self._optimizer
        if optimizer.weight_decay is None:
            return
        for variable in variables:
            dtype = keras.backend.standardize_dtype(variable.dtype)
            if dtype not in [known.name for known in DTYPES]:
                self._keras_decay([variable])
            elif optimizer._use_weight_decay(variable):
                rate = self._once(f"decay {dtype}", functools.partial(self._decay_rate, dtype))
                value = getattr(variable, "value", variable)
                value.assign_sub(value * rate)

    def _decay_rate(self, dtype: str) -> tf.Tensor:
        decay = keras.ops.cast(self._optimizer.weight_decay, dtype)
        return decay * keras.ops.cast(self._optimizer.learning_rate, dtype)

    def _once(self, key: str, make: Callable[[], Any]) -> Any:
        """Made at the first call in a graph: a condition's branch is a graph of its own."""
        place = (tf.compat.v1.get_default_graph(), key)
        if place not in self._made:
            self._made[place] = make()
        return self._made[place]


def _dense(gradient: tf.IndexedSlices, rows: int) -> tf.Tensor:
    """A sparse gradient as the whole array, as Keras makes it on its way: no update is lazy."""
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, rows)


def _sgd_rule(optimizer: Any) -> Any:
    return _Momentum if optimizer.momentum else _Descent


_RULES: dict[type, Callable[[Any], Callable[[Any, Any, str], _Rule]]] = {
    keras.optimizers.SGD: _sgd_rule,
    keras.optimizers.Adam: lambda optimizer: _Adam,
    keras.optimizers.AdamW: lambda optimizer: _Adam,
}
_METHODS = {"update_step", "_apply_weight_decay"}


def _innermost(optimizer: Any) -> Any:
    while type(optimizer) is keras.optimizers.LossScaleOptimizer:
        optimizer = optimizer.inner_optimizer
    return optimizer


@contextlib.contextmanager
def _fused(optimizer: Any) -> Iterator[None]:
    """Exchanges the two methods of this one optimizer, and puts Keras's back."""
    if not is_fused(optimizer):
        yield
        return
    update = _Update(optimizer)
    # Past Keras's own `__setattr__`, which would track them as parts of the optimizer.
    vars(optimizer)["update_step"] = update.update_step
    vars(optimizer)["_apply_weight_decay"] = update.apply_weight_decay
    try:
        yield
    finally:
        for name in _METHODS:
            vars(optimizer).pop(name, None)
