"""Keras's own ways to a weight, led through the trainer's one door while a step runs.

Steps that are written for Keras call `optimizer.apply` and count single losses with
`keras.metrics.Mean`, both of which know one process only. Within `intercepted`, in this thread,
such a call reaches the trainer instead. Nothing of Keras is changed outside of it.

Synopsis::

    with intercepted(door, share=lambda: batch.count / batch.total):
        logs = model.train_step(batch.data)
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf
from keras.src.optimizers.base_optimizer import BaseOptimizer


class Door(Protocol):
    """Where updates go."""

    is_applying: bool
    is_loss_scaled: bool

    def apply_gradients(
        self, gradients: Sequence[Any], variables: Sequence[Any], optimizer: Any
    ) -> None:
        """Averages over ranks and applies."""


Scaled = keras.optimizers.LossScaleOptimizer


@contextlib.contextmanager
def intercepted(door: Door, share: Callable[[], tf.Tensor]) -> Iterator[None]:
    """Leads updates of optimizers and means of single values through the trainer, in this thread.

    Args:
        door: called with gradients, variables and optimizer instead of `optimizer.apply`, which
            keeps its meaning while `door.is_applying`. Told when a loss is scaled.
        share: the batch's part of the whole batch of all ranks, a scalar. A mean of a single value,
            such as the loss of a batch, counts as this much of a value, so that it counts as one
            over all ranks, as it would in one process.
    """
    thread = threading.get_ident()
    scale_loss, update_state = Scaled.scale_loss, keras.metrics.Mean.update_state

    def apply_through(original: Any) -> Any:
        def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
            if door.is_applying or threading.get_ident() != thread:
                return original(optimizer, grads, trainable_variables)
            known = trainable_variables is not None
            variables = trainable_variables if known else optimizer._trainable_variables
            return door.apply_gradients(list(grads), list(variables), optimizer)

        return apply

    def noted_scale_loss(optimizer: Any, loss: Any) -> Any:
        door.is_loss_scaled = True
        # The part's share of the batch's loss: what half precision holds is then what it would be
        # in one process, and overflows where it would. The door takes the share out again.
        return scale_loss(optimizer, loss * tf.cast(share(), loss.dtype))

    def shared_update_state(metric: Any, values: Any, sample_weight: Any = None) -> Any:
        if sample_weight is None and _is_single(values) and threading.get_ident() == thread:
            sample_weight = share()
            # A stand-in row may give any loss, even NaN.
            values = tf.where(sample_weight > 0, tf.cast(values, tf.float32), 0.0)
        return update_state(metric, values, sample_weight=sample_weight)

    patches = [
        (BaseOptimizer, "apply", apply_through(BaseOptimizer.apply)),
        (Scaled, "apply", apply_through(Scaled.apply)),
        (Scaled, "scale_loss", noted_scale_loss),
        (keras.metrics.Mean, "update_state", shared_update_state),
    ]
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    for owner, name, replacement in patches:
        setattr(owner, name, replacement)
    try:
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def _is_single(values: Any) -> bool:
    shape = getattr(values, "shape", None)
    if shape is None:
        return isinstance(values, (int, float))
    return bool(tf.TensorShape(shape).rank == 0)
