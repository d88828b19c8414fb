"""Callbacks on several ranks: which run where, and which need to see single batches.

Stock Keras callbacks run unchanged. All ranks hand them the same logs, so whatever they decide is
decided alike; those that only write files run on rank 0 alone.

Synopsis::

    class Beep(fittrain.Callback):
        ranks = "chief"                       # rank 0 only; the default is "all"

        def on_epoch_end(self, epoch, logs=None):
            print(self.trainer.run_dir, logs["loss"])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from fittrain.errors import ArgumentError
from fittrain.plan import resolve_verbose

if TYPE_CHECKING:
    from fittrain.comm.base import Communicator

WRITERS = (
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)
"""Keras callbacks that only write: several ranks would write the same files."""

TRAIN_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
TEST_HOOKS = ("on_test_batch_begin", "on_test_batch_end")


class Callback(keras.callbacks.Callback):  # type: ignore[misc]
    """A Keras callback that knows its trainer and the ranks.

    Attributes:
        ranks: "all", or "chief" for rank 0 only.
        trainer: the `Trainer` whose fit is running.
        communicator: how ranks talk; its collectives must be reached by every rank.
    """

    ranks: str = "all"
    trainer: Any = None
    communicator: Communicator | None = None

    def check(self, run_dir: Path | None) -> None:
        """Called before training: raises `ArgumentError` if the callback cannot work."""


def check(callbacks: Any, run_dir: Path | None) -> list[Any]:
    """The callbacks as a list; refuses what is none, and what cannot work on several ranks.

    Raises:
        ArgumentError: naming the callback and what to use.
    """
    if not isinstance(callbacks, (list, tuple, type(None))):
        raise ArgumentError(
            f"`callbacks` must be a list of callbacks. Received: {type(callbacks).__name__}."
        )
    chosen = list(callbacks or [])
    for callback in chosen:
        if not isinstance(callback, keras.callbacks.Callback):
            raise ArgumentError(
                "`callbacks` must hold keras.callbacks.Callback objects. "
                f"Received: {type(callback).__name__}."
            )
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            raise ArgumentError(
                "`callbacks` holds keras.callbacks.BackupAndRestore, which restores rank 0 only. "
                "Load the weights before `fit`: rank 0's reach every rank."
            )
        if isinstance(callback, Callback):
            callback.check(run_dir)
    return chosen


def assemble(
    callbacks: Sequence[Any], trainer: Any, *, verbose: int, add_history: bool, **params: Any
) -> keras.callbacks.CallbackList:
    """The callbacks of this rank and, on rank 0, Keras's progress bar."""
    chief = trainer.communicator.is_chief
    own = [callback for callback in callbacks if chief or not runs_on_chief_only(callback)]
    for callback in own:
        if isinstance(callback, Callback):
            callback.trainer, callback.communicator = trainer, trainer.communicator
    if chief and verbose and not any(isinstance(c, keras.callbacks.ProgbarLogger) for c in own):
        own.append(keras.callbacks.ProgbarLogger())
    return keras.callbacks.CallbackList(
        own, add_history=add_history, model=trainer.model, verbose=verbose, **params
    )


@dataclass(frozen=True)
class Listeners:
    """Who follows a call: its callbacks and Keras's progress bar.

    Args:
        callbacks: as `check` gives them.
        verbose: 0, 1 or 2, as in Keras.
    """

    callbacks: list[Any]
    verbose: int

    @classmethod
    def check(cls, callbacks: Any, verbose: int | str, run_dir: Path | None) -> Listeners:
        """From the arguments of a call.

        Raises:
            ArgumentError: naming the argument that cannot work.
        """
        return cls(check(callbacks, run_dir), resolve_verbose(verbose))

    @property
    def names(self) -> list[str]:
        """Classes of the callbacks."""
        return [type(callback).__name__ for callback in self.callbacks]

    def assemble(
        self, trainer: Any, *, steps: int, epochs: int = 1, add_history: bool = False
    ) -> keras.callbacks.CallbackList:
        """Those of this rank, ready to be called; see `assemble`."""
        return assemble(
            self.callbacks,
            trainer,
            verbose=self.verbose,
            add_history=add_history,
            epochs=epochs,
            steps=steps,
        )

    def single_steps(self, communicator: Communicator) -> SingleSteps:
        """Collective: whether any rank's look at single batches."""
        return SingleSteps.agree(self.callbacks, communicator)


def runs_on_chief_only(callback: Any) -> bool:
    """Whether rank 0 alone runs this callback."""
    return getattr(callback, "ranks", "all") == "chief" or isinstance(callback, WRITERS)


@dataclass(frozen=True)
class SingleSteps:
    """Whether callbacks must be called after every single batch, on any rank.

    Args:
        train: in training.
        test: in validation and evaluation.
    """

    train: bool
    test: bool

    @classmethod
    def agree(cls, callbacks: Sequence[Any], communicator: Communicator) -> SingleSteps:
        """Collective: what the callbacks of all ranks need."""
        own = [
            any(looks_at_batches(callback, hooks) for callback in callbacks)
            for hooks in (TRAIN_HOOKS, TEST_HOOKS)
        ]
        return cls(*(bool(need) for need in communicator.reduce(np.asarray(own, np.int64), "max")))


def looks_at_batches(callback: Any, hooks: Sequence[str]) -> bool:
    """Whether a callback must be called after every single batch."""
    if isinstance(callback, (keras.callbacks.ProgbarLogger, keras.callbacks.History)):
        return False
    if isinstance(callback, keras.callbacks.TensorBoard):
        return bool(callback.update_freq != "epoch" or callback._should_trace)
    if isinstance(callback, keras.callbacks.ModelCheckpoint):
        return bool(callback.save_freq != "epoch")
    return any(_overrides(callback, hook) for hook in hooks)


def _overrides(callback: Any, hook: str) -> bool:
    own = getattr(callback, hook)
    return getattr(own, "__func__", own) is not getattr(keras.callbacks.Callback, hook)
