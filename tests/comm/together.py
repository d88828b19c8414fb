"""Several ranks in one process: threads that exchange eager tensors, each in its turn."""

import threading

import numpy as np
import tensorflow as tf

from fittrain.testing import RecordingCommunicator

PATIENCE_SECONDS = 20


class Together(RecordingCommunicator):
    """One of several ranks that really differ; exchanges meet in `slots`."""

    def __init__(self, rank, size, slots, barrier):
        super().__init__(rank, size)
        self.slots, self.barrier_of_all = slots, barrier

    def all_reduce(self, flat, name="gradients"):
        self.calls.append(("all_reduce", name, flat.dtype.name, tuple(flat.shape)))
        theirs = self._meet(name, flat.numpy())
        with np.errstate(all="ignore"):
            total = theirs[0]
            for other in theirs[1:]:
                total = total + other
        return tf.constant(total)

    def all_gather(self, rows, name="rows"):
        self.calls.append(("all_gather", name, rows.dtype.name))
        return tf.constant(np.concatenate(self._meet(name, rows.numpy())))

    def _meet(self, name, value):
        self.slots[self.rank] = (name, value)
        self.barrier_of_all.wait(PATIENCE_SECONDS)
        names, values = zip(*self.slots, strict=True)
        self.barrier_of_all.wait(PATIENCE_SECONDS)
        assert len(set(names)) == 1, names
        return values


def run_together(size, function):
    """`function(communicator)` on `size` ranks; what each returned, and the communicators."""
    slots, barrier = [None] * size, threading.Barrier(size)
    ranks = [Together(rank, size, slots, barrier) for rank in range(size)]
    results, errors = [None] * size, []

    def work(rank):
        try:
            results[rank] = function(ranks[rank])
        except Exception as error:  # noqa: BLE001 - raised below, in the test
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results, ranks
