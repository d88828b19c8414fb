"""One process alone: a real backend, so that nothing else asks whether there are several ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fittrain.comm.base import Communicator
from fittrain.config import check_wire_dtype


class LocalCommunicator(Communicator):
    """The communicator of a single process: every exchange is with itself.

    Example:
        >>> LocalCommunicator().reduce([1, 2]).tolist()
        [1, 2]
    """

    name = "local"
    jit_compatible = True

    def all_reduce(self, flat: Any, name: str = "gradients") -> Any:
        """The sum over one rank: the tensor itself."""
        return flat

    def all_gather(self, rows: Any, name: str = "rows") -> Any:
        """The rows of one rank: the tensor itself."""
        return rows

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
        """The mean over one rank: no copies, and nothing travels in any precision."""
        from fittrain.comm.sparse import divide, merge_rows

        check_wire_dtype(wire_dtype)
        means = [merge_rows(gradient) for gradient in gradients]
        return [divide(mean, weight) for mean in means] if weighted else means, weight, list(sums)

    def _reduce(self, array: np.ndarray, op: str) -> np.ndarray:
        return np.array(array)

    def _broadcast_bytes(self, buffer: memoryview, root: int) -> None:
        """Nobody else to tell."""

    def _send_bytes(self, buffer: memoryview, source: int, root: int) -> None:
        """Nobody else to send to."""

    def _gather(self, value: Any) -> list[Any]:
        return [value]

    def barrier(self) -> None:
        """Nobody to wait for."""

    def end_job(self, report: Callable[[], None], exit_code: int) -> None:
        """Leaves it to the exception: it ends this process and shows itself."""
