"""What a trainer has and does before its first update: session, model, compared and equal state.

Synopsis::

    class Trainer(Preparation):
        def fit(self, x, y):
            loop = self._prepare([source], numbers)     # refuses, or all ranks are alike
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import keras

from fittrain import learning_rate, session, start_state
from fittrain.building import Recipe
from fittrain.comm.base import Communicator, on_all_ranks
from fittrain.config import FitConfig, StepConfig
from fittrain.data.arrays import ArraySource
from fittrain.data.sampler import Sampler
from fittrain.errors import ArgumentError
from fittrain.export import write_text
from fittrain.hooks import StepHooks
from fittrain.loop import Loop
from fittrain.plan import FitPlan, evaluation_sampler
from fittrain.rate_control import LearningRateControl
from fittrain.replica import Replica
from fittrain.step import StepProgram
from fittrain.supported import check_model, check_static_batch
from fittrain.trial import try_out
from fittrain.versions import versions


class Preparation(StepHooks):
    """From arguments to a loop that may start.

    Attributes:
        step_config: how an update is made.
        run_dir: folder of the run, or None.
    """

    step_config: StepConfig
    run_dir: Path | None
    _recipe: Recipe
    _warmup: learning_rate.Warmup | None
    _backend: str | Communicator
    _steps_per_execution: int | str
    _seed: int | None
    _session: session.Session | None
    _model: keras.Model | None

    @property
    def session(self) -> session.Session:
        """What `fittrain.init` started; starts it when needed. Collective the first time."""
        if self._session is None:
            self._session = session.start(self._backend, seed=self._seed, run_dir=self.run_dir)
            self.run_dir = self.run_dir or self._session.run_dir
        return self._session

    @property
    def seed(self) -> int:
        """The base of this trainer's shuffling."""
        return self.session.seed if self._seed is None else self._seed

    @property
    def communicator(self) -> Communicator:
        """How this rank talks to the others."""
        return self.session.communicator

    @property
    def model(self) -> keras.Model:
        """The compiled model, not necessarily built; made when first needed."""
        if self._model is None:
            self._model = self._recipe.make(self.communicator)
            learning_rate.check_warmup(self._warmup, self._model.optimizer)
        return self._model

    def _prepare(
        self,
        sources: Sequence[ArraySource],
        numbers: dict[str, Any],
        *,
        with_loss: bool = True,
    ) -> Loop:
        """Collective: the model built, ranks compared, rank 0's state everywhere."""
        communicator = self.communicator
        with communicator.together():
            check_model(self.model)
            program = self._program_for(sources, with_loss)
        common = {
            **versions(),
            **numbers,
            **asdict(self.step_config),
            "learning_rate": self._warmup and self._warmup.describe(),
            "seed": self.seed,
            "steps_per_execution": self._steps_per_execution,
            **start_state.describe(program.replica),
        }
        communicator.agree(common)
        start_state.broadcast(program.replica, communicator)
        if communicator.is_chief:
            program.xla.announce()
        return Loop(program, self.session.supervisor, self._steps_per_execution)

    def _program_for(self, sources: Sequence[ArraySource], with_loss: bool) -> StepProgram:
        """The program of models that are built and tried with data like this."""
        program = self._program
        if program is None or not program.is_current():
            replica = Replica.of(self.model, self)
            program = StepProgram(replica, self.communicator, self, self.step_config)
            # Steps ask their trainer for the program; until it has settled it counts as outdated.
            self._program = program
        for source in sources:
            try_out(program, source, with_loss=with_loss)
        program.settle()
        return program

    def _check_training(self, sampler: Sampler) -> None:
        """Refuses a model that would learn nothing, or fixes another number of rows."""
        if not self.model.trainable_variables and not self._running_program.has_own_step:
            raise on_all_ranks(
                ArgumentError(
                    "`model` has no trainable weights, so `fit` would change nothing. Set "
                    "`trainable = True` on a layer and compile again, or call `evaluate`."
                )
            )
        check_static_batch(self.model, sampler, self.step_config.accumulate_steps)

    def _check_evaluation(self, sets: Mapping[str, ArraySource], config: FitConfig) -> None:
        """Refuses sets of data whose parts have other numbers of rows than the model fixes."""
        for source in sets.values():
            sampler = evaluation_sampler(source, config, self.communicator)
            check_static_batch(self.model, sampler, what="validation_batch_size")

    def _start_learning_rate(
        self, config: FitConfig, updates_per_epoch: int
    ) -> LearningRateControl | None:
        """Collective: what sets the rate of each update of a fit, if anything does."""
        control = learning_rate.start(
            self._warmup, self.model.optimizer, config, updates_per_epoch, self.communicator
        )
        if self._program is not None:
            self._program.door.learning_rate = control
        return control

    def _write_run_file(self, plan: FitPlan, derivation: dict[str, Any] | None) -> None:
        """Collective: RUN/run.json, what this run is; rank 0 writes."""
        communicator = self.communicator
        with communicator.together():
            if self.run_dir is None or not communicator.is_chief:
                return
            content = {
                "fit": plan.numbers(),
                "step": asdict(self.step_config),
                "updates_per_epoch": plan.sampler.updates,
                "learning_rate": derivation,
                "seed": self.seed,
                "backend": communicator.name,
                "ranks": communicator.size,
                "threads_per_rank": self.session.threads_per_rank,
                "versions": versions(),
            }
            write_text(self.run_dir / "run.json", json.dumps(content, indent=2, default=str))
