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
        loose_variables: trainable ones that belong to none of the models.
    """

    models: list[Any]
    optimizers: list[Any] = field(default_factory=list)
    loose_variables: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, model: keras.Model, holder: Any) -> Replica:
        """The trainer's model, and every model, layer and optimizer that its attributes hold."""
        owners = [model, *_values(holder, keras.Layer)]
        models = list(_once(owners))
        found = [optimizer for owner in owners for optimizer in _values(owner, keras.Optimizer)]
        optimizers = [getattr(one, "optimizer", None) for one in models]
        optimizers += [*_values(holder, keras.Optimizer), *found]
        loose = [variable for variable in _values(holder, keras.Variable) if variable.trainable]
        optimizers = list(_once(one for one in optimizers if one is not None))
        return cls(models, optimizers, list(_once(loose)))

    def add(self, optimizer: Any, variables: Iterable[Any]) -> None:
        """Remembers an optimizer that a step uses, and what it trains."""
        self.optimizers = list(_once([*self.optimizers, optimizer]))
        owned = {id(v) for model in self.models for v in model.weights}
        loose = [v for v in variables if id(v) not in owned]
        self.loose_variables = list(_once([*self.loose_variables, *loose]))

    @property
    def weights(self) -> list[Any]:
        """Weights of all models, and what else is trained."""
        owned = [weight for model in self.models for weight in model.weights]
        return list(_once([*owned, *self.loose_variables]))

    @property
    def trainable_variables(self) -> list[Any]:
        """What updates change, of all models."""
        owned = [v for model in self.models for v in model.trainable_variables]
        return list(_once([*owned, *self.loose_variables]))

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
        kept = self._frozen() | {id(variable) for variable in self.rank_states()}
        return [
            variable
            for variable in self.non_trainable_weights
            if id(variable) not in kept and keras.backend.is_float_dtype(variable.dtype)
        ]

    def touched_by_rows(self) -> list[Any]:
        """State beside weights that a row changes on its own rank; a stand-in row must not.

        What a layer computes from the rows of all ranks is none of it: there a stand-in row has no
        influence, and a rank without samples must follow the others. Neither are frozen weights,
        which a step may change (a target network), nor integers, which count calls.
        """
        followed = {
            id(variable)
            for layer in self.layers()
            if getattr(layer, "is_the_same_on_all_ranks", False)
            for variable in layer.non_trainable_weights
        }
        followed |= self._frozen()
        return [
            variable
            for variable in self.non_trainable_weights
            if id(variable) not in followed and keras.backend.is_float_dtype(variable.dtype)
        ]

    def _frozen(self) -> set[int]:
        return {id(v) for layer in self.layers() if not layer.trainable for v in layer.weights}

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
    """What an object's attributes hold of a kind, also in lists and dicts of any nesting."""
    found, waiting, seen = [], list(getattr(holder, "__dict__", {}).values()), set()
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, kind):
            found.append(value)
        elif isinstance(value, (dict, list, tuple)) and id(value) not in seen:
            seen.add(id(value))
            waiting += value.values() if isinstance(value, dict) else value
    return found
