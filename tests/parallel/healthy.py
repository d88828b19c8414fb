"""Jobs that must end well: each trial does something odd that harms nobody."""

import multiprocessing
import os
import sys
import time

import keras
import numpy as np

import fittrain
from fittrain.testing import probe_trainer


def fork(end):
    """Forks a child that ends as told; returns its exit code, once it is gone."""
    child = os.fork()
    if child == 0:
        end()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def raises():
    raise ValueError("boom-17")


def start_processes():
    """Exit codes of two processes of `multiprocessing`: one works, one fails."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=target) for target in (time.time, raises)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


class Odd(keras.callbacks.Callback):
    """In the middle of training, on rank 1: children that end, then a long pause."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0 and fittrain.rank() == 1:
            print("processes", start_processes(), flush=True)
            print("leaves in fit", fork(lambda: sys.exit(0)), flush=True)
            print("raises in fit", fork(raises), flush=True)
            # Longer than anything in the code waits for.
            time.sleep(6)


trial, run_dir = sys.argv[1:]
fittrain.init("mpi", run_dir=run_dir)
X = np.ones((8, 1), "float32")
TRAINER = probe_trainer(run_dir=run_dir)
if trial == "odd" and fittrain.rank() == 1:
    print("raises", fork(raises), flush=True)
    print("leaves", fork(lambda: sys.exit(0)), flush=True)
TRAINER.fit(X, X, batch_size=4, epochs=3, verbose=0, callbacks=[Odd()] if trial == "odd" else None)
if trial == "odd" and fittrain.is_chief():
    # The other rank is at its end long before.
    time.sleep(5)
print("finished", fittrain.rank(), flush=True)
if trial == "finalizes":
    from mpi4py import MPI

    MPI.Finalize()
