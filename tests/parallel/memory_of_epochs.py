"""Resident memory after epoch 50 less that after epoch 5; printed as `growth RANK BYTES`."""

import keras
import numpy as np
import psutil

import fittrain

fittrain.init("mpi", seed=1)
generator = np.random.default_rng(0)
x, y = generator.normal(size=(20_000, 32)), generator.normal(size=(20_000, 1))
process, resident = psutil.Process(), []


class Watch(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        resident.append(process.memory_info().rss)


trainer = fittrain.Trainer(
    keras.Sequential([keras.Input((32,)), keras.layers.Dense(8), keras.layers.Dense(1)]),
    optimizer="adam",
    loss="mse",
    metrics=["mae"],
)
settings = {"batch_size": 512, "epochs": 50, "validation_data": (x[:2000], y[:2000])}
trainer.fit(x, y, callbacks=[Watch()], verbose=0, **settings)
print("growth", fittrain.rank(), resident[49] - resident[4], flush=True)
