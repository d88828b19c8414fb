"""For tests of training code, ours and yours: a communicator that records, and trials that tell.

- `RecordingCommunicator` pretends to be one rank of many in one process and keeps the order of
  collectives. Two ranks whose lists differ would hang; no MPI is needed to find out.
- PROBE (`probe_trainer`): one weight, squared error, effective rate 0.5. After every update the
  weight is exactly the mean target of that update's global batch, so that a wrong average shows as
  a wrong number at once.
- `Ledger` keeps which samples every update used.
- `digest` is one number for all weights and optimizer state: equal on all ranks, or they drifted.

Synopsis::

    trainer = probe_trainer(backend="mpi")
    trainer.fit(np.ones((4, 1)), targets, batch_size=4, shuffle=False, verbose=0)
    probe_weight(trainer)                 # targets.mean()
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

from fittrain.comm.base import Communicator
from fittrain.trainer import Trainer

Value = TypeVar("Value")


class RecordingCommunicator(Communicator):
    """Pretends to be one rank of many, all of which hold what this one holds.

    Args:
        rank: the rank to be.
        size: how many ranks to pretend.

    Attributes:
        calls: (operation, detail) of every collective, in order. Those inside a `tf.function` are
            recorded when it is traced.

    Example:
        >>> communicator = RecordingCommunicator(rank=1, size=2)
        >>> communicator.reduce([3.0]).tolist()
        [6.0]
        >>> communicator.calls
        [('reduce', ('sum', (1,)))]
    """

    name = "recording"

    def __init__(self, rank: int = 0, size: int = 2) -> None:
        super().__init__()
        self.rank, self.size = rank, size
        self.local_rank, self.local_size = rank, size
        self.calls: list[tuple[str, Any]] = []

    def all_reduce(self, flat: Any, name: str = "gradients") -> Any:
        """Records shape and dtype; the sum over ranks that all hold `flat`."""
        self.calls.append(("all_reduce", (tuple(flat.shape), flat.dtype.name)))
        return flat * tf.cast(self.size, flat.dtype)

    def all_gather(self, rows: Any, name: str = "rows") -> Any:
        """Records shape and dtype; the rows of ranks that all hold `rows`."""
        self.calls.append(("all_gather", (tuple(rows.shape), rows.dtype.name)))
        return tf.concat([rows] * self.size, 0)

    def _reduce(self, array: np.ndarray, op: str) -> np.ndarray:
        self.calls.append(("reduce", (op, array.shape)))
        return np.asarray(array * self.size if op == "sum" else array.copy())

    def broadcast(self, value: Value, root: int = 0) -> Value:
        """Records itself; the value that all ranks hold."""
        self.calls.append(("broadcast", type(value).__name__))
        return value

    def _broadcast_bytes(self, buffer: memoryview, root: int) -> None:
        self.calls.append(("broadcast", len(buffer)))

    def gather_rows(self, part: np.ndarray, root: int = 0) -> np.ndarray | None:
        """Records itself; the rows of ranks that all hold `part`, on `root`."""
        self.calls.append(("gather_rows", part.shape))
        return np.concatenate([part] * self.size) if self.rank == root else None

    def _send_bytes(self, buffer: memoryview, source: int, root: int) -> None:
        self.calls.append(("send", len(buffer)))

    def _gather(self, value: Any) -> list[Any]:
        self.calls.append(("gather", None))
        return [value] * self.size

    def barrier(self) -> None:
        """Records itself."""
        self.calls.append(("barrier", None))

    def end_job(self, report: Callable[[], None], exit_code: int) -> None:
        """Records the exit code and leaves the rest to the exception."""
        self.calls.append(("end_job", exit_code))


def probe_model() -> keras.Model:
    """One weight, 0 at the start, no bias."""
    return keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
    )


def probe_trainer(**arguments: Any) -> Trainer:
    """A trainer whose weight becomes the mean target of each update's global batch.

    With inputs of 1 the gradient of the squared error is 2 (w - mean target), so that stochastic
    gradient descent at rate 0.5 steps exactly onto the mean.

    Args:
        **arguments: for `Trainer`; a class under `trainer` replaces `Trainer`.
    """
    trainer_class = arguments.pop("trainer", Trainer)
    optimizer = arguments.pop("optimizer", None) or keras.optimizers.SGD(0.5)
    trainer: Trainer = trainer_class(probe_model, optimizer=optimizer, loss="mse", **arguments)
    return trainer


def probe_weight(trainer: Trainer) -> float:
    """The one weight of `probe_model`."""
    return float(trainer.model.get_weights()[0].item())


class Ledger(Trainer):
    """A trainer that keeps, for every update, the ids of the samples this rank used.

    The id of a sample is the first column of its (first) input.

    Attributes:
        ids: one list of ids for each update, in order; empty where this rank had no sample.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.ids: list[list[int]] = []

    def train_step(self, batch: Any) -> Any:
        """Records the batch, then does what `Trainer` does."""
        first = keras.tree.flatten(batch)[0]
        tf.py_function(self._record, [first[:, 0], self.batch_count], [])
        return super().train_step(batch)

    def _record(self, ids: tf.Tensor, count: tf.Tensor) -> None:
        self.ids.append([int(sample) for sample in ids.numpy()[: int(count)]])


def digest(trainer: Trainer) -> int:
    """A checksum over all weights and optimizer variables, bit for bit."""
    total = 0
    for variable in [*trainer.model.weights, *trainer.model.optimizer.variables]:
        total = zlib.crc32(np.ascontiguousarray(variable.numpy()).tobytes(), total)
    return total
