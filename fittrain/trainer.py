"""`Trainer`: the interface people use. The parts live elsewhere.

Who owns what:

=====================  =========================================================
`plan`                 the arguments, checked, as numbers and data
`loop`                 the order of events in an epoch
`preparation`          everything before the first update
`on_batch`             the calls for single batches
`session`              launcher, communicator, threads, seeds, logs, supervision
`data.arrays`          the arrays and how rows are gathered
`data.sampler`         which rows each rank uses in each update
`data.feed`            how many updates one call does; reading ahead
`hooks`                what subclasses override
`step`                 the compiled updates; the exchange of gradients
`learning_rate`        warm-up and scaling with the global batch
`metrics`              values over all ranks
`statistics`           batch normalisation's averages over all ranks
`supported`            which models and losses are exact on several ranks
`building`             the compiled model, its precision and clipping
`trial`                building everything and trying it before the first update
`start_state`          comparing and broadcasting the first state
`callback`             which callbacks run on which rank
=====================  =========================================================

Synopsis::

    trainer = fittrain.Trainer(build, optimizer="adam", loss="mse", run_dir="runs/first")
    history = trainer.fit(x, y, batch_size=256, epochs=20, validation_data=(xv, yv))
    trainer.save("model.keras")
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import keras

from fittrain import learning_rate as rates
from fittrain import session
from fittrain.building import Recipe
from fittrain.callback import Listeners
from fittrain.comm.base import Communicator
from fittrain.config import FitConfig, StepConfig, check_run_dir
from fittrain.data.arrays import ArraySource
from fittrain.data.feed import check_steps_per_execution
from fittrain.data.split import describe_sets, evaluation_sets, split_validation
from fittrain.export import check_model_path, write_model
from fittrain.on_batch import BatchCalls
from fittrain.plan import FitPlan, check_gather, make_sampler
from fittrain.supported import check_construction


class Trainer(BatchCalls):
    """Trains a Keras model on all ranks of a job as one process would train it.

    The global batch of every update is the same for every number of ranks; gradients are averaged
    over its samples exactly, also where it does not divide by the ranks. Nothing is started and no
    model is built before it is needed.

    Args:
        model: a Keras model, or a function without arguments that returns one.
        optimizer: a Keras optimizer or its name. None: the model is compiled already.
        loss: a Keras loss, its name, or a function, as for Keras's `compile`.
        metrics: as for Keras's `compile`; so are `loss_weights` and `weighted_metrics`.
        learning_rate: a `fittrain.Warmup`, or None to leave the optimizer's rate as it is.
        precision: "float32", "mixed_float16" or "mixed_bfloat16", in which the layers that a model
            function makes compute. None: as Keras is configured.
        accumulate_steps: micro-batches into which each rank's part of a batch is divided, to save
            memory. An update still takes `batch_size` samples, and is the same to rounding.
        clip_norm: largest global norm of the averaged gradient; larger ones are scaled down.
        wire_dtype: "float16" sends gradients in half precision, scaled so that they neither
            overflow nor vanish. None sends them as they are.
        fused_updates: whether TensorFlow's fused kernels do the update of SGD, Adam and AdamW,
            equal to Keras's to rounding.
        jit_compile: whether XLA compiles the forward and backward pass, and the update, on either
            side of the exchange between ranks. Where it cannot, that is said once.
        backend: "auto", "horovod", "mpi", "local", or a `Communicator`.
        steps_per_execution: updates in one call of the compiled program. "auto" takes as many as
            last about a quarter of a second, or 1 where a callback looks at single batches.
        seed: base of shuffling and of every random stream. None draws one.
        run_dir: folder for logs, errors and events; created when needed. None writes nothing.

    Raises:
        ArgumentError: if the model is neither compiled nor given an optimizer and a loss.

    Example:
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        >>> trainer = Trainer(model, optimizer="sgd", loss="mse", backend="local")
        >>> history = trainer.fit(np.ones((8, 1)), np.ones((8, 1)), batch_size=4, verbose=0)
        >>> len(history.history["loss"])
        1
    """

    def __init__(  # noqa: PLR0913 - the arguments are Keras's and the field's
        self,
        model: keras.Model | Callable[[], keras.Model],
        *,
        optimizer: Any = None,
        loss: Any = None,
        metrics: Any = None,
        loss_weights: Any = None,
        weighted_metrics: Any = None,
        learning_rate: rates.Warmup | None = None,
        precision: str | None = None,
        accumulate_steps: int = 1,
        clip_norm: float | None = None,
        wire_dtype: str | None = None,
        fused_updates: bool = True,
        jit_compile: bool = False,
        backend: str | Communicator = "auto",
        steps_per_execution: int | str = "auto",
        seed: int | None = None,
        run_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        compiled = {"optimizer": optimizer, "loss": loss, "metrics": metrics}
        compiled |= {"loss_weights": loss_weights, "weighted_metrics": weighted_metrics}
        check_construction(model, compiled)
        check_steps_per_execution(steps_per_execution)
        self.step_config = StepConfig(
            accumulate_steps, clip_norm, precision, wire_dtype, fused_updates, jit_compile
        )
        rates.check_warmup(learning_rate, optimizer or getattr(model, "optimizer", None))
        self._warmup = learning_rate
        self._recipe = Recipe(model, compiled, self.step_config)
        self._backend = backend
        session.prefer(backend)
        self._steps_per_execution = steps_per_execution
        self._seed = seed
        self.run_dir = check_run_dir(run_dir)
        self._session = None
        self._model = None

    def fit(  # noqa: PLR0913 - Keras's signature
        self,
        x: Any,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: int | str = "auto",
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
        validation_split: float = 0.0,
        validation_data: tuple[Any, ...] | Mapping[str, tuple[Any, ...]] | None = None,
        shuffle: bool = True,
        *,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        batch_size_per_rank: int | None = None,
        initial_epoch: int = 0,
        validation_batch_size: int | None = None,
        validation_freq: int = 1,
        drop_remainder: bool = False,
    ) -> keras.callbacks.History:
        """Collective: trains, with Keras's arguments. Every rank passes the whole data.

        Args:
            x: input arrays, shape (samples, ...); or tuples, lists and dicts of them.
            y: target arrays, like `x`.
            class_weight: weight of each class of the targets, 1 for those left out. For one
                output; instead of `sample_weight`.
            sample_weight: weight of each sample, shape (samples,); with several outputs also one
                such array for each, in the nesting of `y`.
            batch_size: samples in one update over all ranks. Default 32.
            batch_size_per_rank: the alternative: samples in one update on each rank.
            epochs: number of the last epoch.
            verbose: 0 silent, 1 progress bar, 2 a line for each epoch; "auto" is 1 on a terminal.
                Rank 0 speaks.
            callbacks: Keras callbacks, the same on all ranks.
            validation_split: part of the samples, taken from the end, to validate on.
            validation_data: (x, y) or (x, y, sample_weight); or a dict of these, whose names stand
                in the logs: {"clean": (xc, yc)} gives `val_clean_loss` and no `val_loss`.
            shuffle: whether each epoch has an order of its own.
            initial_epoch: epochs to regard as done.
            validation_batch_size: samples in one validation batch over all ranks.
            validation_freq: validate after every this many epochs.
            drop_remainder: whether to leave out samples that do not fill a global batch.

        Returns:
            Keras's History, with the same numbers on every rank.

        Errors that come once training has started end the job where there are several ranks: the
        others could not go on, so catching them is of no use.

        Raises:
            ArgumentError: before update 1, on all ranks, if an argument cannot work on any.
            RankMismatchError: before update 1, if ranks were given different things.
            PeerError: before update 1, if the model or data of another rank failed.
            DriftError: at the end of an epoch, if ranks no longer hold the same weights.
        """
        communicator = self.communicator
        with communicator.progress.within("Trainer.fit"):
            with communicator.together():
                config = FitConfig(
                    batch_size=batch_size,
                    batch_size_per_rank=batch_size_per_rank,
                    epochs=epochs,
                    initial_epoch=initial_epoch,
                    shuffle=shuffle,
                    drop_remainder=drop_remainder,
                    validation_batch_size=validation_batch_size,
                    validation_freq=validation_freq,
                )
                listeners = Listeners.check(callbacks, verbose, self.run_dir)
                source, held_out = split_validation(
                    ArraySource(x, y, sample_weight), validation_split, validation_data
                )
                source = source.weigh_classes(class_weight)
                sampler = make_sampler(source.length, config, communicator, self.seed)
                plan = FitPlan(config, source, sampler, held_out, class_weight)
            loop = self._prepare(plan.sources, {**plan.numbers(), "callbacks": listeners.names})
            self._check_training(sampler)
            self._check_evaluation(held_out, config)
            control = self._start_learning_rate(config, sampler.updates)
            self._write_run_file(plan, control.derivation if control else None)
            with self.session.supervisor.guard(), rates.governing(control):
                running = listeners.assemble(
                    self, steps=sampler.updates, epochs=config.epochs, add_history=True
                )
                loop.train(plan, running, single_steps=listeners.single_steps(communicator))
            return self.model.history

    def evaluate(  # noqa: PLR0913 - Keras's signature
        self,
        x: Any,
        y: Any = None,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        sample_weight: Any = None,
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
        return_dict: bool = False,
    ) -> Any:
        """Collective: loss and metrics over the data, each sample counted once.

        Args:
            x: input arrays, the whole data on every rank; or, without `y`, a dict of several sets
                by name, each (x, y) or (x, y, sample_weight).
            y: target arrays.
            sample_weight: weight of each sample, or of each sample for each output.
            batch_size: samples in one batch over all ranks. Default 32.
            verbose: 0 silent, 1 progress bar, 2 one line; "auto" is 1 on a terminal.
            callbacks: Keras callbacks.
            return_dict: whether to return a dict instead of Keras's list.

        Returns:
            The same numbers on every rank: a dict, or a list in Keras's order, or a float where
            there is only the loss. For several sets a dict of these by name; callbacks and progress
            lines then see each value under the set's name too, as `clean_loss`.

        Raises:
            ArgumentError: on all ranks, if an argument cannot work on any.
            RankMismatchError: if ranks were given different things.
        """
        communicator = self.communicator
        with communicator.progress.within("Trainer.evaluate"):
            with communicator.together():
                config = FitConfig(batch_size=batch_size)
                listeners = Listeners.check(callbacks, verbose, self.run_dir)
                sets = evaluation_sets(x, y, sample_weight)
            numbers = {**asdict(config), **describe_sets(sets, "x" if any(sets) else "")}
            loop = self._prepare([*sets.values()], numbers)
            self._check_evaluation(sets, config)
            with self.session.supervisor.guard():
                values = loop.evaluate_sets(sets, config, listeners, self)
        if not return_dict:
            values = {name: self.model._flatten_metrics_in_order(v) for name, v in values.items()}
        return values.get("", values)

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
        *,
        gather: str = "all",
    ) -> Any:
        """Collective: the model's outputs for all samples, in their order.

        Args:
            x: input arrays, the whole data on every rank.
            batch_size: samples in one batch over all ranks. Default 32.
            verbose: 0 silent, 1 progress bar, 2 one line; "auto" is 1 on a terminal.
            callbacks: Keras callbacks, called for the batches of their own rank.
            gather: "all" gives every rank all the outputs. "chief" gives them to rank 0, and None
                to the others, which never hold more than their own part.

        Returns:
            NumPy arrays of shape (samples, ...) in the nesting of the model's outputs.

        Raises:
            ArgumentError: on all ranks, if an argument cannot work on any.
            RankMismatchError: if ranks were given different things.
        """
        communicator = self.communicator
        with communicator.progress.within("Trainer.predict"):
            with communicator.together():
                config = FitConfig(batch_size=batch_size)
                listeners = Listeners.check(callbacks, verbose, self.run_dir)
                check_gather(gather)
                source = ArraySource(x)
            numbers = {**asdict(config), **source.describe(), "gather": gather}
            loop = self._prepare([source], numbers, with_loss=False)
            with self.session.supervisor.guard():
                parts = loop.predict_parts(source, config.batch_size_global(communicator.size))
                running = listeners.assemble(self, steps=len(parts))
                return loop.predict(source, parts, running, gather)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Collective: writes the model as a plain Keras file that needs no fittrain to open.

        A model with fittrain's own layers or optimizer is the exception: those must be imported, or
        put back to Keras's first (`fittrain.layers.convert_batch_norm`).

        Rank 0 writes under a temporary name and renames; when this returns, the file is there.

        Args:
            path: where to, ending in ".keras".

        Raises:
            ArgumentError: if `path` does not end in ".keras".
            StorageError: on all ranks, if rank 0 could not write.
        """
        communicator = self.communicator
        with communicator.progress.within("Trainer.save"), communicator.together():
            target = check_model_path(path)
            if communicator.is_chief:
                write_model(self.model, target)
