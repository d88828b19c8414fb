"""The numbers of a `fit` call, their checks, and the limits that several modules share.

Synopsis::

    config = FitConfig(batch_size=256, epochs=20)
    config.batch_size_global(size=8)      # 256
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fittrain.errors import ArgumentError

KERAS_DEFAULT_BATCH_SIZE = 32
"""What Keras's own `fit` uses when no batch size is given; ours is the global batch."""

BROADCAST_CHUNK_BYTES = 256 * 2**20
"""Larger objects travel in pieces, so that no MPI count overflows 31 bits."""

BLOCK_SECONDS = 0.25
"""How long one call into the compiled program should last when nobody looks at single batches."""

BLOCK_BYTES = 16 * 2**20
"""Upper bound for the rows handed to one call, per rank."""

BLOCK_STEPS = 512
"""Upper bound for the updates in one call, so that a stop request is seen soon."""

SKIPPED_UPDATES_LIMIT = 20
"""Updates in a row that loss scaling may leave out before training ends with an error."""

SKIPPED_UPDATES_WARNING = 5
"""Updates in a row that loss scaling may leave out before that is said."""


def whole_number(name: str, value: Any, least: int) -> int:
    """The value as an int; NumPy's integers are welcome.

    Raises:
        ArgumentError: if `value` is no integer, or less than `least`.
    """
    kind = "a positive integer" if least == 1 else "a non-negative integer"
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < least:
        raise ArgumentError(f"`{name}` must be {kind}. Received: {name}={value!r}.")
    return int(value)


def check_run_dir(run_dir: Any) -> Path | None:
    """The run folder as a path.

    Raises:
        ArgumentError: if it is no path, or an empty one.
    """
    if run_dir is None:
        return None
    if not isinstance(run_dir, (str, os.PathLike)) or not str(run_dir):
        raise ArgumentError(
            f"`run_dir` must be a folder's path, or None for no files. Received: {run_dir!r}."
        )
    return Path(run_dir)


def check_wire_dtype(wire_dtype: Any) -> str | None:
    """The dtype that float32 gradients travel in between ranks; None for float32.

    Raises:
        ArgumentError: if it is neither None nor "float16".
    """
    if wire_dtype not in (None, "float16"):
        raise ArgumentError(
            "`wire_dtype` must be 'float16', or None to exchange gradients in their own precision. "
            f"Received: wire_dtype={wire_dtype!r}."
        )
    return None if wire_dtype is None else "float16"


PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")


@dataclass(frozen=True)
class StepConfig:
    """How an update is made from a batch.

    Args:
        accumulate_steps: micro-batches into which each rank's part of a batch is divided.
        clip_norm: largest global norm of the averaged gradient, or None.
        precision: dtype policy of the layers, or None to take the model's.
        wire_dtype: "float16" sends gradients in half precision; None as they are.
        fused_updates: whether TensorFlow's fused kernels may replace Keras's update.
        jit_compile: whether XLA compiles what lies on either side of the exchange.
    """

    accumulate_steps: int = 1
    clip_norm: float | None = None
    precision: str | None = None
    wire_dtype: str | None = None
    fused_updates: bool = True
    jit_compile: bool = False

    def __post_init__(self) -> None:
        steps = whole_number("accumulate_steps", self.accumulate_steps, 1)
        object.__setattr__(self, "accumulate_steps", steps)
        norm = self.clip_norm
        if norm is not None and not (_is_number(norm) and 0 < norm < float("inf")):
            raise ArgumentError(
                f"`clip_norm` must be a positive number or None. Received: clip_norm={norm!r}."
            )
        if self.precision not in (None, *PRECISIONS):
            raise ArgumentError(
                f"`precision` must be one of {PRECISIONS}, or None to take the model's own. "
                f"Received: precision={self.precision!r}."
            )
        check_wire_dtype(self.wire_dtype)
        for name in ("fused_updates", "jit_compile"):
            if not isinstance(getattr(self, name), bool):
                raise ArgumentError(
                    f"`{name}` must be True or False. Received: {name}={getattr(self, name)!r}."
                )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


@dataclass(frozen=True)
class FitConfig:
    """The numbers of one `fit` call.

    Args:
        batch_size: samples in one update, over all ranks. Default 32, as in Keras.
        batch_size_per_rank: the alternative: samples in one update on each rank.
        epochs: number of the last epoch, as in Keras.
        initial_epoch: number of epochs to regard as done, as in Keras.
        shuffle: whether the order of samples changes with every epoch.
        drop_remainder: whether samples that do not fill a global batch are left out.
        validation_batch_size: samples in one validation batch, over all ranks.
        validation_freq: validate after every this many epochs.
    """

    batch_size: int | None = None
    batch_size_per_rank: int | None = None
    epochs: int = 1
    initial_epoch: int = 0
    shuffle: bool = True
    drop_remainder: bool = False
    validation_batch_size: int | None = None
    validation_freq: int = 1

    def __post_init__(self) -> None:
        for name in ("batch_size", "batch_size_per_rank", "validation_batch_size"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole_number(name, getattr(self, name), 1))
        for name, least in (("epochs", 1), ("validation_freq", 1), ("initial_epoch", 0)):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least))
        for name in ("shuffle", "drop_remainder"):
            if not isinstance(getattr(self, name), (bool, np.bool_)):
                raise ArgumentError(
                    f"`{name}` must be True or False. Received: {name}={getattr(self, name)!r}."
                )
        if self.batch_size is not None and self.batch_size_per_rank is not None:
            raise ArgumentError(
                "`batch_size` is the global batch and `batch_size_per_rank` one rank's part of "
                f"it. Received: batch_size={self.batch_size}, "
                f"batch_size_per_rank={self.batch_size_per_rank}. Give one of them."
            )

    def batch_size_global(self, size: int) -> int:
        """Samples in one update over `size` ranks."""
        if self.batch_size_per_rank is not None:
            return self.batch_size_per_rank * size
        return self.batch_size or KERAS_DEFAULT_BATCH_SIZE

    def validation_batch_size_global(self, size: int) -> int:
        """Samples in one validation batch over `size` ranks."""
        return self.validation_batch_size or self.batch_size_global(size)
