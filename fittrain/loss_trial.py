"""Losses of one's own, tried on a few rows: can the parts of a batch be put together?

Ranks and micro-batches are weighted by their samples, which is exact for a mean over samples. A
function that sums, divides by a mask of its own, or takes a root of a mean is none, and nothing of
that is seen from outside: training would go on with another gradient on every number of ranks. So
before the first update the loss of one batch is compared with that of its two parts.

Synopsis::

    check_loss_parts(program, losses, source)      # raises ArgumentError, naming the loss
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from fittrain.batch import Batch
from fittrain.comm.local import LocalCommunicator
from fittrain.data.arrays import ArraySource
from fittrain.errors import ArgumentError
from fittrain.loss_parts import LossParts
from fittrain.metric_trial import FIRST_ROWS, ROWS, rows_of
from fittrain.step import StepProgram

TOLERANCES = {"float16": 1e-2, "bfloat16": 1e-1}
"""Rounding in half precision, relative to the shares of the parts; otherwise 1e-4 is ample."""


def check_loss_parts(program: StepProgram, losses: LossParts, source: ArraySource) -> None:
    """Refuses a loss of the user's own that is no mean over samples, where there are several parts.

    Costs nothing where all losses are Keras's own, or the whole batch is one part. A loss that
    draws random numbers differs from itself, and cannot be tried.

    Args:
        program: the steps of a built model.
        losses: how Keras reduces its losses.
        source: data, of which a few rows are tried. No state changes.

    Raises:
        ArgumentError: naming the loss, and what it gave.
    """
    parts = program.communicator.size * program.config.accumulate_steps
    names, adding = _own_losses(program), _layers_that_add_losses(program)
    if parts < 2 or not (names or adding):
        return
    rows = source.gather(np.linspace(0, source.length - 1, ROWS).astype(np.int64))
    data = keras.tree.map_structure(tf.convert_to_tensor, rows)
    if names:
        tried = _run(lambda data: _in_parts(program, losses, data), data, program.model)
        _check_parts_of(names, tried, program.model)
    if adding:
        _check_parts_of(
            adding, _run(lambda data: _added(program, data), data, program.model), program.model
        )


def _check_parts_of(names: list[str], tried: list[float], model: keras.Model) -> None:
    whole, again, *of_parts = tried
    together = sum(of_parts)
    # Parts of opposite sign may nearly cancel, and what they were rounded by does not.
    tolerance = TOLERANCES.get(model.compute_dtype, 1e-4) * max(map(abs, [whole, *of_parts]))
    is_random = abs(whole - again) > tolerance
    if np.isfinite([whole, together]).all() and abs(whole - together) > tolerance and not is_random:
        raise ArgumentError(
            f"{', '.join(names)} is no mean over samples, so the parts of a batch cannot be put "
            f"together by their sample counts: {ROWS} rows give {whole:.6g}, and two parts of them "
            f"{together:.6g} together. Return the mean over samples of a loss of each; give Keras "
            "the losses of single samples, shape (samples,), and it divides by itself, also under "
            '`reduction="sum"` and with sample weights.'
        )


def _run(trial: Callable[[Any], list[tf.Tensor]], data: Any, model: keras.Model) -> list[float]:
    if model.run_eagerly:
        return [float(tensor) for tensor in trial(data)]
    # Called once, and not by its `tf.function`, which would warn of many traces after many trials.
    traced = tf.function(trial, autograph=False).get_concrete_function(data)
    return [float(tensor) for tensor in traced(data)]


def _layers_that_add_losses(program: StepProgram) -> list[str]:
    """The user's own layers that called `add_loss` when the step was tried, in words."""
    return [
        f"`add_loss` of the layer `{layer.name}`"
        for layer in program.replica.layers()
        if getattr(layer, "_losses", None) and not _is_keras(type(layer))
    ]


def _added(program: StepProgram, data: Any) -> list[tf.Tensor]:
    """What layers add for all rows, once more, and the shares of two parts."""
    values = [(variable, tf.identity(variable.value)) for variable in program.model.variables]

    def of_rows(part: slice) -> tf.Tensor:
        with keras.StatelessScope(state_mapping=values, collect_losses=True) as scope:
            program.forward(rows_of(data[0], part), training=False)
        return tf.add_n([tf.reduce_sum(tf.cast(loss, tf.float32)) for loss in scope.losses])

    parts = {FIRST_ROWS: slice(None, FIRST_ROWS), ROWS - FIRST_ROWS: slice(FIRST_ROWS, None)}
    shares = [of_rows(part) * (count / ROWS) for count, part in parts.items()]
    return [of_rows(slice(None)), of_rows(slice(None)), *shares]


def _own_losses(program: StepProgram) -> list[str]:
    """Where the user's own code computes a loss, in words."""
    hooks, model = program.hooks, program.model
    if hooks.has_own_compute_loss:
        return ["`compute_loss` of the trainer"]
    if not _is_keras(model.compute_loss):
        return ["`compute_loss` of the model"]
    compiled = getattr(model, "_compile_loss", None)
    singles = [] if compiled is None or not compiled.built else compiled._flat_losses
    return [
        f"`loss` `{getattr(one.loss, 'name', one.loss)}`"
        for one in singles
        if not _is_keras(getattr(one.loss, "fn", type(one.loss)))
    ]


def _is_keras(definition: Any) -> bool:
    return getattr(definition, "__module__", "").partition(".")[0] == "keras"


def _in_parts(program: StepProgram, losses: LossParts, data: Any) -> list[tf.Tensor]:
    """The loss of all rows, once more, and the shares of two parts, as of two ranks."""
    values = [(variable, tf.identity(variable.value)) for variable in program.model.variables]

    def batch_of(count: int) -> Batch:
        share = tf.constant(float(count)), tf.constant(float(ROWS))
        return Batch(data, *share, is_training=True, communicator=LocalCommunicator())

    def loss_of(part: slice) -> tf.Tensor:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(rows_of(data, part))
        return program.loss_of(x, y, rows_of(y_pred, part), sample_weight)

    everything = slice(None)
    parts = {FIRST_ROWS: slice(None, FIRST_ROWS), ROWS - FIRST_ROWS: slice(FIRST_ROWS, None)}
    with keras.StatelessScope(state_mapping=values):
        # Outputs once, and cut: a model whose rows influence each other is no fault of the loss.
        with batch_of(ROWS).entered() as batch:
            y_pred = program.forward(data[0], training=False)
            totals = losses.denominators(lambda: loss_of(everything)) if losses.measured else None
            with losses.rescaled(batch, totals):
                whole, again = loss_of(everything), loss_of(everything)
        of_parts = []
        for count, part in parts.items():
            with batch_of(count).entered() as batch, losses.rescaled(batch, totals):
                of_parts.append(loss_of(part) * (count / ROWS))
    return [whole, again, *of_parts]
