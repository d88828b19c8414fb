"""Which models, losses and metrics are exact on several ranks; the others are refused by name.

Exactness rests on two things: losses are made of those of single samples, so that ranks can be
weighted by their sample counts, and updates go through one door, where gradients are averaged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from fittrain.comm.base import on_all_ranks
from fittrain.data.sampler import Sampler
from fittrain.errors import ArgumentError
from fittrain.loss_parts import LossParts

NOT_A_MEAN = (keras.losses.Dice, keras.losses.Tversky)
"""Keras losses that are a ratio of sums over the whole batch."""


def check_construction(model: Any, compile_arguments: Mapping[str, Any]) -> None:
    """Refuses what is no model, and a compile that is only half given.

    Raises:
        ArgumentError: naming what to change.
    """
    if not isinstance(model, keras.Model) and not callable(model):
        raise ArgumentError(
            "`model` must be a keras.Model or a function that returns one. "
            f"Received: {type(model).__name__}."
        )
    given = {name for name, value in compile_arguments.items() if value is not None}
    if given and not {"optimizer", "loss"} <= given:
        received = ", ".join(f"{name}={compile_arguments[name]!r}" for name in compile_arguments)
        raise ArgumentError(
            "`optimizer`, `loss` and `metrics` compile the model: give optimizer and loss, "
            f"or none of them with a compiled model. Received: {received}."
        )


def check_model(model: Any) -> None:
    """Refuses what is not a compiled Keras model with losses that can be averaged.

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
    for loss in keras.tree.flatten(model.loss):
        check_loss(loss)


def check_loss(loss: Any) -> None:
    """Refuses losses that are not made of those of single samples.

    Raises:
        ArgumentError: naming the loss and what to use.
    """
    resolved = keras.losses.get(loss) if isinstance(loss, str) else loss
    name = getattr(resolved, "name", getattr(resolved, "__name__", str(resolved)))
    axis = getattr(resolved, "axis", None)
    samples_apart = axis is not None and 0 not in np.atleast_1d(axis)
    is_function = not isinstance(resolved, keras.losses.Loss)
    is_ratio = isinstance(resolved, NOT_A_MEAN) or (is_function and name in ("dice", "tversky"))
    if is_ratio and not samples_apart:
        raise ArgumentError(
            "`loss` must be made of the losses of single samples, so that ranks can be put "
            f"together by their sample counts. Received: {name}, a ratio of sums over the whole "
            "batch. Give it `axis` without 0, such as axis=(1, 2, 3), to take it sample by sample."
        )


def check_parts(losses: LossParts, size: int, accumulate_steps: int) -> None:
    """Refuses losses whose parts cannot be put together, where there are several parts.

    Raises:
        ArgumentError: naming what to change.
    """
    if losses.has_loose and size * accumulate_steps > 1:
        raise ArgumentError(
            "`compute_loss`, or a loss inside another one, is a sum, or a mean over valid steps or "
            "weights and not over samples, so the parts of a batch cannot be put together by their "
            "sample counts. Give it to `compile` as a loss of its own, with `loss_weights`."
        )
    for loss in keras.tree.flatten(losses.model.loss):
        if isinstance(loss, keras.losses.Circle) and size * accumulate_steps > 1:
            raise ArgumentError(
                f"`loss` compares the samples of a batch with each other, and a batch of {size} "
                f"rank(s) x {accumulate_steps} micro-batch(es) comes in parts. Received: "
                f"{loss.name}. Train with it on one rank, with accumulate_steps=1."
            )


def check_optimizer(optimizer: Any) -> None:
    """Refuses optimizers that would not do the same update on any number of ranks.

    Raises:
        ArgumentError: naming what to change.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if inner.gradient_accumulation_steps:
        raise ArgumentError(
            f"`{type(inner).__name__}(gradient_accumulation_steps="
            f"{inner.gradient_accumulation_steps})` gives all batches the same weight and loses "
            "the last ones. Use `Trainer(accumulate_steps=...)`: it divides each update's batch."
        )


def check_trainable(model: keras.Model) -> None:
    """Refuses weights that became trainable after the optimizer was built.

    Raises:
        ArgumentError: naming the first of them.
    """
    inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    known = inner._trainable_variables_indices
    unknown = [v for v in model.trainable_variables if inner._var_key(v) not in known]
    if unknown:
        raise ArgumentError(
            f"`{unknown[0].path}` became trainable after the optimizer was built for "
            f"{len(known)} variables. Compile the model again, as Keras asks for: "
            "`trainer.model.compile(optimizer=..., loss=...)`."
        )


def check_static_batch(
    model: keras.Model, sampler: Sampler, accumulate_steps: int = 1, what: str = "batch_size"
) -> None:
    """Refuses data whose parts do not all have as many rows as the model's inputs fix.

    Args:
        model: a built model; one that takes any number of rows is not looked at.
        sampler: how the data is dealt out.
        accumulate_steps: micro-batches of each part.
        what: the argument that says how large a batch is.

    Raises:
        ArgumentError: on all ranks, with the numbers.
    """
    fixed = {tensor.shape[0] for tensor in getattr(model, "inputs", None) or []} - {None}
    if not fixed:
        return
    last = sampler.length - (sampler.updates - 1) * sampler.batch_size
    totals = {min(sampler.batch_size, sampler.length), min(last, sampler.batch_size)}
    found = {rows for total in totals for rows in _parts(total, sampler.size, accumulate_steps)}
    if found != fixed:
        raise on_all_ranks(
            ArgumentError(
                f"`model` takes exactly {sorted(fixed)} rows, and `{what}`={sampler.batch_size} of "
                f"{sampler.length} samples on {sampler.size} rank(s) with {accumulate_steps} "
                f"micro-batch(es) gives parts of {sorted(found)}. Use a batch of as many rows for "
                "each rank and micro-batch, and drop_remainder=True where the last does not fill."
            )
        )


def _parts(total: int, size: int, accumulate_steps: int) -> Iterator[int]:
    """Rows of every micro-batch of every rank; at least 1, since a row stands in for none."""
    pieces = min(accumulate_steps, max(1, -(-total // size)))
    for rank in range(size):
        rows = total * (rank + 1) // size - total * rank // size
        for piece in range(pieces):
            yield max(1, rows * (piece + 1) // pieces - rows * piece // pieces)
