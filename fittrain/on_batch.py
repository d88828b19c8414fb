"""`train_on_batch` and its like: one batch, handed over by the user's own loop.

Every rank passes the whole batch, and computes its part of it. What ranks must have in common is
compared in full when a batch has a new structure, and otherwise in one small exchange.

Synopsis::

    for x, y in batches:
        loss = trainer.train_on_batch(x, y)          # one update, the same loss on all ranks
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras

from fittrain import learning_rate
from fittrain.config import FitConfig
from fittrain.data.arrays import ArraySource
from fittrain.data.class_weight import describe_class_weight
from fittrain.errors import ArgumentError
from fittrain.loop import Loop
from fittrain.preparation import Preparation
from fittrain.rate_control import LearningRateControl


@dataclass
class _Prepared:
    """What the batches of one structure need, made by the first of them."""

    loop: Loop
    control: LearningRateControl | None


class BatchCalls(Preparation):
    """Keras's calls for single batches, for all ranks together."""

    _prepared: dict[str, _Prepared]

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Mapping[int, float] | None = None,
        return_dict: bool = False,
    ) -> Any:
        """Collective: one update from one batch, which every rank passes whole.

        A `Warmup` is followed where it counts updates and does not scale with the batch, neither of
        which a single batch can tell.

        Args:
            x: input arrays of the global batch, shape (samples, ...), on every rank.
            y: target arrays, like `x`.
            sample_weight: weight of each sample, or of each sample for each output.
            class_weight: weight of each class of the targets, 1 for those left out.
            return_dict: whether to return a dict instead of Keras's list.

        Returns:
            Loss and metrics of this batch alone, the same on all ranks: a dict, or a list in
            Keras's order, or a float where there is only the loss.

        Raises:
            ArgumentError: on all ranks, if an argument cannot work on any.
            RankMismatchError: if ranks were given different things.

        Example:
            >>> import fittrain, numpy as np
            >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
            >>> trainer = fittrain.Trainer(model, optimizer="sgd", loss="mse", backend="local")
            >>> losses = [trainer.train_on_batch(np.ones((4, 1)), np.ones((4, 1))) for _ in "ab"]
            >>> losses[1] < losses[0]
            True
        """
        with self.communicator.progress.within("Trainer.train_on_batch"):
            source, prepared = self._batch("train", (x, y, sample_weight), class_weight)
            with self.session.supervisor.guard(), learning_rate.governing(prepared.control):
                values = prepared.loop.on_batch("train", source)
        return values if return_dict else self.model._flatten_metrics_in_order(values)

    def test_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False
    ) -> Any:
        """Collective: loss and metrics of one batch, which every rank passes whole.

        Args:
            x: input arrays of the global batch, shape (samples, ...), on every rank.
            y: target arrays, like `x`.
            sample_weight: weight of each sample, or of each sample for each output.
            return_dict: whether to return a dict instead of Keras's list.

        Returns:
            As `train_on_batch`.

        Raises:
            ArgumentError: on all ranks, if an argument cannot work on any.
            RankMismatchError: if ranks were given different things.
        """
        with self.communicator.progress.within("Trainer.test_on_batch"):
            source, prepared = self._batch("evaluate", (x, y, sample_weight))
            with self.session.supervisor.guard():
                values = prepared.loop.on_batch("evaluate", source)
        return values if return_dict else self.model._flatten_metrics_in_order(values)

    def predict_on_batch(self, x: Any) -> Any:
        """Collective: the model's outputs for one batch, which every rank passes whole.

        Args:
            x: input arrays of the global batch, shape (samples, ...), on every rank.

        Returns:
            NumPy arrays of shape (samples, ...) in the nesting of the outputs, on every rank.

        Raises:
            ArgumentError: on all ranks, if an argument cannot work on any.
            RankMismatchError: if ranks were given different things.
        """
        with self.communicator.progress.within("Trainer.predict_on_batch"):
            source, prepared = self._batch("predict", (x,))
            with self.session.supervisor.guard():
                loop = prepared.loop
                parts = loop.predict_parts(source, source.length + self.communicator.size)
                return loop.predict(source, parts, keras.callbacks.CallbackList())

    def _batch(
        self, step: str, data: tuple[Any, ...], class_weight: Any = None
    ) -> tuple[ArraySource, _Prepared]:
        """Collective: the checked batch, the same on all ranks, and what its step needs."""
        communicator = self.communicator
        error: Exception | None = None
        own: dict[str, Any] = {}
        key = ""
        try:
            source = ArraySource(*data).weigh_classes(class_weight)
            own = {**source.describe(), "class_weight": describe_class_weight(class_weight)}
            key = f"{step} {source.describe_rows()}"
        except Exception as caught:  # noqa: BLE001 - handed to every rank below
            error = caught
        found = self._prepared_for(key)
        everyone = communicator.gather((error is None, found is not None, own))
        if not all(is_right for is_right, _, _ in everyone):
            communicator.raise_together(error)
        if any(theirs != own for _, _, theirs in everyone):
            communicator.agree(own)
        if found is None or not all(is_ready for _, is_ready, _ in everyone):
            found = self._prepared[key] = self._prepare_batch(step, source, own)
        return source, found

    def _prepared_for(self, key: str) -> _Prepared | None:
        """What an earlier batch like this has made, unless the model was compiled anew since."""
        program = self._program
        known = self.__dict__.setdefault("_prepared", {})
        if program is None or not program.is_current():
            known.clear()
        found: _Prepared | None = known.get(key)
        return found if found is not None and found.loop.program is program else None

    def _prepare_batch(self, step: str, source: ArraySource, numbers: dict[str, Any]) -> _Prepared:
        loop = self._prepare([source], {**numbers, "step": step}, with_loss=step != "predict")
        control = None
        if step == "train":
            with self.communicator.together():
                self._check_warmup_by_updates()
            control = self._start_learning_rate(FitConfig(batch_size=source.length), 1)
        return _Prepared(loop, control)

    def _check_warmup_by_updates(self) -> None:
        warmup = self._warmup
        if warmup is not None and (warmup.steps is None or warmup.scaling is not None):
            raise ArgumentError(
                "`train_on_batch` knows neither the updates of an epoch nor the batch size that "
                "the next call has. It can follow Warmup(steps=..., scaling=None), which needs "
                f"neither. Received: steps={warmup.steps!r}, scaling={warmup.scaling!r}."
            )
