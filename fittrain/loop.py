"""The order of events inside `fit`, `evaluate` and `predict`.

Synopsis::

    loop = Loop(program, supervisor, steps_per_execution="auto")
    loop.train(plan, callbacks, single_steps=SingleSteps.agree(chosen, communicator))
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import keras
import numpy as np

from fittrain import drift, statistics
from fittrain.block import Block
from fittrain.callback import Listeners, SingleSteps
from fittrain.comm.base import on_all_ranks
from fittrain.config import SKIPPED_UPDATES_LIMIT, SKIPPED_UPDATES_WARNING, FitConfig
from fittrain.data.arrays import ArraySource
from fittrain.data.feed import BlockPlanner, blocks
from fittrain.data.sampler import Sampler
from fittrain.data.split import Sets, contiguous_part
from fittrain.errors import ArgumentError, NotFiniteError
from fittrain.plan import FitPlan, evaluation_sampler
from fittrain.step import Outcome, StepProgram
from fittrain.supervise import Supervisor

Logs = dict[str, Any]

logger = logging.getLogger(__name__)


@dataclass
class Loop:
    """Runs a program over data, all ranks together; made for one call of the trainer.

    Args:
        program: the compiled steps.
        supervisor: told where training is, for error reports.
        steps_per_execution: updates in one call, or "auto".
    """

    program: StepProgram
    supervisor: Supervisor
    steps_per_execution: int | str = "auto"
    _planners: dict[str, BlockPlanner] = field(default_factory=dict)

    def train(
        self, plan: FitPlan, callbacks: keras.callbacks.CallbackList, *, single_steps: SingleSteps
    ) -> None:
        """Collective: the epochs of a `fit`.

        Args:
            plan: data and numbers.
            callbacks: of this rank.
            single_steps: whether a callback on any rank looks at single training batches, and
                whether at single validation batches.
        """
        model, config = self.program.model, plan.config
        self._planner("train", plan.source, plan.sampler, single_steps=single_steps.train)
        model.stop_training = False
        self.program.door.stop_request.assign(0.0)
        logs: Logs = {}
        callbacks.on_train_begin()
        for epoch in range(config.initial_epoch, config.epochs):
            callbacks.on_epoch_begin(epoch)
            logs = self._train_epoch(plan, epoch, callbacks, watched=single_steps.train)
            if (epoch + 1) % config.validation_freq == 0:
                logs |= self._validate(plan, callbacks, single_steps.test)
            self._check_drift(f"at the end of epoch {epoch + 1}")
            callbacks.on_epoch_end(epoch, logs)
            if self._stop_agreed():
                break
        # Where the optimizer keeps averaged weights, they become the weights now, as in Keras.
        model.optimizer.finalize_variable_values(model.trainable_weights)
        callbacks.on_train_end(logs)
        self.supervisor.position = {}

    def evaluate(
        self,
        source: ArraySource,
        config: FitConfig,
        callbacks: keras.callbacks.CallbackList,
        *,
        single_steps: bool = False,
        name: str = "",
    ) -> Logs:
        """Collective: loss and metrics over all samples, each counted once.

        Args:
            source: the data.
            config: its batch size.
            callbacks: of this rank.
            single_steps: whether a callback on any rank looks at single batches.
            name: of the data, where there are several; callbacks see it before each value's name.
        """
        communicator = self.program.communicator
        sampler = evaluation_sampler(source, config, communicator)
        planner = self._planner(f"evaluate {name}", source, sampler, single_steps=single_steps)
        self.program.board.reset()
        logs: Logs = {}
        done = 0
        callbacks.on_test_begin()
        for data, part in blocks(source, sampler, 0, planner):
            callbacks.on_test_batch_begin(done)
            started = time.perf_counter()
            outcome = self.program.evaluate(Block.of(data, part, communicator.size))
            logs = self._agree_on(outcome, time.perf_counter() - started, planner, "evaluate")
            done += outcome.steps
            callbacks.on_test_batch_end(done - 1, prefixed(name, logs))
        callbacks.on_test_end(prefixed(name, logs))
        return logs

    def evaluate_sets(
        self, sets: Sets, config: FitConfig, listeners: Listeners, trainer: Any
    ) -> dict[str, Logs]:
        """Collective: the values of each set of data, by its name.

        Args:
            sets: the data.
            config: its batch size.
            listeners: of the call.
            trainer: for its callbacks.
        """
        communicator = self.program.communicator
        batch_size = config.batch_size_global(communicator.size)
        steps = {name: -(-source.length // batch_size) for name, source in sets.items()}
        callbacks = listeners.assemble(trainer, steps=next(iter(steps.values())))
        single_steps = listeners.single_steps(communicator).test
        found = {}
        for name, source in sets.items():
            # A progress bar counts to the end of this set.
            callbacks.set_params({**callbacks.params, "steps": steps[name]})
            found[name] = self.evaluate(
                source, config, callbacks, single_steps=single_steps, name=name
            )
        return found

    def on_batch(self, step: str, source: ArraySource) -> Logs:
        """Collective: one batch of all samples, and its loss and metrics.

        Args:
            step: "train" for one update, or "evaluate".
            source: the batch, the same on all ranks.
        """
        program, communicator = self.program, self.program.communicator
        sampler = Sampler(
            length=source.length,
            batch_size=source.length,
            rank=communicator.rank,
            size=communicator.size,
            shuffle=False,
        )
        part = sampler.part(0, 0, 1)
        program.board.reset()
        data = source.gather(part.indices)
        if step == "train":
            pieces = program.config.accumulate_steps
            outcome = program.train(Block.of(data, part, communicator.size, pieces))
            self._check_skipped("in calls of train_on_batch")
            # Whatever the user does next may read them.
            statistics.average(program.replica, communicator, weight=int(part.counts[0]))
        else:
            outcome = program.evaluate(Block.of(data, part, communicator.size))
        state, _ = program.board.merge(outcome.state, communicator)
        return program.board.results(state, step)

    def predict_parts(self, source: ArraySource, batch_size: int) -> list[np.ndarray]:
        """Sample numbers of this rank's batches: a contiguous part of the data, in order.

        A rank without samples predicts one, to know the outputs' shapes, and keeps none of it.
        """
        communicator = self.program.communicator
        start, stop = contiguous_part(source.length, communicator.rank, communicator.size)
        samples = np.arange(start, stop) if stop > start else np.array([0])
        rows = max(1, batch_size // communicator.size)
        return [samples[first : first + rows] for first in range(0, len(samples), rows)]

    def predict(
        self,
        source: ArraySource,
        parts: list[np.ndarray],
        callbacks: keras.callbacks.CallbackList,
        gather: str = "all",
    ) -> Any:
        """Collective: the outputs for all samples, in their order.

        Args:
            source: the data.
            parts: sample numbers of this rank's batches.
            callbacks: of this rank.
            gather: "all" for the outputs on every rank; "chief" for rank 0 alone, where the others
                hold no more than their part, and get None.
        """
        communicator = self.program.communicator
        start, stop = contiguous_part(source.length, communicator.rank, communicator.size)
        own: Any = None
        done = 0
        callbacks.on_predict_begin()
        for batch, samples in enumerate(parts):
            callbacks.on_predict_batch_begin(batch)
            outputs = self.program.predict(source.gather(samples))
            if own is None:
                own = keras.tree.map_structure(partial(_room_for, stop - start), outputs)
            keras.tree.map_structure(partial(_put, done, samples), own, outputs)
            done += len(samples)
            callbacks.on_predict_batch_end(batch, {"outputs": outputs})
        callbacks.on_predict_end()
        if gather == "all":
            return keras.tree.map_structure(communicator.concatenate, own)
        whole = keras.tree.map_structure(communicator.gather_rows, own)
        return whole if communicator.is_chief else None

    def _validate(
        self, plan: FitPlan, callbacks: keras.callbacks.CallbackList, single_steps: bool
    ) -> Logs:
        """Collective: the values of every set of validation data, by their names in logs."""
        logs: Logs = {}
        for name, source in plan.held_out.items():
            values = self.evaluate(
                source, plan.config, callbacks, single_steps=single_steps, name=name
            )
            logs |= prefixed("val", prefixed(name, values))
        return logs

    def _train_epoch(
        self,
        plan: FitPlan,
        epoch: int,
        callbacks: keras.callbacks.CallbackList,
        *,
        watched: bool,
    ) -> Logs:
        planner = self._planners["train"]
        self.program.board.reset()
        logs: Logs = {}
        done, samples = 0, 0
        communicator = self.program.communicator
        accumulate_steps = self.program.config.accumulate_steps
        for data, part in blocks(plan.source, plan.sampler, epoch, planner):
            self.supervisor.position = {"epoch": epoch, "update": done}
            callbacks.on_train_batch_begin(done)
            started = time.perf_counter()
            outcome = self.program.train(Block.of(data, part, communicator.size, accumulate_steps))
            self._check_skipped(f"up to update {done + outcome.steps} of epoch {epoch + 1}")
            logs = self._agree_on(outcome, time.perf_counter() - started, planner, "train")
            done += outcome.steps
            samples += int(part.counts[: outcome.steps].sum())
            if watched:
                # Who looks at single batches may save the model.
                statistics.average(self.program.replica, communicator, weight=samples)
                samples = 0
            callbacks.on_train_batch_end(done - 1, logs)
            if outcome.stopped:
                self.program.model.stop_training = True
            if self._stop_agreed():
                break
        statistics.average(self.program.replica, communicator, weight=samples)
        return logs

    def _check_skipped(self, where: str) -> None:
        """Reports a run of updates that loss scaling has left out; all ranks know of it alike."""
        skipped = int(self.program.door.skipped_in_a_row.numpy())
        if skipped >= SKIPPED_UPDATES_LIMIT:
            raise on_all_ranks(
                NotFiniteError(
                    f"{skipped} updates in a row were left out {where}, since their gradients were "
                    "not finite whatever the loss scale. Look for an infinite or NaN loss: lower "
                    "the learning rate, clip, check the data, or use precision='mixed_bfloat16'."
                )
            )
        if skipped >= SKIPPED_UPDATES_WARNING and self.program.communicator.is_chief:
            logger.warning(
                "%d updates in a row were left out %s: gradients are not finite. Training ends "
                "after %d.",
                skipped,
                where,
                SKIPPED_UPDATES_LIMIT,
            )

    def _agree_on(self, outcome: Outcome, seconds: float, planner: BlockPlanner, step: str) -> Logs:
        """Collective: metric values over all ranks, and one time for all of them to plan by."""
        communicator = self.program.communicator
        board = self.program.board
        state, (seconds_of_all,) = board.merge(outcome.state, communicator, sums=[seconds])
        planner.observe(float(seconds_of_all) / communicator.size, outcome.steps)
        return board.results(state, step)

    def _stop_agreed(self) -> bool:
        """Collective: whether any rank's callbacks asked to stop; then all ranks do."""
        model = self.program.model
        model.stop_training = self.program.communicator.any(bool(model.stop_training))
        return bool(model.stop_training)

    def _check_drift(self, when: str) -> None:
        variables = self.program.replica.shared_variables()
        drift.check(variables, self.program.communicator, when)

    def _planner(
        self, name: str, source: ArraySource, sampler: Sampler, *, single_steps: bool = False
    ) -> BlockPlanner:
        """The planner of a program, which keeps over epochs what it has learned."""
        if name not in self._planners:
            steps = self.steps_per_execution
            steps = 1 if single_steps and steps == "auto" else steps
            self._planners[name] = BlockPlanner(steps, source.row_bytes, sampler.largest_part)
        return self._planners[name]


def prefixed(name: str, logs: Logs) -> Logs:
    """Logs whose names begin with that of the data they are about; "" leaves them as they are."""
    return {f"{name}_{key}": value for key, value in logs.items()} if name else logs


def _room_for(rows: int, batch: np.ndarray) -> np.ndarray:
    return np.empty((rows, *batch.shape[1:]), batch.dtype)


def _put(start: int, samples: np.ndarray, room: np.ndarray, batch: np.ndarray) -> None:
    if batch.shape[1:] != room.shape[1:]:
        raise ArgumentError(
            "The model's outputs have another shape in each batch, so they make no array. "
            f"Received: {list(room.shape[1:])}, then {list(batch.shape[1:])} for a sample. "
            "Use `predict_on_batch`."
        )
    # A rank without samples has predicted one and has no room for it.
    count = min(len(samples), len(room) - start)
    room[start : start + count] = batch[:count]
