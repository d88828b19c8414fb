"""The order of events inside `fit`, `evaluate` and `predict`.

Synopsis::

    loop = Loop(program, supervisor, steps_per_execution="auto")
    loop.train(plan, callbacks, single_steps=SingleSteps.agree(chosen, communicator))
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from fittrain import drift, statistics
from fittrain.block import Block
from fittrain.callback import SingleSteps
from fittrain.comm.base import on_all_ranks
from fittrain.config import SKIPPED_UPDATES_LIMIT, SKIPPED_UPDATES_WARNING, FitConfig
from fittrain.data.arrays import ArraySource
from fittrain.data.feed import BlockPlanner, blocks
from fittrain.data.sampler import Sampler
from fittrain.data.split import contiguous_part
from fittrain.errors import NotFiniteError
from fittrain.plan import FitPlan
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
            logs = self._train_epoch(plan, epoch, callbacks)
            if plan.held_out is not None and (epoch + 1) % config.validation_freq == 0:
                values = self.evaluate(
                    plan.held_out, config, callbacks, single_steps=single_steps.test
                )
                logs |= {f"val_{name}": value for name, value in values.items()}
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
    ) -> Logs:
        """Collective: loss and metrics over all samples, each counted once.

        Args:
            source: the data.
            config: its batch size.
            callbacks: of this rank.
            single_steps: whether a callback on any rank looks at single batches.
        """
        communicator = self.program.communicator
        sampler = Sampler(
            length=source.length,
            batch_size=config.validation_batch_size_global(communicator.size),
            rank=communicator.rank,
            size=communicator.size,
            shuffle=False,
        )
        planner = self._planner("evaluate", source, sampler, single_steps=single_steps)
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
            callbacks.on_test_batch_end(done - 1, logs)
        callbacks.on_test_end(logs)
        return logs

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
    ) -> Any:
        """Collective: the outputs for all samples, in their order, on every rank."""
        communicator = self.program.communicator
        start, stop = contiguous_part(source.length, communicator.rank, communicator.size)
        outputs = []
        callbacks.on_predict_begin()
        for batch, samples in enumerate(parts):
            callbacks.on_predict_batch_begin(batch)
            outputs.append(self.program.predict(source.gather(samples)))
            callbacks.on_predict_batch_end(batch, {"outputs": outputs[-1]})
        callbacks.on_predict_end()
        return keras.tree.map_structure(
            lambda *pieces: communicator.concatenate(np.concatenate(pieces)[: stop - start]),
            *outputs,
        )

    def _train_epoch(
        self, plan: FitPlan, epoch: int, callbacks: keras.callbacks.CallbackList
    ) -> Logs:
        planner = self._planners["train"]
        self.program.board.reset()
        logs: Logs = {}
        done, samples = 0, 0
        size = self.program.communicator.size
        accumulate_steps = self.program.config.accumulate_steps
        for data, part in blocks(plan.source, plan.sampler, epoch, planner):
            self.supervisor.position = {"epoch": epoch, "update": done}
            callbacks.on_train_batch_begin(done)
            started = time.perf_counter()
            outcome = self.program.train(Block.of(data, part, size, accumulate_steps))
            self._check_skipped(epoch, done + outcome.steps)
            logs = self._agree_on(outcome, time.perf_counter() - started, planner, "train")
            done += outcome.steps
            samples += int(part.counts[: outcome.steps].sum())
            callbacks.on_train_batch_end(done - 1, logs)
            if outcome.stopped:
                self.program.model.stop_training = True
            if self._stop_agreed():
                break
        statistics.average(self.program.replica, self.program.communicator, weight=samples)
        return logs

    def _check_skipped(self, epoch: int, updates: int) -> None:
        """Reports a run of updates that loss scaling has left out; all ranks know of it alike."""
        skipped = int(self.program.door.skipped_in_a_row.numpy())
        where = f"up to update {updates} of epoch {epoch + 1}"
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
