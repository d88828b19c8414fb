"""Jobs that must end: each trial makes something go wrong on one rank."""

import os
import signal
import sys
import time
from pathlib import Path

import keras
import numpy as np

import fittrain
from fittrain.testing import Ledger, probe_trainer


class BoomInData(Ledger):
    """Raises in the part of the step that runs in Python, on rank 2 at update 3."""

    def _record(self, ids, count):
        super()._record(ids, count)
        if fittrain.rank() == fittrain.size() - 2 and len(self.ids) == 3:
            boom()


class At(keras.callbacks.Callback):
    """Calls `action` on one rank at the end of epoch 2."""

    def __init__(self, rank, action):
        super().__init__()
        self.rank, self.action = rank, action

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and fittrain.rank() == self.rank:
            note_fault()
            self.action()


class Infinite(fittrain.Trainer):
    """Every loss is infinite."""

    def compute_loss(self, x, y, y_pred, sample_weight):
        return super().compute_loss(x, y, y_pred, sample_weight) * float("inf")


def note_fault():
    """When it happened: how long the job lives on is what tests measure."""
    Path(run_dir, "fault").write_text(str(time.time()))


def boom():
    note_fault()
    raise ValueError("boom-17")


def drift():
    weights = TRAINER.model.get_weights()
    TRAINER.model.set_weights([w + 1e-3 for w in weights])


trial, run_dir, backend = sys.argv[1:]
fittrain.init(backend, run_dir=run_dir)
LAST = fittrain.size() - 1
X = np.ones((64, 1), "float32")
ACTIONS = {
    "callback": (0, boom),
    "sys_exit": (LAST, lambda: sys.exit(3)),
    "sys_exit_0": (LAST, lambda: sys.exit(0)),
    "os_exit": (LAST, lambda: os._exit(5)),
    "sigkill": (LAST, lambda: os.kill(os.getpid(), signal.SIGKILL)),
    "sigsegv": (LAST, lambda: os.kill(os.getpid(), signal.SIGSEGV)),
    "drift": (1, drift),
    "frozen_drift": (1, drift),
}

trainer_class = BoomInData if trial == "data" else Ledger
TRAINER = probe_trainer(trainer=trainer_class, run_dir=run_dir)
if trial == "infinite":
    TRAINER = probe_trainer(trainer=Infinite, precision="mixed_float16", run_dir=run_dir)
    X = np.ones((800, 1), "float32")
if trial == "frozen_drift":
    layers = [keras.layers.Dense(1, name="frozen", trainable=False), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((1,)), *layers])
    TRAINER = fittrain.Trainer(model, optimizer="sgd", loss="mse", run_dir=run_dir)
if trial == "refused":
    # An argument that cannot work, on one rank only.
    TRAINER.fit(X, X, batch_size=8, epochs=0 if fittrain.rank() == 1 else 1, verbose=0)
if trial == "before_fit" and fittrain.rank() == LAST:
    boom()
if trial == "sys_exit_before_fit" and fittrain.rank() == LAST:
    note_fault()
    sys.exit(3)
if trial == "leaves" and fittrain.rank() == LAST:
    note_fault()
    sys.exit(0)
if trial == "caught" and fittrain.rank() == LAST:
    try:
        TRAINER.fit(X, X, batch_size=8, epochs=6, verbose=0, callbacks=[At(LAST, boom)])
    except ValueError:
        time.sleep(600)
chosen = [At(*ACTIONS[trial])] if trial in ACTIONS else []
if trial == "caught":
    chosen = [At(LAST, boom)]
TRAINER.fit(X, X, batch_size=8, epochs=6, verbose=0, callbacks=chosen)
if trial in ("save", "evaluate") and fittrain.is_chief():
    # The others do not make this call.
    note_fault()
    TRAINER.save(Path(run_dir, "model.keras")) if trial == "save" else TRAINER.evaluate(X, X)
if trial in ("save", "evaluate"):
    sys.exit()
print("finished", fittrain.rank())
