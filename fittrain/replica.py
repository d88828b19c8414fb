"""What one rank holds of the training: models and optimizers, and which of their state is shared.

Synopsis::

    replica = Replica([generator, critic], [generator.optimizer, critic.optimizer])
    replica.shared_variables()      # the same on all ranks, or something is wrong
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import keras


@dataclass
class Replica:
    """Models and optimizers of one rank.

    Args:
        models: the trainer's model, then others that its steps use.
        optimizers: those that were compiled, and those that a trial of the step met.
    """

    models: list[keras.Model]
    optimizers: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, model: keras.Model, holder: Any) -> Replica:
        """The trainer's model, and every model and optimizer that its attributes hold."""
        owners = [model, *_values(holder, keras.Model)]
        models = list(_once(owners))
        found = [optimizer for owner in owners for optimizer in _values(owner, keras.Optimizer)]
        optimizers = [getattr(one, "optimizer", None) for one in models]
        optimizers += [*_values(holder, keras.Optimizer), *found]
        return cls(models, list(_once(one for one in optimizers if one is not None)))

    def add(self, optimizer: Any) -> None:
        """Remembers an optimizer that a step uses."""
        self.optimizers = list(_once([*self.optimizers, optimizer]))

    @property
    def weights(self) -> list[Any]:
        """Weights of all models."""
        return list(_once(weight for model in self.models for weight in model.weights))

    @property
    def trainable_variables(self) -> list[Any]:
        """What updates change, of all models."""
        return list(_once(v for model in self.models for v in model.trainable_variables))

    @property
    def non_trainable_weights(self) -> list[Any]:
        """Weights that no update changes, of all models."""
        return list(_once(v for model in self.models for v in model.non_trainable_weights))

    def layers(self) -> list[Any]:
        """Layers of all models, nested ones included."""
        return list(_once(layer for model in self.models for layer in model._flatten_layers()))

    def shared_variables(self) -> list[Any]:
        """What all ranks must hold alike: weights and optimizer state, but for `rank_states`."""
        own_states = {id(variable) for variable in self.rank_states()}
        weights = [variable for variable in self.weights if id(variable) not in own_states]
        return [*weights, *_once(v for one in self.optimizers for v in one.variables)]

    def statistics(self) -> list[Any]:
        """Float variables that layers change by themselves: neither an optimizer nor a user does.

        Frozen weights are none of them: they must be the same on all ranks, and are compared.
        """
        frozen = {id(v) for layer in self.layers() if not layer.trainable for v in layer.weights}
        kept = frozen | {id(variable) for variable in self.rank_states()}
        return [
            variable
            for variable in self.non_trainable_weights
            if id(variable) not in kept and keras.backend.is_float_dtype(variable.dtype)
        ]

    def touched_by_rows(self) -> list[Any]:
        """State beside weights that a row changes on its own rank; a stand-in row must not.

        What a layer computes from the rows of all ranks is none of it: there a stand-in row has no
        influence, and a rank without samples must follow the others.
        """
        followed = {
            id(variable)
            for layer in self.layers()
            if getattr(layer, "is_the_same_on_all_ranks", False)
            for variable in layer.non_trainable_weights
        }
        return [v for v in self.non_trainable_weights if id(v) not in followed]

    def rank_states(self) -> list[Any]:
        """States of stateful layers, which remember the samples of their own rank."""
        return [
            variable
            for layer in self.layers()
            if getattr(layer, "stateful", False)
            for variable in layer.non_trainable_weights
        ]

    def seed_states(self) -> list[Any]:
        """The state variables of the models' random generators."""
        weights = {id(variable) for variable in self.weights}
        variables = _once(v for model in self.models for v in model.variables)
        return [variable for variable in variables if id(variable) not in weights]


def _once(objects: Iterable[Any]) -> Iterator[Any]:
    """Each object once, in the order of its first appearance."""
    seen: dict[int, Any] = {}
    for one in objects:
        if id(one) not in seen:
            seen[id(one)] = one
            yield one


def _values(holder: Any, kind: type) -> list[Any]:
    """What an object's attributes hold of a kind, also in lists and dicts."""
    found = []
    for value in getattr(holder, "__dict__", {}).values():
        inside = value.values() if isinstance(value, dict) else value
        members = inside if isinstance(value, (dict, list, tuple)) else [value]
        found += [member for member in members if isinstance(member, kind)]
    return found
