"""The state from which all ranks start: checked to be alike, and rank 0's everywhere."""

from __future__ import annotations

import re
from typing import Any

import keras
import numpy as np

from fittrain import drift
from fittrain.comm.base import Communicator
from fittrain.metrics import describe_merging, single_metrics
from fittrain.replica import Replica
from fittrain.runtime.seeds import derive

SEED_RANGE = 2**31 - 1


def broadcast(replica: Replica, communicator: Communicator) -> None:
    """Collective: gives every rank the weights and optimizer state of rank 0.

    Only what differs travels. Random streams (dropout, augmentation layers) are derived from rank
    0's too, but differ by rank; a stateful layer's state stays its rank's own.
    """
    variables = replica.shared_variables()
    differing = drift.differing(variables, communicator)
    communicator.broadcast_variables([variables[index] for index in differing])
    for state in replica.seed_states():
        seed, counter = communicator.broadcast_array(state.numpy()).tolist()
        # Rank 0 keeps the seed itself, so that one rank draws what plain Keras draws.
        own = derive(seed, "rank", communicator.rank) % SEED_RANGE if communicator.rank else seed
        state.assign(np.asarray([own, counter], state.numpy().dtype))


def describe(replica: Replica) -> dict[str, str]:
    """What must be the same on all ranks, by name."""
    model = replica.models[0]
    found = {"number of models": str(len(replica.models))}
    found["number of model weights"] = str(len(replica.weights))
    for index, variable in enumerate(replica.weights):
        # By position: automatic names may differ where a rank has built another model before.
        found[f"model.weights[{index}]"] = f"{variable.dtype}{list(variable.shape)}"
    found["optimizer"] = ", ".join(_describe_optimizer(one) for one in replica.optimizers)
    found["number of trainable variables"] = str(len(replica.trainable_variables))
    found["loss"] = _describe_loss(model.loss)
    found["metrics"] = _describe_metrics(model)
    found["merge_over_ranks of the metrics"] = describe_merging(model)
    found["state of the metrics"] = _shapes(model.metrics_variables)
    found["state of the optimizer"] = _shapes([v for o in replica.optimizers for v in o.variables])
    found["number of random generators"] = str(len(replica.seed_states()))
    return found


def _describe_metrics(model: keras.Model) -> str:
    # Automatic names end in a number that counts what this process has built before.
    single = single_metrics(model)
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
        config = _without_names(optimizer.get_config())
    except NotImplementedError:
        # A schedule without `get_config` works; only its numbers cannot be compared.
        config = {}
    return f"{type(optimizer).__name__} {config}"


def _without_names(config: Any) -> Any:
    """A configuration without names, which end in a number that counts what was built before."""
    if isinstance(config, dict):
        return {key: _without_names(value) for key, value in config.items() if key != "name"}
    if isinstance(config, (list, tuple)):
        return [_without_names(value) for value in config]
    return config
