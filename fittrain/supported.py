"""Which models, losses and metrics are exact on several ranks; the others are refused by name.

Exactness rests on two things: losses are means over samples, so that ranks can be weighted by their
sample counts, and updates go through `Trainer.train_step`, where gradients are averaged.
"""

from __future__ import annotations

from typing import Any

import keras

from fittrain.errors import ArgumentError

MEAN_REDUCTIONS = ("sum_over_batch_size", "mean")
NOT_A_MEAN = (keras.losses.Dice, keras.losses.Tversky)
"""Keras losses that are a ratio of sums over the whole batch."""


def check_construction(model: Any, optimizer: Any, loss: Any, metrics: Any) -> None:
    """Refuses what is no model, and a compile that is only half given.

    Raises:
        ArgumentError: naming what to change.
    """
    if not isinstance(model, keras.Model) and not callable(model):
        raise ArgumentError(
            "`model` must be a keras.Model or a function that returns one. "
            f"Received: {type(model).__name__}."
        )
    if (optimizer is None) != (loss is None) or (metrics is not None and loss is None):
        raise ArgumentError(
            "`optimizer`, `loss` and `metrics` compile the model: give optimizer and loss, "
            "or none of the three with a compiled model. "
            f"Received: optimizer={optimizer!r}, loss={loss!r}, metrics={metrics!r}."
        )


def check_model(model: Any) -> None:
    """Refuses what is not a compiled Keras model with steps and losses that can be averaged.

    Raises:
        ArgumentError: naming what to change.
    """
    if not isinstance(model, keras.Model):
        raise ArgumentError(
            f"`model` must be, or return, a keras.Model. Received: {type(model).__name__}."
        )
    if not model.compiled:
        raise ArgumentError(
            "`model` is not compiled. Give Trainer an `optimizer` and a `loss`, "
            "or call `model.compile` first."
        )
    for method in ("train_step", "test_step", "predict_step"):
        if getattr(type(model), method).__module__.partition(".")[0] != "keras":
            raise ArgumentError(
                f"`{type(model).__name__}.{method}` would update or measure on this rank alone. "
                "Override `train_step` or `compute_loss` of a fittrain.Trainer instead."
            )
    for loss in keras.tree.flatten(model.loss):
        check_loss(loss)


def check_loss(loss: Any) -> None:
    """Refuses losses that are no mean over samples.

    Raises:
        ArgumentError: naming the loss and what to use.
    """
    resolved = keras.losses.get(loss) if isinstance(loss, str) else loss
    name = getattr(resolved, "name", getattr(resolved, "__name__", str(resolved)))
    ratio = isinstance(resolved, NOT_A_MEAN) or name in ("dice", "tversky")
    reduction = getattr(resolved, "reduction", "sum_over_batch_size")
    if ratio or reduction not in MEAN_REDUCTIONS:
        what = f"{name}" if ratio else f"{type(resolved).__name__}(reduction={reduction!r})"
        raise ArgumentError(
            "`loss` must be reduced to the mean over samples, since ranks are weighted by "
            f"their sample counts. Received: {what}. "
            "Use a loss of single samples with reduction='sum_over_batch_size'."
        )


def check_masks(outputs: Any, size: int) -> None:
    """Refuses masked outputs on several ranks.

    Keras divides a masked loss by the steps that are valid, whose number differs between ranks.

    Raises:
        ArgumentError: if an output carries a mask and there are several ranks.
    """
    masked = [o for o in keras.tree.flatten(outputs) if getattr(o, "_keras_mask", None) is not None]
    if masked and size > 1:
        raise ArgumentError(
            "`model` has an output with a mask, whose loss is a mean over valid steps and not over "
            "samples, so parts of a batch cannot be put together by their sample counts. Drop the "
            "mask before the output and give the valid steps as `sample_weight`."
        )
