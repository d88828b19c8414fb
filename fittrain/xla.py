"""XLA around the exchange: forward and backward pass in one compiled piece, the update in another.

The exchange between ranks is no operation that XLA knows, so it stays between the pieces.

Synopsis::

    xla = Xla(replica, StepConfig(jit_compile=True), has_own_step=False)
    loss, gradients = xla.compiled(forward_backward)(batch)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fittrain.config import StepConfig
from fittrain.replica import Replica

logger = logging.getLogger(__name__)


class Xla:
    """Whether and how functions of a step are compiled.

    Args:
        replica: the models.
        config: whether it is asked for.
        has_own_step: whether updates are made by a step that is not fittrain's.

    Attributes:
        reason_against: why nothing is compiled although it was asked for; "" otherwise.
    """

    def __init__(self, replica: Replica, config: StepConfig, *, has_own_step: bool) -> None:
        self._is_wanted = config.jit_compile
        self._replica = replica
        self._has_own_step = has_own_step

    @property
    def reason_against(self) -> str:
        """Why XLA cannot compile these steps, in words; "" where it can."""
        if self._has_own_step:
            return "`train_step` is overridden, and may exchange gradients in between"
        if self._replica.models[0].run_eagerly:
            return "the model runs eagerly"
        for layer in self._replica.layers():
            if getattr(layer, "is_the_same_on_all_ranks", False):
                return f"the layer `{layer.name}` talks to other ranks"
        return ""

    def announce(self) -> None:
        """Says why what was asked for is not done."""
        if self._is_wanted and self.reason_against:
            logger.warning("`jit_compile` is switched off: %s", self.reason_against)
        if self._replica.models[0].jit_compile and not self._is_wanted:
            logger.info(
                "the model's own jit_compile has no effect: Trainer(jit_compile=True) asks for XLA"
            )

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as one compiled piece, or as it is."""
        if not self._is_wanted or self.reason_against:
            return function
        piece: Callable[..., Any] = tf.function(function, jit_compile=True, autograph=False)
        return piece
