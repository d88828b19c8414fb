"""Trying out a step before the first update: everything is built, and nothing has changed.

Models may be built late (subclassed ones see their shapes with the first data), so this happens
when the data is known. On the way it finds out whether model, data, loss and metrics fit, which
optimizers a step uses, and how the losses are reduced.

Synopsis::

    try_out(program, source, with_loss=True)
    program.losses[data_key(...)].kinds          # ("mean",)
"""

from __future__ import annotations

import contextlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from fittrain.batch import Batch
from fittrain.block import data_key
from fittrain.comm.local import LocalCommunicator
from fittrain.data.arrays import ArraySource, feed_dtype
from fittrain.loss_parts import LossParts, inspect
from fittrain.loss_trial import check_loss_parts
from fittrain.metric_trial import check_metrics
from fittrain.step import StepProgram
from fittrain.supported import check_optimizer, check_parts, check_trainable


def try_out(program: StepProgram, source: ArraySource, *, with_loss: bool) -> None:
    """Creates every variable of models, metrics and optimizers that is missing.

    Args:
        program: the steps.
        source: data for them.
        with_loss: whether the data is trained on or evaluated, and not only predicted from.

    Raises:
        ArgumentError: if something cannot be exact on this many ranks.
    """
    model = program.model
    spec = source.map(_row_spec)
    if (data_key(spec), with_loss) in program.tried:
        return

    def trial(data: Any) -> Any:
        return _trial(program, data, with_loss)

    losses: list[LossParts] = []
    if model.run_eagerly:
        losses.append(trial(source.map(lambda leaf: tf.convert_to_tensor(_first_row(leaf)))))
        model.reset_metrics()
    else:
        # Traced and never run: variables are created, and none of them changes.
        tf.function(lambda data: losses.append(trial(data)), autograph=False).get_concrete_function(
            spec
        )
    if with_loss:
        check_parts(losses[0], program.communicator.size, program.config.accumulate_steps)
        if not program.has_own_step:
            check_loss_parts(program, losses[0], source)
            check_metrics(model, source, program.communicator.size)
    for optimizer in program.replica.optimizers:
        check_optimizer(optimizer)
    program.tried.add((data_key(spec), with_loss))
    if with_loss:
        program.losses[data_key(spec)] = losses[0]


def _trial(program: StepProgram, data: Any, with_loss: bool) -> LossParts:
    model = program.model
    rows = tf.cast(tf.shape(keras.tree.flatten(data)[0])[0], tf.float32)
    batch = Batch(data, rows, rows, is_training=True, communicator=LocalCommunicator())
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    if with_loss and program.has_own_step:
        return _trial_of_own_step(program, batch)
    with batch.entered():
        y_pred = program.forward(x, training=False)
        losses = LossParts(model)
        if with_loss:
            losses = inspect(model, lambda: program.loss_of(x, y, y_pred, sample_weight))
            program.update_metrics(x, y, y_pred, sample_weight)
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    check_trainable(model)
    return losses


def _trial_of_own_step(program: StepProgram, batch: Batch) -> LossParts:
    """A step that is the user's: it alone knows what it builds, and which optimizers it uses."""
    model = program.model
    if model.run_eagerly:
        # Running it would be an update. What it builds is the same on all ranks by their seeds.
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch.data)
        with contextlib.suppress(NotImplementedError), batch.entered():
            y_pred = program.forward(x, training=False)
            # Keras builds compiled metrics with their first values.
            if y is not None:
                model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
    else:
        program.try_out(batch)
    if getattr(model, "_compile_loss", None) is None or not model._compile_loss.built:
        return LossParts(model)
    with batch.entered():
        return inspect(model, lambda: program.compute_loss(batch.data))


def _row_spec(leaf: np.ndarray) -> tf.TensorSpec:
    return tf.TensorSpec([None, *leaf.shape[1:]], tf.as_dtype(feed_dtype(leaf.dtype)))


def _first_row(leaf: np.ndarray) -> np.ndarray:
    return leaf[:1].astype(feed_dtype(leaf.dtype), copy=False)
