"""TensorBoard's event files, by one writer, in the run folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import keras

from fittrain.callback import Callback
from fittrain.errors import ArgumentError


class TensorBoard(Callback, keras.callbacks.TensorBoard):  # type: ignore[misc]
    """Keras's TensorBoard callback on rank 0, writing to `RUN/events` by default.

    The values are those of all ranks, so one writer tells everything.

    Args:
        log_dir: folder of the event files. Default: `events` in the trainer's run folder.
        **options: as for `keras.callbacks.TensorBoard`.

    Raises:
        ArgumentError: at the start of `fit`, if neither `log_dir` nor a run folder is given.

    Example:
        >>> TensorBoard(log_dir="runs/first/events").ranks
        'chief'
    """

    ranks = "chief"

    def __init__(self, log_dir: str | os.PathLike[str] | None = None, **options: Any) -> None:
        super().__init__(log_dir="" if log_dir is None else str(log_dir), **options)
        self._in_run_dir = log_dir is None

    def check(self, run_dir: Path | None) -> None:
        """Refuses to run without a place to write to."""
        if self._in_run_dir and run_dir is None:
            raise ArgumentError(
                "`log_dir` of TensorBoard defaults to `events` in the run folder, and there is "
                "none. Give Trainer a `run_dir`, or TensorBoard a `log_dir`."
            )

    def set_model(self, model: keras.Model) -> None:
        """Called by Keras when the callback list is assembled."""
        if self._in_run_dir:
            self.log_dir = str(self.trainer.run_dir / "events")
        super().set_model(model)
