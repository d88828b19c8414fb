"""Batch normalisation's moving averages and the like, which every rank collects for itself.

They drift apart by nature, since each rank sees its own samples. They are averaged over ranks,
weighted by samples, before anything reads them: validation, callbacks at the end of an epoch,
saving.
"""

from __future__ import annotations

import numpy as np

from fittrain.comm.base import Communicator
from fittrain.replica import Replica


def average(replica: Replica, communicator: Communicator, weight: int) -> None:
    """Collective: gives all ranks the weighted mean of each statistic that differs between them.

    Args:
        replica: built models.
        communicator: how ranks talk.
        weight: samples that this rank has seen since the last call.
    """
    variables = replica.statistics()
    if not variables:
        return
    own = np.concatenate([np.ravel(variable.numpy()).astype(np.float64) for variable in variables])
    ends = communicator.reduce(np.concatenate([own, -own]), "min")
    differs = ends[: len(own)] != -ends[len(own) :]
    summed = communicator.reduce(np.concatenate([own * weight, [weight]]))
    # What is equal everywhere stays as it is, to the last bit.
    mean = np.where(differs, summed[:-1] / max(summed[-1], 1.0), own)
    position = 0
    for variable in variables:
        size = int(np.prod(variable.shape))
        variable.assign(mean[position : position + size].reshape(variable.shape))
        position += size
