"""Which samples each rank uses in each update: arithmetic on positions, nothing else.

The samples of an epoch stand in one global order, which depends on the seed and the epoch alone.
Update s takes the positions [s * batch_size, (s + 1) * batch_size), and rank r a contiguous part of
them, so that the global batch is the same for every number of ranks. The last batch may be short
and ranks may get nothing of it; both are exact, since parts are weighted by their sample count.

Synopsis::

    sampler = Sampler(length=60_000, batch_size=256, rank=3, size=8, seed=7)
    part = sampler.part(epoch=0, first_update=10, updates=4)
    part.indices, part.rows, part.counts
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fittrain.data.permutation import Permutation
from fittrain.runtime.seeds import derive


@dataclass(frozen=True)
class Part:
    """This rank's samples of several consecutive updates.

    Args:
        indices: sample numbers, all updates one after the other, shape (sum of rows,).
        rows: rows of each update, shape (updates,). At least 1: an empty part holds one row
            that does not count, so that models never see an empty batch.
        counts: rows that count, shape (updates,); 0 where this rank has no sample.
        totals: rows that count over all ranks, shape (updates,).
    """

    indices: np.ndarray
    rows: np.ndarray
    counts: np.ndarray
    totals: np.ndarray


@dataclass(frozen=True)
class Sampler:
    """Deals the samples of an epoch out to updates and ranks.

    Args:
        length: number of samples in the data, at least 1.
        batch_size: samples in one update over all ranks.
        rank: this rank.
        size: number of ranks.
        seed: base of the order; ignored without `shuffle`.
        shuffle: whether each epoch has an order of its own.
        drop_remainder: whether an incomplete last batch is left out.
    """

    length: int
    batch_size: int
    rank: int = 0
    size: int = 1
    seed: int = 0
    shuffle: bool = True
    drop_remainder: bool = False
    _orders: dict[int, Permutation] = field(default_factory=dict, repr=False, compare=False)

    @property
    def updates(self) -> int:
        """Updates in an epoch, the same on all ranks."""
        if self.drop_remainder:
            return self.length // self.batch_size
        return -(-self.length // self.batch_size)

    @property
    def dropped(self) -> int:
        """Samples that no update of an epoch uses."""
        return max(0, self.length - self.updates * self.batch_size)

    @property
    def largest_part(self) -> int:
        """Rows of the largest part that any rank gets in an update."""
        return -(-min(self.batch_size, self.length) // self.size)

    def part(self, epoch: int, first_update: int, updates: int) -> Part:
        """This rank's samples of `updates` updates from `first_update` on."""
        starts = np.arange(first_update, first_update + updates, dtype=np.int64) * self.batch_size
        available = np.clip(self.length - starts, 0, self.batch_size)
        first = starts + available * self.rank // self.size
        counts = starts + available * (self.rank + 1) // self.size - first
        rows = np.maximum(counts, 1)
        # The row that stands in for an empty part: the update's first sample, which exists.
        first = np.where(counts > 0, first, starts)
        within = np.arange(rows.sum()) - np.repeat(np.cumsum(rows) - rows, rows)
        positions = np.repeat(first, rows) + within
        sizes = (vector.astype(np.int32) for vector in (rows, counts, available))
        return Part(self.order(epoch, positions), *sizes)

    def order(self, epoch: int, positions: np.ndarray) -> np.ndarray:
        """Sample numbers at `positions` of the epoch's global order."""
        if not self.shuffle:
            return positions
        if epoch not in self._orders:
            self._orders.clear()
            self._orders[epoch] = Permutation(self.length, derive(self.seed, "epoch", epoch))
        return self._orders[epoch](positions)
