"""The compiled programs: several updates in one call, evaluation, prediction.

Owns every `tf.function` around the model and the only `GradientTape`. A call gets a block: the rows
of several consecutive updates, one after the other, and how many rows belong to each. The loop over
them runs inside the graph, so the price of a call is paid once a block, not once an update, and one
trace serves every block length and batch size.

Synopsis::

    program = StepProgram(model, communicator, hooks)
    outcome = program.train(block)        # outcome.steps updates were applied
    logs = program.board.results(communicator.reduce(outcome.state))
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from fittrain.batch import Batch, under_way
from fittrain.comm.base import Communicator, on_all_ranks
from fittrain.errors import ArgumentError
from fittrain.metrics import MetricBoard


class Hooks(Protocol):
    """What a `Trainer` subclass may override."""

    def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> tf.Tensor:
        """Mean loss of a batch."""

    def train_step(self, batch: Any) -> tf.Tensor:
        """One update from one batch; returns its mean loss."""


Program = Callable[..., Any]


@dataclass(frozen=True)
class Block:
    """Rows of several consecutive updates.

    Args:
        data: (x,), (x, y) or (x, y, sample_weight) in any nesting, shape (sum of rows, ...).
        rows: rows of each update, int32, shape (updates,).
        counts: rows that count in each update, int32, shape (updates,).
        totals: rows that count over all ranks, int32, shape (updates,).
    """

    data: tuple[Any, ...]
    rows: np.ndarray
    counts: np.ndarray
    totals: np.ndarray


@dataclass(frozen=True)
class Outcome:
    """What a call did.

    Args:
        steps: batches that were done; fewer than the block holds after a stop request.
        stopped: whether a rank asked to stop.
        state: this rank's metric state since the last reset, float64, shape (variables,).
    """

    steps: int
    stopped: bool
    state: np.ndarray


class StepProgram:
    """The compiled steps of one model on one communicator.

    Args:
        model: a built and compiled Keras model.
        communicator: how gradients are exchanged.
        hooks: the trainer, whose `compute_loss` and `train_step` are used.

    Attributes:
        known_data: descriptions of data that model, loss and metrics were built with.
    """

    def __init__(self, model: keras.Model, communicator: Communicator, hooks: Hooks) -> None:
        self.model = model
        self.communicator = communicator
        self.hooks = hooks
        self.board = MetricBoard(model)
        self.stop_request = tf.Variable(0.0, trainable=False, name="stop_request")
        self._takes_training = "training" in inspect.signature(model.call).parameters
        self._update = _Update(tf.constant(0.0))
        self._compiled: dict[str, Program] = {}
        self._traced_from = _traced_from(model)
        self.known_data: set[str] = set()

    def is_current(self) -> bool:
        """Whether the model still is what this program was made for: same compile, same weights."""
        now = _traced_from(self.model)
        return len(now) == len(self._traced_from) and all(
            old is new for old, new in zip(self._traced_from, now, strict=True)
        )

    def train(self, block: Block) -> Outcome:
        """Collective: one update for each batch of the block."""
        with self.communicator.progress.enter("update"):
            return self._call("train", self._train_one, block)

    def evaluate(self, block: Block) -> Outcome:
        """Loss and metrics of each batch of the block, on this rank alone."""
        return self._call("evaluate", self._evaluate_one, block)

    def predict(self, data: tuple[Any, ...]) -> Any:
        """The model's outputs for one batch, on this rank alone, as NumPy arrays."""
        outputs = self._run(
            "predict",
            lambda rows: self.forward(rows[0], training=False),
            [_spec(data)],
            _tensors(data),
        )
        return keras.tree.map_structure(lambda tensor: tensor.numpy(), outputs)

    def forward(self, x: Any, *, training: bool) -> Any:
        """In the graph: the model's output."""
        return self.model(x, training=training) if self._takes_training else self.model(x)

    def train_step(self, batch: Any) -> tf.Tensor:
        """In the graph: forward, loss, gradients, exchange, update; returns the mean loss."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        with tf.GradientTape() as tape:
            y_pred = self.forward(x, training=True)
            loss = _scalar(self.hooks.compute_loss(x, y, y_pred, sample_weight), "compute_loss")
            scaled = self.model.optimizer.scale_loss(loss)
        variables = self.model.trainable_variables
        self.apply_gradients(tape.gradient(scaled, variables), variables)
        self.update_metrics(x, y, y_pred, sample_weight)
        return loss

    def apply_gradients(
        self, gradients: Sequence[Any], variables: Sequence[Any], optimizer: Any = None
    ) -> None:
        """Collective, in the graph: averages gradients over all samples of all ranks, applies them.

        The control word travels along, so that a stop asked for on any rank holds for all.
        """
        batch = self._traced_batch()
        means, _, (stop,) = self.communicator.weighted_mean(
            gradients,
            weight=batch.count,
            sums=[self.stop_request],
            name=batch.name_collective("gradients"),
        )
        self._update.stop = tf.maximum(self._update.stop, stop)
        self._update.is_applied = True
        (optimizer or self.model.optimizer).apply(means, variables)

    def update_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> None:
        """In the graph: counts a batch in the compiled metrics."""
        self._traced_batch()
        self.model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    @property
    def batch_count(self) -> tf.Tensor:
        """In the graph: rows of the batch that count, as float32."""
        return self._traced_batch().count

    @property
    def is_training(self) -> bool:
        """In the graph: whether the batch trains."""
        return self._traced_batch().is_training

    def _traced_batch(self) -> Batch:
        batch = under_way()
        if batch is None:
            raise ArgumentError(
                "This is for `train_step` of a Trainer subclass, and was called outside of it: "
                "`apply_gradients`, `update_metrics` and `batch_count` need the batch under way."
            )
        return batch

    def _call(self, name: str, one: Callable[[Any], Any], block: Block) -> Outcome:
        has_empty = not bool(block.counts.all())
        vectors = [block.rows, block.counts, block.totals]
        # Only a rank whose part may be empty pays for keeping what the stand-in row must not touch.
        steps, stop, state = self._run(
            f"{name}, some parts empty" if has_empty else name,
            self._loop(one, is_training=name == "train", has_empty=has_empty),
            [_spec(block.data), *(tf.TensorSpec([None], tf.int32) for _ in vectors)],
            _tensors(block.data),
            *vectors,
        )
        return Outcome(int(steps), bool(stop > 0), state.numpy())

    def _run(self, name: str, function: Program, signature: list[Any], *arguments: Any) -> Any:
        """Calls the compiled function for data of this structure; kept only once it worked."""
        if self.model.run_eagerly:
            return self.communicator.run(function, *arguments)
        key = f"{name}: {signature[0]}"
        # Without AutoGraph, as in Keras: errors and their traces stay the user's own.
        program = self._compiled.get(key) or tf.function(
            function, input_signature=signature, autograph=False
        )
        result = self.communicator.run(program, *arguments)
        self._compiled[key] = program
        return result

    def _loop(
        self, one: Callable[[Any], Any], *, is_training: bool, has_empty: bool
    ) -> Callable[..., Any]:
        """The graph of a call: `one` for each batch of a block, until one asks to stop."""

        def run(
            data: Any, rows: tf.Tensor, counts: tf.Tensor, totals: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            offsets = tf.cumsum(rows, exclusive=True)

            def body(step: tf.Tensor, stop: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                first, last = offsets[step], offsets[step] + rows[step]
                batch = Batch(
                    data=keras.tree.map_structure(lambda leaf: leaf[first:last], data),
                    count=tf.cast(counts[step], tf.float32),
                    total=tf.cast(totals[step], tf.float32),
                    is_training=is_training,
                    communicator=self.communicator,
                )
                self._update = _Update(stop)
                with batch.entered():
                    self._one_batch(one, batch, has_empty)
                return step + 1, self._update.stop

            steps, stop = tf.while_loop(
                lambda step, stop: tf.logical_and(step < tf.shape(rows)[0], stop <= 0.0),
                body,
                (tf.constant(0), tf.constant(0.0)),
                # More would let two updates submit the same collective at once.
                parallel_iterations=1,
            )
            with tf.control_dependencies([steps]):
                return steps, stop, self.board.state()

        return run

    def _one_batch(self, one: Callable[[Any], Any], batch: Batch, has_empty: bool) -> None:
        touched = [*self.model.metrics_variables, *self.model.non_trainable_weights]
        kept = [tf.identity(variable.value) for variable in touched] if has_empty else []
        trackers = self.board.per_output_losses
        before = [tf.identity(variable.value) for variable in trackers]
        loss = _scalar(one(batch.data), "train_step")
        if batch.is_training and not self._update.is_applied:
            raise on_all_ranks(
                ArgumentError(
                    "`train_step` must hand its gradients to `self.apply_gradients`, which "
                    "averages them over ranks. It did not; an optimizer's own `apply` would train "
                    "this rank alone."
                )
            )
        # A batch of which no row counts may give any loss, even NaN.
        counted = tf.where(batch.count > 0, tf.cast(loss, tf.float32), 0.0)
        self.board.loss.update_state(counted, sample_weight=batch.count)
        for variable, old in zip(trackers, before, strict=True):
            # Keras counts a batch as 1 here; over ranks its parts must add up to that.
            share = tf.math.multiply_no_nan(variable.value - old, batch.count / batch.total)
            variable.assign(old + share)
        if has_empty:
            for variable, old in zip(touched, kept, strict=True):
                variable.assign(tf.where(batch.count > 0, variable.value, old))

    def _train_one(self, batch: Any) -> Any:
        return self.hooks.train_step(batch)

    def _evaluate_one(self, batch: Any) -> Any:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        y_pred = self.forward(x, training=False)
        self.update_metrics(x, y, y_pred, sample_weight)
        return self.hooks.compute_loss(x, y, y_pred, sample_weight)


@dataclass
class _Update:
    """The update being traced: the stop votes of all ranks, and whether it was applied."""

    stop: tf.Tensor
    is_applied: bool = False


def _scalar(loss: Any, method: str) -> tf.Tensor:
    """The loss, refused where it is not one number."""
    shape = getattr(loss, "shape", None)
    if shape is None or tuple(shape) != ():
        what = type(loss).__name__ + (f" of shape {tuple(shape)}" if shape is not None else "")
        raise on_all_ranks(
            ArgumentError(
                f"`{method}` must return the mean loss of the batch, a scalar tensor. "
                f"Received: {what}."
            )
        )
    return loss


def _traced_from(model: keras.Model) -> list[Any]:
    """Objects that tracing bakes in; each `compile` makes new metrics."""
    return [model.optimizer, *model.metrics, None, *model.trainable_variables]


def _spec(data: Any) -> Any:
    return keras.tree.map_structure(
        lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], tf.as_dtype(leaf.dtype)), data
    )


def _tensors(data: Any) -> Any:
    return keras.tree.map_structure(tf.convert_to_tensor, data)
