"""The state from which all ranks start: built, checked to be alike, and rank 0's everywhere.

Models may be built late (subclassed ones see their shapes with the first data), so this happens
when the data is known and before the first update.
"""

from __future__ import annotations

import re
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from fittrain import drift
from fittrain.comm.base import Communicator
from fittrain.data.arrays import ArraySource, feed_dtype
from fittrain.runtime.seeds import derive
from fittrain.statistics import shared_variables
from fittrain.supported import check_masks

SEED_RANGE = 2**31 - 1


def build(model: keras.Model, source: ArraySource, size: int) -> None:
    """Creates every variable of model, metrics and optimizer that is missing.

    On the way it finds out, before anything is trained, whether model, data, loss and metrics fit.

    Args:
        model: a compiled model.
        source: its data.
        size: number of ranks.
    """

    def trial(data: Any) -> Any:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        y_pred = model(x)
        if y is not None or model.loss is None:
            check_masks(y_pred, size)
            model.compute_loss(x, y, y_pred, sample_weight)
            model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        return y_pred

    if model.run_eagerly:
        trial(source.map(lambda leaf: tf.convert_to_tensor(_first_row(leaf))))
        model.reset_metrics()
    else:
        # Traced and never run: variables are created, and none of them changes.
        tf.function(trial, autograph=False).get_concrete_function(source.map(_row_spec))
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def broadcast(model: keras.Model, communicator: Communicator) -> None:
    """Collective: gives every rank the weights and optimizer state of rank 0.

    Only what differs travels. Random streams (dropout, augmentation layers) are derived from rank
    0's too, but differ by rank; a stateful layer's state stays its rank's own.
    """
    variables = shared_variables(model)
    differing = drift.differing(variables, communicator)
    communicator.broadcast_variables([variables[index] for index in differing])
    for state in seed_states(model):
        seed, counter = communicator.broadcast_array(state.numpy()).tolist()
        # Rank 0 keeps the seed itself, so that one rank draws what plain Keras draws.
        own = derive(seed, "rank", communicator.rank) % SEED_RANGE if communicator.rank else seed
        state.assign(np.asarray([own, counter], state.numpy().dtype))


def seed_states(model: keras.Model) -> list[Any]:
    """The state variables of the model's random generators."""
    weights = {id(variable) for variable in model.weights}
    return [variable for variable in model.variables if id(variable) not in weights]


def describe(model: keras.Model) -> dict[str, str]:
    """What must be the same on all ranks, by name."""
    found = {"number of model weights": str(len(model.weights))}
    for index, variable in enumerate(model.weights):
        # By position: automatic names may differ where a rank has built another model before.
        found[f"model.weights[{index}]"] = f"{variable.dtype}{list(variable.shape)}"
    found["optimizer"] = _describe_optimizer(model.optimizer)
    found["number of trainable variables"] = str(len(model.trainable_variables))
    found["loss"] = _describe_loss(model.loss)
    found["metrics"] = _describe_metrics(model.metrics)
    found["state of the metrics"] = _shapes(model.metrics_variables)
    found["state of the optimizer"] = _shapes(model.optimizer.variables)
    found["number of random generators"] = str(len(seed_states(model)))
    return found


def _describe_metrics(metrics: list[Any]) -> str:
    # Keras keeps the compiled ones in a container. Automatic names end in a number that counts
    # what this process has built before.
    single = [one for metric in metrics for one in getattr(metric, "metrics", [metric])]
    return ", ".join(f"{type(m).__name__} {re.sub(r'_[0-9]+$', '', m.name)}" for m in single)


def _shapes(variables: list[Any]) -> str:
    return str([list(variable.shape) for variable in variables])


def _describe_loss(loss: Any) -> str:
    words = [
        leaf if isinstance(leaf, str) else getattr(leaf, "__name__", type(leaf).__name__)
        for leaf in keras.tree.flatten(loss)
    ]
    return ", ".join(words)


def _describe_optimizer(optimizer: Any) -> str:
    try:
        config = {k: v for k, v in optimizer.get_config().items() if k != "name"}
    except NotImplementedError:
        # A schedule without `get_config` works; only its numbers cannot be compared.
        config = {}
    return f"{type(optimizer).__name__} {config}"


def _row_spec(leaf: np.ndarray) -> tf.TensorSpec:
    return tf.TensorSpec([None, *leaf.shape[1:]], tf.as_dtype(feed_dtype(leaf.dtype)))


def _first_row(leaf: np.ndarray) -> np.ndarray:
    return leaf[:1].astype(feed_dtype(leaf.dtype), copy=False)
