"""Resident memory of a rank that trains on a large memory map; printed as `growth RANK BYTES`."""

import sys

import keras
import numpy as np
import psutil

import fittrain

path, rows, columns = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
fittrain.init("mpi")
x = np.memmap(path, "float32", "r", shape=(rows, columns))
y = np.zeros((rows, 1), "float32")
trainer = fittrain.Trainer(
    keras.Sequential([keras.Input((columns,)), keras.layers.Dense(1)]), optimizer="sgd", loss="mse"
)
# Everything that any training needs is there after a short one.
trainer.fit(x[:2048], y[:2048], batch_size=256, verbose=0)
process = psutil.Process()
before, peak = process.memory_info().rss, 0


class Peak(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        global peak
        peak = max(peak, process.memory_info().rss)


trainer.fit(x, y, batch_size=256, verbose=0, callbacks=[Peak()] if sys.argv[4] == "steps" else [])
peak = max(peak, process.memory_info().rss)
print("growth", fittrain.rank(), peak - before, flush=True)
