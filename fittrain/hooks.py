"""What a subclass of `Trainer` may override, and what it calls from there.

Synopsis::

    class Distilled(fittrain.Trainer):
        def compute_loss(self, x, y, y_pred, sample_weight):
            return distance(y_pred, self.teacher(x))
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import keras

from fittrain.batch import required
from fittrain.errors import ArgumentError
from fittrain.step import StepProgram


class StepHooks:
    """One update, in parts. Everything here runs while the step is traced."""

    model: keras.Model
    _program: StepProgram | None = None

    def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> Any:
        """Mean loss over the samples of a batch, a scalar; by default the compiled loss.

        Override it for a loss that compiled losses cannot express; regularisers are in
        `self.model.losses`, and `self.is_training` tells updates from validation.
        """
        model = self.model
        if "training" in inspect.signature(model.compute_loss).parameters:
            return model.compute_loss(x, y, y_pred, sample_weight, training=self.is_training)
        return model.compute_loss(x, y, y_pred, sample_weight)

    def train_step(self, batch: Any) -> Any:
        """One update from one batch of this rank; returns its mean loss, a scalar.

        Override it for full control. Gradients reach the weights through `apply_gradients` alone.
        """
        return self._running_program.train_step(batch)

    def apply_gradients(
        self, gradients: Sequence[Any], variables: Sequence[Any], optimizer: Any = None
    ) -> None:
        """Collective: averages over all samples of all ranks, then applies.

        Args:
            gradients: of the mean loss of this rank's batch, or None entries.
            variables: what they belong to, in the same order.
            optimizer: default the model's.
        """
        self._running_program.apply_gradients(gradients, variables, optimizer)

    def scale_loss(self, loss: Any, optimizer: Any = None) -> Any:
        """The loss to take gradients of: times the loss scale under `mixed_float16`.

        Args:
            loss: mean loss of a batch.
            optimizer: whose scale; default the model's.
        """
        return (optimizer or self.model.optimizer).scale_loss(loss)

    @property
    def has_own_compute_loss(self) -> bool:
        """Whether a subclass overrides `compute_loss`."""
        return type(self).compute_loss is not StepHooks.compute_loss

    @property
    def has_own_train_step(self) -> bool:
        """Whether a subclass overrides `train_step`."""
        return type(self).train_step is not StepHooks.train_step

    def update_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Counts a batch in the compiled metrics."""
        self._running_program.update_metrics(x, y, y_pred, sample_weight)

    @property
    def batch_count(self) -> Any:
        """How many rows of the batch count, a scalar tensor.

        0 on a rank that got no sample of the last batch of an epoch; its batch then holds one row
        that must not influence anything.
        """
        return required("batch_count").count

    @property
    def is_training(self) -> bool:
        """Whether the batch trains; otherwise it validates."""
        return required("is_training").is_training

    def request_stop(self) -> None:
        """Ends training after the update that is under way, on all ranks. From any thread."""
        self._running_program.door.stop_request.assign(1.0)

    @property
    def _running_program(self) -> StepProgram:
        if self._program is None:
            raise ArgumentError("Nothing is being trained: call this from inside `fit`.")
        return self._program
