"""State that layers keep beside their weights, such as batch normalisation's moving averages.

Every rank collects it from its own samples, so it drifts apart by nature. It is averaged over
ranks, weighted by samples, before anything reads it: validation, callbacks at the end of an epoch,
saving.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from fittrain.comm.base import Communicator


def average(model: keras.Model, communicator: Communicator, weight: int) -> None:
    """Collective: gives all ranks the weighted mean of each statistic that differs between them.

    Args:
        model: a built model.
        communicator: how ranks talk.
        weight: samples that this rank has seen since the last call.
    """
    variables = statistics(model)
    if not variables:
        return
    own = np.concatenate([np.ravel(variable.numpy()).astype(np.float64) for variable in variables])
    ends = communicator.reduce(np.concatenate([own, -own]), "min")
    differs = ends[: len(own)] != -ends[len(own) :]
    summed = communicator.reduce(np.concatenate([own * weight, [weight]]))
    # What is equal everywhere stays as it is, to the last bit.
    mean = np.where(differs, summed[:-1] / max(summed[-1], 1.0), own)
    position = 0
    for variable in variables:
        size = int(np.prod(variable.shape))
        variable.assign(mean[position : position + size].reshape(variable.shape))
        position += size


def statistics(model: keras.Model) -> list[Any]:
    """Float variables that layers change by themselves: neither an optimizer nor a user does.

    Frozen weights are none of them: they must be the same on all ranks, and are compared.
    """
    layers = model._flatten_layers()
    frozen = {id(v) for layer in layers if not layer.trainable for v in layer.weights}
    kept = frozen | {id(variable) for variable in rank_states(model)}
    return [
        variable
        for variable in model.non_trainable_weights
        if id(variable) not in kept and keras.backend.is_float_dtype(variable.dtype)
    ]


def shared_variables(model: keras.Model) -> list[Any]:
    """What all ranks must hold alike: weights and optimizer state, but for `rank_states`."""
    own_states = {id(variable) for variable in rank_states(model)}
    weights = [variable for variable in model.weights if id(variable) not in own_states]
    return [*weights, *model.optimizer.variables]


def rank_states(model: keras.Model) -> list[Any]:
    """States of stateful layers, which remember the samples of their own rank."""
    return [
        variable
        for layer in model._flatten_layers()
        if getattr(layer, "stateful", False)
        for variable in layer.non_trainable_weights
    ]
