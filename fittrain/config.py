"""Every default of fittrain, as frozen dataclasses. Nothing else holds a default value.

Synopsis::

    config = FitConfig(batch_size=256, epochs=20)
    config.batch_size_global(size=8)      # 256
"""

from __future__ import annotations

from dataclasses import dataclass

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


def check_positive(name: str, value: int | None) -> None:
    """Refuses anything but a positive integer (or None, meaning "not given").

    Raises:
        ArgumentError: if `value` is given and is not a positive integer.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ArgumentError(f"`{name}` must be a positive integer. Received: {name}={value!r}.")


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
        for name in (
            "batch_size",
            "batch_size_per_rank",
            "epochs",
            "validation_batch_size",
            "validation_freq",
        ):
            check_positive(name, getattr(self, name))
        if self.batch_size is not None and self.batch_size_per_rank is not None:
            raise ArgumentError(
                "`batch_size` is the global batch and `batch_size_per_rank` one rank's part of "
                f"it. Received: batch_size={self.batch_size}, "
                f"batch_size_per_rank={self.batch_size_per_rank}. Give one of them."
            )
        if not isinstance(self.initial_epoch, int) or self.initial_epoch < 0:
            raise ArgumentError(
                "`initial_epoch` must be a non-negative integer. "
                f"Received: initial_epoch={self.initial_epoch!r}."
            )

    def batch_size_global(self, size: int) -> int:
        """Samples in one update over `size` ranks."""
        if self.batch_size_per_rank is not None:
            return self.batch_size_per_rank * size
        return self.batch_size or KERAS_DEFAULT_BATCH_SIZE

    def validation_batch_size_global(self, size: int) -> int:
        """Samples in one validation batch over `size` ranks."""
        return self.validation_batch_size or self.batch_size_global(size)
