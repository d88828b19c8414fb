"""One timed training of the digits model; prints samples per second. Started by digits.py."""

import sys
import time

import fittrain
import keras
import numpy as np
from sklearn.datasets import load_digits

sys.path.insert(0, "examples")
from digits import build

PER_RANK, EPOCHS, COPIES = 64, 40, 4


def main(who: str, backend: str) -> None:
    x, y = load_digits(return_X_y=True)
    x = np.tile(x.reshape(-1, 8, 8, 1).astype("float32") / 16.0, (COPIES, 1, 1, 1))
    y = np.tile(y, COPIES)
    settings = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}
    if who == "keras":
        trainer = build()
        trainer.compile(optimizer="adam", **settings)
        size = 1
    else:
        trainer = fittrain.Trainer(build, optimizer="adam", backend=backend, **settings)
        size = fittrain.size()
    options = {"batch_size": PER_RANK * size, "verbose": 0}
    trainer.fit(x, y, epochs=2, **options)
    started = time.perf_counter()
    trainer.fit(x, y, epochs=EPOCHS, **options)
    if who == "keras" or fittrain.is_chief():
        print("samples_per_second", len(x) * EPOCHS / (time.perf_counter() - started))


if __name__ == "__main__":
    keras.utils.set_random_seed(1)
    main(*sys.argv[1:])
