"""What a rank's loss is a part of: by which number the loss of the whole batch is divided.

Ranks and micro-batches are put together by their sample counts. That is exact for a loss that is a
mean over samples. Other losses of Keras divide by something else: by the valid steps under a mask,
by the sum of the sample weights, or by nothing. Their values are rescaled such that the mean by
counts is the loss of the whole batch. For a loss S_i / D_i of part i with n_i of N samples::

    mean by counts = sum_i (n_i / N) f_i S_i / D_i,    f_i = (D_i / sum_j D_j) (N / n_i)

which is sum_i S_i / sum_i D_i. A plain sum has D_i = 1 over a sum of 1, so f_i = N / n_i.

Synopsis::

    parts = inspect(model, compute_loss)             # while the start is tried out
    totals = parts.denominators(compute_loss)        # in the graph, of all rows of this rank
    with parts.rescaled(batch, summed_over_ranks):
        loss = compute_loss()
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from fittrain.batch import Batch
from fittrain.errors import ArgumentError

MEAN, SUM, MEASURED = "mean", "sum", "measured"
MEAN_REDUCTIONS = ("sum_over_batch_size", "mean")

ComputeLoss = Callable[[], Any]


@dataclass(frozen=True)
class Reduction:
    """How one loss was reduced.

    Args:
        kind: "mean" over samples, "sum", or "measured" where `denominator` says over what.
        denominator: what the sum was divided by, a scalar; None unless measured.
    """

    kind: str
    denominator: tf.Tensor | None = None


@dataclass
class LossParts:
    """How the compiled losses of a model are reduced, for data of one structure.

    Args:
        model: a compiled model whose losses are built.
        kinds: "mean", "sum" or "measured" for each single loss; empty where all are means.
        has_loose: whether something other than a compiled loss is no mean over samples: a loss
            that `compute_loss` calls by itself, or one inside another. It cannot be rescaled.
    """

    model: keras.Model
    kinds: tuple[str, ...] = ()
    has_loose: bool = False

    @property
    def measured(self) -> list[int]:
        """Positions of the losses whose denominators must be added up over ranks."""
        return [index for index, kind in enumerate(self.kinds) if kind == MEASURED]

    def denominators(self, compute_loss: ComputeLoss) -> tf.Tensor:
        """In the graph: denominators of the measured losses, shape (measured,), no state changed.

        Args:
            compute_loss: forward pass and loss. Only what the denominators need of it is computed,
                since nothing else of the graph is used.
        """
        found: dict[int, Reduction] = {}
        # Regularisers ask the scope, and not the variable, for its value.
        values = [(v, tf.identity(v.value)) for v in self.model.weights if v.regularizer]
        scope = keras.StatelessScope(state_mapping=values)
        with scope, _wrapped(self.model, lambda i, loss: _kept(i, loss, found)):
            compute_loss()
        return tf.stack([_float(found[index].denominator) for index in self.measured])

    @contextlib.contextmanager
    def rescaled(self, batch: Batch, totals: tf.Tensor | None) -> Iterator[None]:
        """Losses computed inside are rescaled to be parts of the whole batch's.

        Args:
            batch: the rows they are computed from.
            totals: the measured denominators over all parts of the update.
        """
        if all(kind == MEAN for kind in self.kinds):
            yield
            return
        samples = tf.math.divide_no_nan(batch.total, batch.count)
        position = {index: place for place, index in enumerate(self.measured)}

        def wrap(index: int, loss: Any) -> Any:
            def call(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
                with _recorded() as reductions:
                    value = loss(y_true, y_pred, sample_weight)
                return value * tf.cast(factor(index, reductions), value.dtype)

            return call

        def factor(index: int, reductions: list[Reduction]) -> tf.Tensor:
            kind = self.kinds[index]
            if kind == SUM:
                return samples
            if kind == MEAN or totals is None:
                return tf.constant(1.0)
            own = _float(reductions[-1].denominator)
            return tf.math.divide_no_nan(own, totals[position[index]]) * samples

        with _wrapped(self.model, wrap):
            yield


def inspect(model: keras.Model, compute_loss: ComputeLoss) -> LossParts:
    """How each loss of a model is reduced; runs `compute_loss`, once where all are means.

    Raises:
        ArgumentError: if a loss is not reduced to one number.
    """
    with _recorded() as everything:
        compute_loss()
    if all(reduction.kind == MEAN for reduction in everything):
        return LossParts(model)
    # Only now the compiled losses are surely built, and can be told from others.
    found: dict[int, Reduction] = {}
    with _recorded() as everything, _wrapped(model, lambda i, loss: _kept(i, loss, found)):
        compute_loss()
    kinds = tuple(found[index].kind for index in sorted(found))
    not_means = sum(reduction.kind != MEAN for reduction in everything)
    return LossParts(model, kinds, not_means > sum(kind != MEAN for kind in kinds))


def _kept(index: int, loss: Any, found: dict[int, Reduction]) -> Any:
    """The loss, which notes how it was reduced."""

    def call(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        with _recorded() as reductions:
            value = loss(y_true, y_pred, sample_weight)
        # A loss that reduces by itself is taken to be a mean over samples.
        found[index] = reductions[-1] if reductions else Reduction(MEAN)
        return value

    return call


@contextlib.contextmanager
def _wrapped(model: keras.Model, wrap: Callable[[int, Any], Any]) -> Iterator[None]:
    """Puts something around each compiled loss."""
    compiled = getattr(model, "_compile_loss", None)
    if compiled is None or not compiled.built:
        yield
        return
    originals = list(compiled._flat_losses)
    compiled._flat_losses[:] = [
        one._replace(loss=wrap(index, one.loss)) for index, one in enumerate(originals)
    ]
    try:
        yield
    finally:
        compiled._flat_losses[:] = originals


@contextlib.contextmanager
def _recorded() -> Iterator[list[Reduction]]:
    """Notes every reduction that Keras's losses do meanwhile."""
    # Keras tells nobody what it divided by; all its losses go through this one function.
    module: Any = importlib.import_module("keras.src.losses.loss")
    original = module.reduce_weighted_values
    found: list[Reduction] = []

    def reduce_weighted_values(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: str | None = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        result = original(values, sample_weight, mask, reduction, dtype)
        found.append(_reduction(values, sample_weight, mask, reduction))
        return result

    module.reduce_weighted_values = reduce_weighted_values
    try:
        yield found
    finally:
        module.reduce_weighted_values = original


def _reduction(values: Any, sample_weight: Any, mask: Any, reduction: str | None) -> Reduction:
    if reduction in (None, "none"):
        raise ArgumentError(
            "`loss` must be reduced to one number. Received: reduction='none'. "
            "Use 'sum_over_batch_size', or 'sum'."
        )
    if len(values.shape) == 0:
        return Reduction(MEAN)
    if reduction == "sum":
        return Reduction(SUM)
    if reduction in MEAN_REDUCTIONS:
        return Reduction(MEAN) if mask is None else Reduction(MEASURED, tf.reduce_sum(_float(mask)))
    if sample_weight is None:
        return Reduction(MEAN) if mask is None else Reduction(MEASURED, tf.reduce_sum(_float(mask)))
    weights = _float(sample_weight)
    if mask is not None:
        squeeze = importlib.import_module("keras.src.losses.loss").squeeze_or_expand_to_same_rank
        valid, weights = squeeze(_float(mask), weights)
        weights = weights * valid
    return Reduction(MEASURED, tf.reduce_sum(weights))


def _float(value: Any) -> tf.Tensor:
    return tf.cast(value, tf.float32)
