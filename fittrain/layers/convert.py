"""Swapping batch normalisation layers of a whole model for synchronised ones, and back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from fittrain.errors import ArgumentError
from fittrain.layers.batch_norm import SyncBatchNormalization

PLAIN = keras.layers.BatchNormalization
IDENTITIES: dict[Any, dict[str, Any]] = {
    # How Keras writes the two classes into the configuration of what holds them.
    PLAIN: {
        "module": "keras.layers",
        "class_name": "BatchNormalization",
        "registered_name": None,
    },
    SyncBatchNormalization: {
        "module": SyncBatchNormalization.__module__,
        "class_name": "SyncBatchNormalization",
        "registered_name": "fittrain>SyncBatchNormalization",
    },
}


def convert_batch_norm(model: keras.Model, synchronized: bool = True) -> keras.Model:
    """A copy of a model whose batch normalisation is synchronised, or plain again.

    Names, weights, `trainable` flags and shared layers stay as they are, inside nested models and
    wrappers such as `TimeDistributed` too. The copy has weights of its own and is not compiled:
    give `Trainer` an optimizer and a loss, or call `compile`.

    Args:
        model: a Sequential or functional model.
        synchronized: True: `BatchNormalization` becomes `SyncBatchNormalization`. False: the other
            way round, for a file that opens where fittrain is not installed.

    Returns:
        The converted copy.

    Raises:
        ArgumentError: if the model, or a layer that holds batch normalisation, is built by code of
            one's own, in which the layer has to be replaced; or if a class of one's own is derived
            from `BatchNormalization`.

    Example:
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.BatchNormalization()])
        >>> type(convert_batch_norm(model).layers[0]).__name__
        'SyncBatchNormalization'
    """
    if not isinstance(model, keras.Model):
        raise ArgumentError(f"`model` must be a keras.Model. Received: {type(model).__name__}.")
    for part in model._flatten_layers():
        if isinstance(part, keras.Model) and not _is_keras_own(part):
            raise _in_the_code(part)
    kinds = (PLAIN, SyncBatchNormalization)
    with _uncompiled(model):
        copy = _Copier(*kinds if synchronized else kinds[::-1]).copy(model)
    # From the outside in: setting the flag of a model sets those of its layers.
    for old, new in zip(model._flatten_layers(), copy._flatten_layers(), strict=True):
        new.trainable = old.trainable
    for old, new in zip(model.variables, copy.variables, strict=True):
        new.assign(old.value)
    return copy


class _Copier:
    """Copies layers and models from their configurations, each shared one once.

    Args:
        source: the class to replace.
        target: the class to put in its place.
    """

    def __init__(self, source: type, target: type) -> None:
        self.source, self.target = source, target
        self._copies: dict[int, Any] = {}

    def copy(self, layer: Any) -> Any:
        """The copy of a model, layer or operation."""
        if id(layer) not in self._copies:
            rebuild = self._model if isinstance(layer, keras.Model) else self._layer
            self._copies[id(layer)] = rebuild(layer)
        return self._copies[id(layer)]

    def _model(self, model: Any) -> Any:
        inputs = None
        if not isinstance(model, keras.Sequential):
            inputs = keras.tree.map_structure(_same_input, model.input)
        return keras.models.clone_model(model, inputs, clone_function=self.copy)

    def _layer(self, layer: Any) -> Any:
        config = layer.get_config()
        if type(layer) is self.source:
            return self.target.from_config(config)  # type: ignore[attr-defined]
        if _holds(layer, self.source):
            if not _is_keras_own(layer):
                raise _in_the_code(layer)
            config = _replace(config, self.source, self.target)
        return type(layer).from_config(config)


def _same_input(tensor: Any) -> Any:
    """A fresh input; left to itself, Keras names it anew."""
    config = tensor._keras_history.operation.get_config()
    return keras.layers.InputLayer(**config).output


def _holds(layer: Any, source: type) -> bool:
    """Whether a layer or operation is or holds what has to be replaced."""
    parts = layer._flatten_layers() if isinstance(layer, keras.layers.Layer) else []
    return any(
        isinstance(part, PLAIN)
        and isinstance(part, SyncBatchNormalization) == (source is SyncBatchNormalization)
        for part in parts
    )


def _replace(config: Any, source: type, target: type) -> Any:
    """A configuration with every serialised `source` in it as a `target`."""
    if isinstance(config, (list, tuple)):
        return type(config)(_replace(part, source, target) for part in config)
    if not isinstance(config, dict):
        return config
    replaced = {key: _replace(value, source, target) for key, value in config.items()}
    name = IDENTITIES[source]["class_name"]
    if replaced.get("class_name") == name and "config" in replaced:
        replaced |= IDENTITIES[target]
    return replaced


def _is_keras_own(layer: Any) -> bool:
    return type(layer).__module__.partition(".")[0] == "keras"


def _in_the_code(layer: Any) -> ArgumentError:
    return ArgumentError(
        f"`model` is or holds a {type(layer).__name__}, which code of its own builds and a "
        "conversion cannot rebuild. Use fittrain.layers.SyncBatchNormalization in that code."
    )


@contextlib.contextmanager
def _uncompiled(model: keras.Model) -> Iterator[None]:
    """Hides that models are compiled: Keras would compile the copy, with an optimizer at 0."""
    compiled = [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, keras.Model) and layer.compiled
    ]
    for layer in compiled:
        layer.compiled = False
    try:
        yield
    finally:
        for layer in compiled:
            layer.compiled = True
