"""The one door to the weights: gradients in, the same update on every rank out.

The order inside an update: accumulate the micro-batches of this rank, reduce over ranks, un-scale
and clip the global gradient, apply. What cannot be exact this way is refused while it is traced.

Synopsis::

    with door.update(stop) as update:
        ...                                   # the step calls door.apply_gradients
    update.stop                               # votes of all ranks
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from fittrain import fused_updates
from fittrain.batch import Batch, required
from fittrain.comm.base import Communicator, on_all_ranks
from fittrain.config import SKIPPED_UPDATES_LIMIT, StepConfig
from fittrain.errors import ArgumentError
from fittrain.rate_control import LearningRateControl
from fittrain.replica import Replica
from fittrain.update import Update, Window, current_graph
from fittrain.written import is_call, written_variables
from fittrain.xla import Xla


class Door:
    """Reduces gradients over ranks and applies them.

    Args:
        communicator: how ranks talk.
        replica: the models and optimizers; its trainable variables go through here alone.
        config: accumulation and the like.
        xla: what compiles an update of dense gradients.

    Attributes:
        stop_request: more than 0 if this rank asks to stop.
        skipped_in_a_row: updates that loss scaling has left out since the last that was applied.
        is_applying: whether an optimizer is at work.
        is_loss_scaled: whether the step under way has scaled its loss.
        learning_rate: what sets the rate of the model's optimizer before each update, if any.
        is_trial: whether steps are only tried out: optimizers are built and remembered.
    """

    def __init__(
        self, communicator: Communicator, replica: Replica, config: StepConfig, xla: Xla
    ) -> None:
        self.xla = xla
        self.communicator = communicator
        self.replica = replica
        self.config = config
        self.stop_request = tf.Variable(0.0, trainable=False, name="stop_request")
        self.skipped_in_a_row = tf.Variable(0, trainable=False, name="skipped_in_a_row")
        self.learning_rate: LearningRateControl | None = None
        self._nested_stop = tf.Variable(0.0, trainable=False, name="nested_stop")
        self.is_applying = False
        self.is_loss_scaled = False
        self.is_trial = False
        self._update = Update(tf.constant(0.0))
        self._own_writes: set[tuple[Any, str]] = set()
        self._step_graph: Any = None
        self._known: set[int] = set()

    @contextlib.contextmanager
    def trial(self) -> Iterator[None]:
        """While it lasts, steps are tried out: optimizers are built, nothing is applied."""
        self._known = {id(variable) for variable in self.replica.trainable_variables}
        self.is_trial = True
        try:
            yield
        finally:
            self.is_trial = False

    @property
    def has_updated(self) -> bool:
        """Whether the step under way has handed gradients over."""
        return self._update.applied > 0

    def begin_step(self) -> None:
        """In the graph: before the step of each batch or micro-batch."""
        self._update.applied = 0
        self._step_graph = current_graph()
        self.is_loss_scaled = False

    @contextlib.contextmanager
    def update(self, stop: tf.Tensor) -> Iterator[Update]:
        """In the graph: the scope of one update."""
        self._update = Update(stop)
        self._own_writes = set()
        yield self._update
        if self._update.has_nested:
            self._update.stop = tf.maximum(self._update.stop, self._nested_stop)
            self._nested_stop.assign(0.0)

    def open_window(self) -> Window:
        """In the graph: gathers gradients from now on, until `close_window`."""
        self._update.window = Window(self.replica.trainable_variables)
        return self._update.window

    def close_window(self) -> None:
        """Collective, in the graph: one update from all that was gathered."""
        window, self._update.window = self._update.window, None
        if window is not None and window.optimizer is not None:
            self._reduce_and_apply(
                window.weighted_gradients,
                window.touched,
                window.optimizer,
                window.weight,
                weighted=True,
            )

    def apply_gradients(
        self, gradients: Sequence[Any], variables: Sequence[Any], optimizer: Any
    ) -> None:
        """Collective, in the graph: averages over all samples of all ranks, then applies.

        Args:
            gradients: of the mean loss of this rank's batch, or None entries.
            variables: what they belong to, in the same order.
            optimizer: whose `apply` gets the means.
        """
        batch = required("apply_gradients")
        self._check(gradients, variables, optimizer, batch)
        if self.communicator.size * self.config.accumulate_steps > 1:
            _check_unclipped(gradients, variables)
        self._update.applied += 1
        if self.config.accumulate_steps > 1:
            self._check_single()
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            gradients = [_without_share(gradient, batch) for gradient in gradients]
        if self.is_trial:
            self.replica.add(optimizer, variables)
            if not optimizer.built:
                optimizer.build(list(variables))
        elif self._update.window is None:
            self._reduce_and_apply(gradients, variables, optimizer, batch.count)
        else:
            self._update.window.add(gradients, variables, batch.count, optimizer)

    def check_all_writes(self) -> None:
        """In the graph: refuses a step that changes a trainable weight around this door.

        Raises:
            ArgumentError: naming the variable.
        """
        graph = current_graph()
        if graph is None:
            return
        trainable = self.replica.trainable_variables
        if self.is_trial:
            # Variables that the trial makes are initialised in its graph.
            trainable = [v for v in trainable if id(v) in self._known]
        for variable, operation in written_variables(graph, trainable):
            # A function that the step calls may hold the door's writes inside.
            is_own = is_call(operation) and any(other is not graph for other, _ in self._own_writes)
            if (graph, operation.name) not in self._own_writes and not is_own:
                raise on_all_ranks(
                    ArgumentError(
                        f"`train_step` changes `{variable.path}` by itself, which would train "
                        "this rank alone. Hand gradients to `self.apply_gradients`, or to an "
                        "optimizer's `apply`. A weight that is no one's to train, such as a target "
                        "network's, needs `trainable=False`."
                    )
                )

    def _check(
        self, gradients: Sequence[Any], variables: Sequence[Any], optimizer: Any, batch: Batch
    ) -> None:
        if len(gradients) != len(variables):
            raise on_all_ranks(
                ArgumentError(
                    "`gradients` and `variables` must belong together, one to one. "
                    f"Received: {len(gradients)} gradients and {len(variables)} variables."
                )
            )
        if all(gradient is None for gradient in gradients):
            raise on_all_ranks(
                ArgumentError(
                    f"`gradients` are None for all {len(gradients)} variables: the loss does not "
                    "depend on any of them. Compute it while the tape records, from the "
                    "output of a model that holds them, with operations that have a gradient."
                )
            )
        if not batch.is_training:
            raise on_all_ranks(
                ArgumentError("`apply_gradients` was called in evaluation. Call it in training.")
            )
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) and not self.is_loss_scaled:
            raise on_all_ranks(
                ArgumentError(
                    "`optimizer` divides gradients by its loss scale, and the loss was not scaled. "
                    "Take gradients of `self.scale_loss(loss)` (of `optimizer.scale_loss(loss)` in "
                    "a model's own `train_step`)."
                )
            )

    def _check_single(self) -> None:
        if self._update.applied > 1:
            raise on_all_ranks(
                ArgumentError(
                    "`accumulate_steps` gathers the gradients of one update, and this `train_step` "
                    "makes several, of which later ones depend on earlier ones. "
                    "Set accumulate_steps=1 and use a smaller batch."
                )
            )
        if current_graph() is not self._step_graph:
            raise on_all_ranks(
                ArgumentError(
                    "`accumulate_steps` needs gradients from the step itself, and this "
                    "`train_step` computes them in a tf.function of its own. Call it without."
                )
            )

    def _reduce_and_apply(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        optimizer: Any,
        weight: tf.Tensor,
        *,
        weighted: bool = False,
    ) -> None:
        # The control word travels along: a stop asked for on any rank holds for all.
        means, _, (stop,) = self.communicator.weighted_mean(
            gradients,
            weight=weight,
            sums=[self.stop_request],
            name=required("apply_gradients").name_collective("gradients"),
            weighted=weighted,
            wire_dtype=self.config.wire_dtype,
        )
        self._vote(stop)
        with self._applying(variables):
            applied_before = tf.identity(optimizer.iterations.value)
            if self.learning_rate is not None and optimizer is self.replica.models[0].optimizer:
                self.learning_rate.before_apply()
            is_dense = not any(isinstance(mean, tf.IndexedSlices) for mean in means)
            apply = fused_updates.apply if self.config.fused_updates else _apply
            # XLA knows no operation that picks the rows which differ.
            compiled = self.xla.compiled if is_dense else _as_it_is
            compiled(lambda values: apply(optimizer, values, variables))(means)
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            self._count_skipped(optimizer.iterations.value > applied_before)

    def _count_skipped(self, is_applied: tf.Tensor) -> None:
        """Every rank has seen the reduced gradients and skipped alike; counts it."""
        skipped = tf.where(is_applied, 0, self.skipped_in_a_row + 1)
        self.skipped_in_a_row.assign(skipped)
        is_hopeless = tf.cast(skipped >= SKIPPED_UPDATES_LIMIT, tf.float32)
        self._vote(is_hopeless)

    def _vote(self, stop: tf.Tensor) -> None:
        if current_graph() is self._update.graph:
            self._update.stop = tf.maximum(self._update.stop, stop)
        else:
            # A tensor cannot leave the function that the step calls; a variable can.
            self._update.has_nested = True
            self._nested_stop.assign(tf.maximum(self._nested_stop, stop))

    @contextlib.contextmanager
    def _applying(self, variables: Sequence[Any]) -> Iterator[None]:
        graph = current_graph()
        before = _writers(graph, variables)
        self.is_applying = True
        try:
            yield
        finally:
            self.is_applying = False
        self._own_writes |= {(graph, name) for name in _writers(graph, variables) - before}


def _check_unclipped(gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Refuses what TensorFlow or Keras clipped: clipping is not linear, means of it are not it.

    Best effort, by the names that TensorFlow gives: nothing else tells. Not of the backward pass,
    where the model clips.
    """
    for gradient, variable in zip(gradients, variables, strict=True):
        tensor = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        scopes = tensor.op.name.split("/") if tf.is_symbolic_tensor(tensor) else []
        if "gradient_tape" not in scopes and any(s.startswith("clip_by_") for s in scopes):
            raise on_all_ranks(
                ArgumentError(
                    f"`gradients`: that of `{getattr(variable, 'path', variable.name)}` was "
                    "clipped before it was averaged, for one part of the batch alone, which gives "
                    "another update on every number of ranks. Hand over what the tape gives, and "
                    "let `Trainer(clip_norm=...)` clip, or the optimizer's `clipnorm`, `clipvalue` "
                    "or `global_clipnorm`: they see the averaged gradient."
                )
            )


def _without_share(gradient: Any, batch: Batch) -> Any:
    """Of the part's mean loss: scaling a loss takes the part's share of it (`interception`)."""
    if gradient is None:
        return None
    share = tf.math.divide_no_nan(batch.count, batch.total)

    def divided(values: tf.Tensor) -> tf.Tensor:
        return tf.math.divide_no_nan(values, tf.cast(share, values.dtype))

    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(divided(gradient.values), gradient.indices, gradient.dense_shape)
    return divided(gradient)


def _apply(optimizer: Any, means: Sequence[Any], variables: Sequence[Any]) -> None:
    optimizer.apply(means, variables)


def _as_it_is(function: Any) -> Any:
    return function


def _writers(graph: Any, variables: Sequence[Any]) -> set[str]:
    """Names of the operations of a graph that change variables."""
    if graph is None:
        return set()
    return {operation.name for _, operation in written_variables(graph, variables)}
