"""Ranks that exchange gradients through Horovod's ring all-reduce (MPI on CPU, NCCL on GPU).

Of Horovod only its operations on tensors are used. Its optimizer, tape and callbacks are written
for Keras 2: around a Keras 3 optimizer `DistributedOptimizer` averages nothing, without an error.
"""

from __future__ import annotations

from typing import Any

from fittrain.comm.mpi import MpiCommunicator
from fittrain.errors import LaunchError, MissingDependencyError
from fittrain.horovod.features import explain, require_horovod

INSTALL_COMMAND = "fittrain horovod build"


def load_horovod() -> Any:
    """The module `horovod.tensorflow`.

    Raises:
        MissingDependencyError: if Horovod is missing or its compiled part does not load.
    """
    require_horovod()
    try:
        import horovod.tensorflow as hvd
    except Exception as error:  # noqa: BLE001 - its loader raises many kinds, all meaning this
        text = f"{type(error).__name__}: {error}"
        raise MissingDependencyError(
            explain(text)
            or f"Horovod does not load. Run `{INSTALL_COMMAND} --force`. ({' '.join(text.split())})"
        ) from error
    return hvd


class HorovodCommunicator(MpiCommunicator):
    """Gradients through Horovod, host collectives through mpi4py.

    Both speak to the same MPI library. A small host collective takes microseconds through mpi4py
    and a whole cycle of Horovod's coordinator otherwise.

    Raises:
        MissingDependencyError: if Horovod is missing or does not load.
        LaunchError: if Horovod and mpi4py count different numbers of ranks.
    """

    name = "horovod"

    def __init__(self, **options: Any) -> None:
        self._hvd = load_horovod()
        super().__init__(**options)
        self._hvd.init()
        if self._hvd.size() != self.size or self._hvd.rank() != self.rank:
            raise LaunchError(
                f"Horovod says rank {self._hvd.rank()} of {self._hvd.size()} and mpi4py rank "
                f"{self.rank} of {self.size}: they are linked to different MPI libraries. "
                f"Rebuild Horovod against this one: {INSTALL_COMMAND} --force"
            )

    def all_reduce(self, flat: Any, name: str = "gradients") -> Any:
        """Collective, in the graph: sum over ranks by Horovod."""
        return self._hvd.allreduce(
            flat, op=self._hvd.Sum, name=_full_name(name, flat), ignore_name_scope=True
        )

    def all_gather(self, rows: Any, name: str = "rows") -> Any:
        """Collective, in the graph: rows of all ranks by Horovod."""
        gathered = self._hvd.allgather(rows, name=_full_name(name, rows), ignore_name_scope=True)
        gathered.set_shape([None, *rows.shape[1:]])
        return gathered


def _full_name(name: str, tensor: Any) -> str:
    """The name ranks meet under; two exchanges of one name at a time would end the job.

    Never with the scopes around it: TensorFlow numbers those of branches by what else is in the
    program, which may be another one on another rank.
    """
    return f"fittrain.{name}.{tensor.dtype.name}"
