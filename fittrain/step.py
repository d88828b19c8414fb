"""The compiled programs: several updates in one call, evaluation, prediction.

Owns every `tf.function` around the model and the only `GradientTape`. A call gets a block: the rows
of several consecutive updates, one after the other, and how many rows belong to each. The loop over
them runs inside the graph, so the price of a call is paid once a block, not once an update, and one
trace serves every block length and batch size.

Synopsis::

    program = StepProgram(replica, communicator, hooks, StepConfig())
    outcome = program.train(block)        # outcome.steps updates were applied
    state, _ = program.board.merge(outcome.state, communicator)
    logs = program.board.results(state)
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from fittrain.batch import Batch, required
from fittrain.block import Block, data_key, piece_of, rows_of, spec_of, tensors_of
from fittrain.comm.base import Communicator, on_all_ranks
from fittrain.config import StepConfig
from fittrain.door import Door
from fittrain.errors import ArgumentError
from fittrain.interception import intercepted
from fittrain.loss_parts import LossParts
from fittrain.metrics import MetricBoard
from fittrain.own_steps import OwnSteps
from fittrain.rate_control import rate_source
from fittrain.replica import Replica
from fittrain.xla import Xla


class Hooks(Protocol):
    """What a `Trainer` subclass may override."""

    @property
    def has_own_compute_loss(self) -> bool:
        """Whether it overrides the loss."""

    @property
    def has_own_train_step(self) -> bool:
        """Whether it overrides the step."""

    def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> tf.Tensor:
        """Mean loss of a batch."""

    def train_step(self, batch: Any) -> tf.Tensor:
        """One update from one batch; returns its mean loss."""


Program = Callable[..., Any]


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
        replica: the models and optimizers, the trainer's own compiled model first.
        communicator: how gradients are exchanged.
        hooks: the trainer, whose `compute_loss` and `train_step` are used.
        config: how an update is made.

    Attributes:
        losses: how the losses are reduced, by `data_key` of the data.
        tried: `data_key` of what the steps were tried with, and whether a loss was computed.
    """

    def __init__(
        self, replica: Replica, communicator: Communicator, hooks: Hooks, config: StepConfig
    ) -> None:
        self.replica = replica
        self.model = replica.models[0]
        self.communicator = communicator
        self.hooks = hooks
        self.config = config
        self.board = MetricBoard(self.model)
        self.own_steps = OwnSteps(self.model, self.board)
        self.xla = Xla(replica, config, has_own_step=self.has_own_step)
        self.door = Door(communicator, replica, config, self.xla)
        self.losses: dict[str, LossParts] = {}
        self.tried: set[tuple[str, bool]] = set()
        self._takes_training = "training" in inspect.signature(self.model.call).parameters
        self._compiled: dict[str, Program] = {}
        self._traced_from = _traced_from(replica)

    def is_current(self) -> bool:
        """Whether the models still are what this program was made for: compile and weights."""
        now = _traced_from(self.replica)
        return len(now) == len(self._traced_from) and all(
            old is new for old, new in zip(self._traced_from, now, strict=True)
        )

    def train(self, block: Block) -> Outcome:
        """Collective: one update for each batch of the block."""
        with self.communicator.progress.enter("update"):
            return self._call("train", block)

    def evaluate(self, block: Block) -> Outcome:
        """Loss and metrics of each batch of the block; collective where a loss is measured."""
        with self.communicator.progress.enter("validation"):
            return self._call("evaluate", block)

    def predict(self, data: tuple[Any, ...]) -> Any:
        """The model's outputs for one batch, on this rank alone, as NumPy arrays."""
        own = self.own_steps.get("predict")
        outputs = self._run(
            "predict",
            own or (lambda rows: self.forward(rows[0], training=False)),
            [spec_of(data)],
            tensors_of(data),
        )
        return keras.tree.map_structure(lambda tensor: tensor.numpy(), outputs)

    @property
    def has_own_step(self) -> bool:
        """Whether updates are made by a step that is not fittrain's."""
        return self.hooks.has_own_train_step or self.own_steps.get("train") is not None

    def settle(self) -> None:
        """Takes the models as they are now for what this program is made for."""
        self._traced_from = _traced_from(self.replica)

    def try_out(self, batch: Batch) -> None:
        """Runs a step that is not fittrain's, to build and to meet its optimizers."""
        with self.door.trial(), self.door.update(tf.constant(0.0)), self._inside(batch, None):
            _scalar(self.hooks.train_step(batch.data), "train_step")
            self._check_is_applied()

    def forward(self, x: Any, *, training: bool) -> Any:
        """In the graph: the model's output."""
        return self.model(x, training=training) if self._takes_training else self.model(x)

    def train_step(self, batch: Any) -> tf.Tensor:
        """In the graph: forward, loss, gradients, exchange, update; returns the mean loss."""
        own = self.own_steps.get("train")
        if own is not None:
            return self.own_steps.run("train", batch)
        loss, gradients = self.xla.compiled(self._forward_backward)(batch)
        self.apply_gradients(gradients, self.model.trainable_variables)
        return loss

    def _forward_backward(self, batch: Any) -> tuple[tf.Tensor, list[Any]]:
        """In the graph: loss, metrics and gradients of one rank's batch."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        with tf.GradientTape() as tape:
            y_pred = self.forward(x, training=True)
            loss = self.loss_of(x, y, y_pred, sample_weight)
            scaled = self.model.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.model.trainable_variables)
        self.update_metrics(x, y, y_pred, sample_weight)
        return loss, gradients

    def apply_gradients(
        self, gradients: Sequence[Any], variables: Sequence[Any], optimizer: Any = None
    ) -> None:
        """Collective, in the graph: averages gradients over all samples of all ranks, applies them.

        The control word travels along, so that a stop asked for on any rank holds for all.
        """
        self.door.apply_gradients(
            list(gradients), list(variables), optimizer or self.model.optimizer
        )

    def update_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> None:
        """In the graph: counts a batch in the compiled metrics."""
        batch = required("update_metrics")
        if self.own_steps.has_own_metrics:
            name = "train" if batch.is_training else "evaluate"
            self.own_steps.compute_metrics(name, x, y, y_pred, sample_weight)
        else:
            self.model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    def _call(self, name: str, block: Block) -> Outcome:
        vectors = [block.rows, block.counts, block.totals, block.pieces]
        # Only a rank whose part may be empty pays for keeping what the stand-in row must not touch.
        steps, stop, state = self._run(
            f"{name}, some parts empty" if block.has_empty else name,
            self._loop(name, self.losses.get(data_key(block.data)), block.has_empty),
            [spec_of(block.data), *(tf.TensorSpec([None], tf.int32) for _ in vectors)],
            tensors_of(block.data),
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

    def _loop(self, name: str, losses: LossParts | None, has_empty: bool) -> Callable[..., Any]:
        """The graph of a call: each batch of a block, until one asks to stop."""

        def run(
            data: Any, rows: tf.Tensor, counts: tf.Tensor, totals: tf.Tensor, pieces: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            offsets = tf.cumsum(rows, exclusive=True)

            def body(step: tf.Tensor, stop: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                batch = Batch(
                    data=rows_of(data, offsets[step], offsets[step] + rows[step]),
                    count=tf.cast(counts[step], tf.float32),
                    total=tf.cast(totals[step], tf.float32),
                    is_training=name == "train",
                    communicator=self.communicator,
                )
                with self.door.update(stop) as update:
                    self._one_update(batch, rows[step], pieces[step], losses, has_empty)
                    return step + 1, update.stop

            steps, stop = tf.while_loop(
                lambda step, stop: tf.logical_and(step < tf.shape(rows)[0], stop <= 0.0),
                body,
                (tf.constant(0), tf.constant(0.0)),
                # More would let two updates submit the same collective at once.
                parallel_iterations=1,
            )
            with tf.control_dependencies([steps]):
                return steps, stop, self.board.state(name)

        return run

    def _one_update(
        self,
        batch: Batch,
        rows: tf.Tensor,
        pieces: tf.Tensor,
        losses: LossParts | None,
        has_empty: bool,
    ) -> None:
        denominators = None
        if losses is not None and losses.measured:
            with batch.entered():
                own = losses.denominators(lambda: self.compute_loss(batch.data))
            own = tf.math.multiply_no_nan(own, tf.cast(batch.count > 0, own.dtype))
            denominators = batch.all_reduce(own, "denominators")
        if not batch.is_training or self.config.accumulate_steps == 1:
            self._one_batch(batch, losses, denominators, has_empty)
            return
        window = self.door.open_window()

        def body(piece: tf.Tensor, *state: tf.Tensor) -> tuple[Any, ...]:
            window.state = state
            micro_batch = piece_of(batch, piece, rows, pieces)
            self._one_batch(micro_batch, losses, denominators, has_empty)
            return piece + 1, *window.state

        _, *window.state = tf.while_loop(
            lambda piece, *_: piece < pieces,
            body,
            (tf.constant(0), *window.state),
            parallel_iterations=1,
        )
        with batch.entered():
            self.door.close_window()

    def _one_batch(
        self, batch: Batch, losses: LossParts | None, denominators: Any, has_empty: bool
    ) -> None:
        touched = [*self.model.metrics_variables, *self.replica.touched_by_rows()]
        kept = [tf.identity(variable.value) for variable in touched] if has_empty else []
        with self._inside(batch, losses, denominators):
            if batch.is_training:
                loss = self.hooks.train_step(batch.data)
                self._check_is_applied()
            else:
                loss = self._evaluate_one(batch.data)
        if self.own_steps.get("train" if batch.is_training else "evaluate") is None:
            # A batch of which no row counts may give any loss, even NaN.
            loss = tf.cast(_scalar(loss, "train_step"), tf.float32)
            counted = tf.where(batch.count > 0, loss, 0.0)
            self.board.loss.update_state(counted, sample_weight=batch.count)
        if has_empty:
            for variable, old in zip(touched, kept, strict=True):
                variable.assign(tf.where(batch.count > 0, variable.value, old))

    @contextlib.contextmanager
    def _inside(
        self, batch: Batch, losses: LossParts | None, denominators: Any = None
    ) -> Iterator[None]:
        """What holds around a step: the batch, its share, losses rescaled, one door."""
        losses = losses or LossParts(self.model)
        self.door.begin_step()
        with (
            batch.entered(),
            intercepted(self.door, lambda: tf.math.divide_no_nan(batch.count, batch.total)),
            losses.rescaled(batch, denominators),
        ):
            yield

    def _check_is_applied(self) -> None:
        if not self.door.has_updated:
            raise on_all_ranks(
                ArgumentError(
                    "`train_step` must hand its gradients to `self.apply_gradients`, which "
                    "averages them over ranks. It did not; what it does to weights by itself would "
                    "train this rank alone."
                )
            )
        self.door.check_all_writes()

    def _evaluate_one(self, batch: Any) -> Any:
        if self.own_steps.get("evaluate") is not None:
            return self.own_steps.run("evaluate", batch)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        y_pred = self.forward(x, training=False)
        self.update_metrics(x, y, y_pred, sample_weight)
        return self.loss_of(x, y, y_pred, sample_weight)

    def loss_of(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> tf.Tensor:
        """The trainer's `compute_loss`, refused where it is not one number."""
        return _scalar(self.hooks.compute_loss(x, y, y_pred, sample_weight), "compute_loss")

    def compute_loss(self, batch: Any) -> Any:
        """Forward pass and loss, for what they say about the batch."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        return self.loss_of(x, y, self.forward(x, training=False), sample_weight)


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


def _traced_from(replica: Replica) -> list[Any]:
    """Objects that tracing bakes in; each `compile` makes new metrics."""
    model = replica.models[0]
    own = [model.optimizer, rate_source(model.optimizer)]
    return [*own, *model.metrics, None, *replica.trainable_variables]
