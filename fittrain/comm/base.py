"""The seam between the trainer and whatever moves arrays between ranks.

Owns the interface `Communicator` and everything that can be built on its few primitives. Does not
know MPI, Horovod or the launcher.

Synopsis::

    name, reason = fittrain.comm.choose("auto", size=8)
    communicator = fittrain.comm.create(name)
    mean, total, sums = communicator.weighted_mean(gradients, weight=batch_size, sums=[loss])
    communicator.agree({"batch_size": 256})      # raises on all ranks if they differ
    weights = communicator.broadcast(weights)    # any object, any size

Methods whose first line says *collective* must be reached by every rank, in the same order.
"""

from __future__ import annotations

import abc
import contextlib
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from fittrain.comm.agreement import describe_difference, digest, name_ranks
from fittrain.comm.progress import Progress
from fittrain.config import BROADCAST_CHUNK_BYTES
from fittrain.errors import ArgumentError, FittrainError, PeerError, RankMismatchError

Value = TypeVar("Value")
Error = TypeVar("Error", bound=Exception)
REDUCTIONS = ("sum", "min", "max")


class Communicator(abc.ABC):
    """How one rank exchanges arrays with the others.

    Attributes:
        name: the backend's name, as given to `Trainer(backend=...)`.
        rank: number of this process, from 0.
        size: number of processes.
        local_rank: number of this process among those on its host.
        local_size: number of processes on this host.
        node: number of this host, from 0.
        jit_compatible: whether `all_reduce` may run inside an XLA-compiled function.
        progress: which collective this rank is in, and how many it has entered.
    """

    name: str
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    node: int = 0
    jit_compatible: bool = False

    def __init__(self, *, chunk_bytes: int = BROADCAST_CHUNK_BYTES) -> None:
        self.chunk_bytes = chunk_bytes
        self.progress = Progress()

    @abc.abstractmethod
    def all_reduce(self, flat: Any, name: str = "gradients") -> Any:
        """Collective, in the graph: element-wise sum over ranks of one flat tensor.

        Args:
            flat: the same shape and dtype on all ranks.
            name: tells exchanges of one step apart, the same on all ranks.
        """

    @abc.abstractmethod
    def all_gather(self, rows: Any, name: str = "rows") -> Any:
        """Collective, in the graph: the rows of all ranks, one rank's after the other.

        Args:
            rows: shape (n, ...), where n may differ between ranks and may be 0; dtype and the other
                dimensions are the same on all ranks.
            name: tells exchanges of one step apart, the same on all ranks.

        Returns:
            Shape (sum of n over ranks, ...), in rank order, the same on all ranks.
        """

    @abc.abstractmethod
    def _reduce(self, array: np.ndarray, op: str) -> np.ndarray:
        """Collective: element-wise reduction over ranks of a host array."""

    @abc.abstractmethod
    def _broadcast_bytes(self, buffer: memoryview, root: int) -> None:
        """Collective: fills `buffer` (writable bytes) on every rank with `root`'s."""

    @abc.abstractmethod
    def _send_bytes(self, buffer: memoryview, source: int, root: int) -> None:
        """Called on two ranks: fills `buffer` on `root` with that of `source`."""

    @abc.abstractmethod
    def _gather(self, value: Any) -> list[Any]:
        """Collective: every rank's `value` (a small picklable object), in rank order."""

    @abc.abstractmethod
    def barrier(self) -> None:
        """Collective: returns when every rank has called it."""

    @abc.abstractmethod
    def end_job(self, report: Callable[[], None], exit_code: int) -> None:
        """Shows `report` and ends all ranks. Returns only where the error itself ends the job."""

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Context in which model variables must be created."""
        return contextlib.nullcontext()

    def run(self, step: Callable[..., Value], *arguments: Any) -> Value:
        """Executes `step` on this rank."""
        return step(*arguments)

    @property
    def is_chief(self) -> bool:
        """Whether this rank speaks and writes for all: rank 0."""
        return self.rank == 0

    def weighted_mean(
        self,
        gradients: Sequence[Any],
        weight: Any,
        sums: Sequence[Any] = (),
        name: str = "gradients",
        *,
        weighted: bool = False,
        wire_dtype: str | None = None,
    ) -> tuple[list[Any], Any, list[Any]]:
        """Collective, in the graph: weighted mean of gradients, and plain sums over ranks.

        Dense gradients take one exchange for each dtype, and the float32 one carries `weight` and
        `sums` too. Sparse gradients, and half precision, are preceded by one small exchange.
        `None` entries pass through. A rank whose weight is 0 takes part without influence.

        Args:
            gradients: tensors of any shape, tf.IndexedSlices or None, in the same order on all
                ranks.
            weight: scalar; the mean is sum(weight * gradient) / sum(weight) over ranks.
            sums: scalars to be added up over ranks, unweighted.
            name: tells exchanges of one step apart, the same on all ranks.
            weighted: whether `gradients` are multiplied by their weights already, as sums over
                several batches are.
            wire_dtype: "float16" halves what travels of gradients whose sums are float32, and
                rounds each to 11 bits; None keeps their precision.

        Returns:
            The means in the order of `gradients`, the total weight, and the reduced `sums`. Sparse
            gradients stay sparse, with every row once, unless their shape alone says that they
            are no smaller than their table.

        Raises:
            ArgumentError: if `wire_dtype` is neither None nor "float16", or a sparse gradient has
                no `dense_shape`.
        """
        from fittrain.comm.flat import reduce_weighted

        return reduce_weighted(
            self, gradients, weight, sums, name, weighted=weighted, wire_dtype=wire_dtype
        )

    def average(self, gradients: Sequence[Any]) -> list[Any]:
        """Collective, in the graph: plain mean over ranks; `None` entries pass through."""
        means, _, _ = self.weighted_mean(gradients, weight=1.0)
        return means

    def reduce(self, array: Any, op: str = "sum") -> np.ndarray:
        """Collective: `array` reduced over ranks element by element, the same bits on all.

        Args:
            array: numbers of any shape, the same shape and dtype on all ranks.
            op: "sum", "min" or "max".

        Raises:
            ArgumentError: if `op` is none of these.
        """
        if op not in REDUCTIONS:
            raise ArgumentError(f"`op` must be one of {REDUCTIONS}. Received: op={op!r}.")
        with self.progress.enter(f"reduce({op})"):
            return self._reduce(np.asarray(array), op)

    def gather(self, value: Value) -> list[Value]:
        """Collective: every rank's `value` (a small picklable object), in rank order."""
        with self.progress.enter("gather"):
            return self._gather(value)

    def broadcast(self, value: Value, root: int = 0) -> Value:
        """Collective: `root`'s value on every rank. Any picklable object of any size.

        Pickled bytes travel in pieces of `chunk_bytes`, since MPI counts have 31 bits.

        Raises:
            ArgumentError: if `root` is no rank.
        """
        self._check_root(root)
        with self.progress.enter("broadcast"):
            payload = pickle.dumps(value, protocol=5) if self.rank == root else b""
            length = self._broadcast_length(len(payload), root)
            buffer = bytearray(payload) if self.rank == root else bytearray(length)
            self._broadcast_pieces(memoryview(buffer), root)
            return value if self.rank == root else pickle.loads(buffer)  # noqa: S301

    def broadcast_array(self, array: np.ndarray, root: int = 0) -> np.ndarray:
        """Collective: `root`'s array on every rank; shape and dtype must agree beforehand."""
        with self.progress.enter("broadcast"):
            # Not ascontiguousarray: that would turn a scalar into a vector of one.
            own = np.array(array, order="C", copy=True)
            self._broadcast_pieces(own.reshape(-1).view(np.uint8).data, root)
            return own

    def broadcast_variables(self, variables: Sequence[Any], root: int = 0) -> None:
        """Collective: gives every Keras variable `root`'s value."""
        for variable in variables:
            variable.assign(self.broadcast_array(variable.numpy(), root))

    def concatenate(self, part: np.ndarray) -> np.ndarray:
        """Collective: every rank's rows, one part after the other, in rank order.

        Args:
            part: this rank's rows, shape (any number, ...), the same dtype on all ranks.
        """
        lengths = self.gather(len(part))
        pieces = [
            self.broadcast_array(
                part if rank == self.rank else np.empty((length, *part.shape[1:]), part.dtype),
                root=rank,
            )
            for rank, length in enumerate(lengths)
        ]
        return np.concatenate(pieces)

    def gather_rows(self, part: np.ndarray, root: int = 0) -> np.ndarray | None:
        """Collective: every rank's rows on one rank, one part after the other, in rank order.

        Rows go straight to their place, in pieces of `chunk_bytes`: `root` holds the result and its
        own part, and the other ranks only their own.

        Args:
            part: this rank's rows, shape (any number, ...).
            root: the rank that gets them.

        Returns:
            On `root` shape (sum of numbers over ranks, ...), on the others None.

        Raises:
            ArgumentError: if `root` is no rank.
            RankMismatchError: on all ranks, if dtypes or the other dimensions differ.
        """
        self._check_root(root)
        part = np.ascontiguousarray(part)
        self.agree({"shape of a row": part.shape[1:], "dtype": part.dtype.name})
        with self.progress.enter("gather rows"):
            ends = np.cumsum(self._gather(len(part)))
            whole = np.empty((ends[-1], *part.shape[1:]), part.dtype) if self.rank == root else None
            for source, end in enumerate(ends):
                held = part
                if whole is not None:
                    held = whole[ends[source - 1] if source else 0 : end]
                if source == root == self.rank:
                    held[:] = part
                elif self.rank in (source, root):
                    self._send_pieces(held, source, root)
        return whole

    def any(self, flag: bool) -> bool:
        """Collective: whether `flag` is true on at least one rank."""
        return bool(self.reduce(np.asarray([int(flag)], np.int64), "max")[0])

    def agree(self, values: Mapping[str, Any]) -> None:
        """Collective: refuses to go on unless all ranks hold the same `values`.

        Args:
            values: what must be equal, by name; small and picklable, compared by `repr`. Only a
                checksum travels unless they differ.

        Raises:
            RankMismatchError: on all ranks, naming the first difference, its ranks and values.
        """
        own = digest(values)
        with self.progress.enter("agree"):
            ends = self._reduce(np.concatenate([own, -own]), "min")
            if np.array_equal(ends[: own.size], -ends[own.size :]):
                return
            difference = describe_difference(self._gather(dict(values)))
        if difference:
            raise on_all_ranks(
                RankMismatchError(
                    f"{difference} Give every rank the same arguments, data and code."
                )
            )

    def raise_together(self, error: Exception | None) -> None:
        """Collective: if any rank brings an error, all ranks raise.

        A `FittrainError` is raised as its own class everywhere. Any other exception stays what it
        is on its rank, and the other ranks raise `PeerError`.
        """
        everyone = self.gather(None if error is None else _portable(error))
        failed = [(rank, *found) for rank, found in enumerate(everyone) if found is not None]
        if not failed:
            return
        if error is not None and not isinstance(error, FittrainError):
            raise on_all_ranks(error) if len(failed) == self.size else error
        _, kind, message = failed[0]
        ranks = [rank for rank, _, text in failed if text == message]
        if len(ranks) == self.size:
            raise on_all_ranks(error or kind(message))
        raise on_all_ranks(kind(f"{name_ranks(ranks)}: {message}")) from error

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Collective: a block whose error on any rank becomes an error on every rank."""
        error: Exception | None = None
        try:
            yield
        except Exception as caught:  # noqa: BLE001 - handed to every rank below
            error = caught
        self.raise_together(error)

    def _broadcast_length(self, length: int, root: int) -> int:
        header = np.asarray([length], np.int64)
        self._broadcast_bytes(header.view(np.uint8).data, root)
        return int(header[0])

    def _check_root(self, root: int) -> None:
        if not 0 <= root < self.size:
            raise ArgumentError(
                f"`root` must be a rank, from 0 to {self.size - 1}. Received: root={root!r}."
            )

    def _send_pieces(self, array: np.ndarray, source: int, root: int) -> None:
        buffer = array.reshape(-1).view(np.uint8).data
        for start in range(0, len(buffer), self.chunk_bytes):
            self._send_bytes(buffer[start : start + self.chunk_bytes], source, root)

    def _broadcast_pieces(self, buffer: memoryview, root: int) -> None:
        for start in range(0, len(buffer), self.chunk_bytes):
            self._broadcast_bytes(buffer[start : start + self.chunk_bytes], root)


def on_all_ranks(error: Error) -> Error:
    """Marks an error that every rank raises, so that one of them tells it."""
    error.__dict__["on_all_ranks"] = True
    return error


def raised_on_all_ranks(error: BaseException) -> bool:
    """Whether every rank raises this error."""
    return bool(getattr(error, "on_all_ranks", False))


def _portable(error: Exception) -> tuple[type[FittrainError], str]:
    """What other ranks raise for `error`: our own classes survive, foreign ones become peers'."""
    if isinstance(error, FittrainError):
        return type(error), str(error)
    return PeerError, f"{type(error).__name__}: {error}"
