"""The learning rate of every update, computed in the graph from the updates applied so far.

`WarmupSchedule` is the arithmetic; `LearningRateControl` writes its value into the optimizer's
learning-rate variable just before the optimizer applies gradients. The optimizer itself stays as it
is: its file opens without fittrain, and callbacks read and set `optimizer.learning_rate`.

Where the numbers of a run come from is `learning_rate`'s business.

Synopsis::

    control = control_of(model.optimizer)
    control.begin(ramp, first_step=0)
    with control.governing():
        control.before_apply()                # in the graph, before every `optimizer.apply`
        optimizer.apply(gradients, variables)
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable("fittrain")
class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """A linear ramp over the first updates, then a constant or another schedule.

    Update s (0-based) gets start + (target - start) * s / warmup_steps while s < warmup_steps, and
    `target`, or factor * after(s - warmup_steps), from then on. The numbers live in a variable, so
    that a compiled program follows them.

    Args:
        start: rate of update 0.
        target: rate at the end of the ramp.
        warmup_steps: updates of the ramp, at least 1.
        after: a Keras schedule, or a function from an update's number to a rate; None is constant.
        factor: what `after` is multiplied with.

    Example:
        >>> schedule = WarmupSchedule(0.1, 0.4, warmup_steps=5)
        >>> [round(float(schedule(step)), 2) for step in (0, 3, 5, 100)]
        [0.1, 0.28, 0.4, 0.4]
    """

    def __init__(
        self,
        start: float,
        target: float,
        warmup_steps: int,
        after: Callable[[Any], Any] | None = None,
        factor: float = 1.0,
    ) -> None:
        self.after = after
        self.numbers = tf.Variable(
            [start, target, warmup_steps, factor], trainable=False, dtype=tf.float64
        )
        # Schedules written for Keras get the optimizer's counter, a Keras variable, and may rely
        # on its arithmetic: an integer tensor times 0.5 is an error in TensorFlow.
        self._step_after = keras.Variable(0, trainable=False, dtype="int64", name="step_after")

    def __call__(self, step: Any) -> tf.Tensor:
        """The rate of update `step`, float64."""
        start, target, warmup_steps, factor = tf.unstack(self.numbers)
        step = keras.ops.cast(step, "float64")
        ramp = start + (target - start) * tf.minimum(step / warmup_steps, 1.0)
        if self.after is None:
            return ramp
        later = factor * self.rate_after(tf.cast(tf.maximum(step - warmup_steps, 0.0), tf.int64))
        return tf.where(step < warmup_steps, ramp, later)

    def rate_after(self, step: Any) -> tf.Tensor:
        """What `after` gives for its own update `step`, float64."""
        self._step_after.assign(step)
        return keras.ops.cast(self.after(self._step_after), "float64")  # type: ignore[misc]

    def get_config(self) -> dict[str, Any]:
        """The arguments; `after` must be serialisable itself."""
        start, target, warmup_steps, factor = (float(number) for number in self.numbers.numpy())
        return {
            "start": start,
            "target": target,
            "warmup_steps": int(warmup_steps),
            "after": keras.saving.serialize_keras_object(self.after),
            "factor": factor,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> WarmupSchedule:
        """The schedule that `get_config` described."""
        after = keras.saving.deserialize_keras_object(config["after"])
        return cls(**{**config, "after": after})


@dataclass(frozen=True)
class Ramp:
    """The numbers of one fit; see `WarmupSchedule`.

    Args:
        start: rate of update 0.
        target: rate at the end of the ramp.
        warmup_steps: updates of the ramp.
        factor: what `after` is multiplied with.
        after: what follows the ramp, or None.
        momentum_correction: whether velocities follow the rate.
    """

    start: float
    target: float
    warmup_steps: int
    factor: float = 1.0
    after: Callable[[Any], Any] | None = None
    momentum_correction: bool = False


class LearningRateControl:
    """Sets the learning rate of one optimizer, update by update. There is one for each optimizer.

    What a callback or a user assigns to `optimizer.learning_rate` between two updates is kept as a
    factor on everything that follows: the value assigned over the value that the schedule gave.
    Assigning the value that is there changes nothing. A rate that came with a loaded optimizer
    state, which shows in the counter of updates, is not such a change. Where the schedule gave 0,
    a factor has no meaning, and an assignment is overwritten.

    Args:
        optimizer: a Keras optimizer without a wrapper around it.

    Attributes:
        base: the optimizer's own rate, if it was seen before any update or set by `load_state`.
        derivation: how the rate of the present fit came about.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = weakref.ref(optimizer)
        self.base = self._own_rate() if int(optimizer.iterations) == 0 else None
        self.derivation: dict[str, Any] = {}
        self._schedules: dict[int, WarmupSchedule] = {}
        self._loaded: dict[str, float] = {}
        self._has_begun = False
        self._ramp: Ramp | None = None

    def base_rate(self) -> float | None:
        """The optimizer's own rate, or None where it may be one that a warm-up has scaled.

        Until the first fit, assignments to a fresh optimizer still count as its own.
        """
        if not self._has_begun and not self._loaded and int(self.optimizer.iterations) == 0:
            self.base = self._own_rate()
        return self.base

    @property
    def optimizer(self) -> Any:
        """The optimizer, while it exists."""
        return self._optimizer()

    @property
    def step(self) -> int:
        """Number of the next update in the schedule, from 0."""
        return int(self.optimizer.iterations) + int(self._offset)

    def begin(self, ramp: Ramp, *, first_step: int) -> None:
        """Takes the numbers of a fit. Not in the graph.

        The ramp goes on where the last fit left it, also where its length has changed, and at
        least from `first_step`.

        Args:
            ramp: the numbers.
            first_step: updates to regard as done.
        """
        if not self._has_begun:
            self._create()
        iterations = int(self.optimizer.iterations)
        step = max(first_step, self._carried_over(ramp.warmup_steps))
        self._offset.assign(step - iterations)
        self._schedule = self.schedule_for(ramp.after)
        self._schedule.numbers.assign([ramp.start, ramp.target, ramp.warmup_steps, ramp.factor])
        if isinstance(own := self.optimizer.learning_rate, keras.Variable):
            self._rate = own
        self._ramp, self._has_begun = ramp, True

    def schedule_for(self, after: Callable[[Any], Any] | None) -> WarmupSchedule:
        """The one schedule object with this `after`: compiled programs hold on to it."""
        if id(after) not in self._schedules:
            self._schedules[id(after)] = WarmupSchedule(0.0, 0.0, 1, after)
        return self._schedules[id(after)]

    def before_apply(self) -> None:
        """In the graph: sets the rate of the update that is about to be applied."""
        iterations = tf.cast(keras.ops.convert_to_tensor(self.optimizer.iterations), tf.int64)
        current = tf.cast(self._rate.value, tf.float64)
        since = iterations - self._last_iterations
        is_changed = tf.reduce_all(
            # A skipped update leaves the counter; any other jump is a loaded state.
            [current != self._last_rate, self._last_planned > 0, since >= 0, since <= 1]
        )
        change = tf.math.divide_no_nan(current, self._last_planned)
        factor = tf.where(is_changed, change, self._factor)
        planned = self._schedule(iterations + self._offset)
        rate = tf.cast(planned * factor, self._rate.dtype)
        rounded = tf.cast(rate, tf.float64)
        if self._ramp is not None and self._ramp.momentum_correction:
            self._correct_momentum(rounded)
        self._factor.assign(factor)
        self._last_planned.assign(planned)
        self._last_rate.assign(rounded)
        self._last_iterations.assign(iterations)
        self._rate.assign(rate)

    @contextlib.contextmanager
    def governing(self) -> Iterator[None]:
        """While this lasts, `optimizer.learning_rate` is what `before_apply` has set.

        An optimizer with a rate of its own needs nothing for that. One with a schedule keeps it,
        for its configuration and its file; only what it reads is replaced, and put back.
        """
        optimizer = self.optimizer
        if isinstance(optimizer._learning_rate, keras.Variable):
            yield
            return
        optimizer._get_current_learning_rate = lambda: self._rate
        try:
            yield
        finally:
            del optimizer._get_current_learning_rate

    def state(self) -> dict[str, float]:
        """What a checkpoint must hold besides the optimizer's variables; empty before a fit."""
        if not self._has_begun or self._ramp is None:
            return dict(self._loaded)
        found = {
            "callback_factor": float(self._factor),
            "last_planned_rate": float(self._last_planned),
            "last_rate": float(self._last_rate),
            "step": self.step,
            "warmup_steps": self._ramp.warmup_steps,
        }
        return found if self.base is None else {**found, "base_learning_rate": self.base}

    def load_state(self, state: dict[str, float]) -> None:
        """Continues from `state`, taken together with the optimizer's variables now loaded."""
        self._loaded = dict(state)
        self.base = state.get("base_learning_rate", self.base)
        if self._has_begun:
            self._create()

    def _create(self) -> None:
        """The variables, at the first fit or after a loaded state."""
        if not self._has_begun:
            own = self._own_rate() or 0.0
            self._rate = keras.Variable(own, trainable=False, name="learning_rate")
            self._factor = tf.Variable(1.0, trainable=False, dtype=tf.float64)
            self._last_planned = tf.Variable(own, trainable=False, dtype=tf.float64)
            self._last_rate = tf.Variable(own, trainable=False, dtype=tf.float64)
            self._last_iterations = tf.Variable(0, trainable=False, dtype=tf.int64)
            self._offset: Any = tf.Variable(0, trainable=False, dtype=tf.int64)
        if self._loaded:
            self._factor.assign(self._loaded["callback_factor"])
            self._last_planned.assign(self._loaded["last_planned_rate"])
            self._last_rate.assign(self._loaded["last_rate"])
        self._last_iterations.assign(int(self.optimizer.iterations))

    def _carried_over(self, warmup_steps: int) -> int:
        """The position in a ramp of this length that corresponds to where the last one stands."""
        if self._loaded:
            step, last = int(self._loaded["step"]), int(self._loaded["warmup_steps"])
            self._loaded = {}
        elif self._ramp is not None:
            step, last = self.step, self._ramp.warmup_steps
        else:
            return self.step
        return step * warmup_steps // last if step < last else warmup_steps + step - last

    def _own_rate(self) -> float | None:
        own = self.optimizer._learning_rate
        return float(own.numpy()) if isinstance(own, keras.Variable) else None

    def _correct_momentum(self, rate: tf.Tensor) -> None:
        """Velocities hold the rate of the last update as a factor; this makes it the new one."""
        ratio = tf.where(
            self._last_rate > 0, tf.math.divide_no_nan(rate, self._last_rate), tf.ones_like(rate)
        )
        velocities = [one for one in self.optimizer.momentums if one is not None]

        def scale() -> None:
            for velocity in velocities:
                velocity.assign(velocity.value * tf.cast(ratio, velocity.dtype))

        # Most updates after a warm-up have the rate of the last one, and nothing to scale.
        tf.cond(ratio != 1.0, scale, lambda: None)


_controls: weakref.WeakKeyDictionary[Any, LearningRateControl] = weakref.WeakKeyDictionary()


def control_of(optimizer: Any) -> LearningRateControl:
    """The control of an optimizer, which knows its own rate from the first time it is asked for."""
    inner = unwrapped(optimizer)
    if inner not in _controls:
        _controls[inner] = LearningRateControl(inner)
    return _controls[inner]


def unwrapped(optimizer: Any) -> Any:
    """The optimizer inside one that scales the loss; it counts the updates that were applied."""
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


def rate_source(optimizer: Any) -> Any:
    """The variable or schedule an optimizer reads its rate from, which tracing bakes in."""
    return getattr(unwrapped(optimizer), "_learning_rate", None)
