"""From what the user gave to a compiled model: precision, compile, clipping.

Synopsis::

    config = StepConfig(precision="mixed_float16")
    recipe = Recipe(build, {"optimizer": "adam", "loss": "mse"}, config)
    model = recipe.make(communicator)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from fittrain.comm.base import Communicator
from fittrain.config import StepConfig
from fittrain.errors import ArgumentError
from fittrain.supported import check_model


@dataclass(frozen=True)
class Recipe:
    """How a trainer's model is made.

    Args:
        given: a model, or a function that returns one.
        compile_arguments: for Keras's `compile`; without a loss the model is compiled already.
        config: its precision and clipping.
    """

    given: keras.Model | Callable[[], keras.Model]
    compile_arguments: Mapping[str, Any]
    config: StepConfig

    def make(self, communicator: Communicator) -> keras.Model:
        """The compiled model, not necessarily built.

        Raises:
            ArgumentError: if it is none, or does not fit the configuration.
        """
        with communicator.scope(), _precision(self.config.precision):
            model: Any = self.given
            if not isinstance(model, keras.Model):
                model = self.given()
            elif self.config.precision is not None:
                _check_precision(model, self.config.precision)
            if isinstance(model, keras.Model) and self.compile_arguments["loss"] is not None:
                # The exchange between ranks does not run inside XLA.
                model.compile(**self.compile_arguments, jit_compile=False)
        check_model(model)
        if self.config.clip_norm is not None:
            _clip(model.optimizer, self.config.clip_norm)
        return model


@contextlib.contextmanager
def _precision(precision: str | None) -> Iterator[None]:
    """Layers made inside compute in this precision."""
    before = keras.config.dtype_policy()
    if precision is not None:
        keras.config.set_dtype_policy(precision)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _check_precision(model: keras.Model, precision: str) -> None:
    found = {layer.dtype_policy.name for layer in model._flatten_layers() if layer.weights}
    if found - {precision}:
        raise ArgumentError(
            f"`precision`={precision!r} decides how layers are made, and this model's are made "
            f"already, in {', '.join(sorted(found))}. Give Trainer a function that builds the "
            f"model, or call keras.config.set_dtype_policy({precision!r}) before building it."
        )


def _clip(optimizer: Any, clip_norm: float) -> None:
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    own = {
        name: getattr(inner, name)
        for name in ("clipnorm", "clipvalue", "global_clipnorm")
        if getattr(inner, name) not in (None, clip_norm)
    }
    if own:
        raise ArgumentError(
            f"`clip_norm`={clip_norm} and the optimizer's own {own} both clip. Give one of them."
        )
    inner.global_clipnorm = float(clip_norm)
