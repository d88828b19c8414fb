"""Micro-batches: one update, whatever they are divided into."""

import keras
import numpy as np
import tensorflow as tf
from cases import case, message_of, ones
from cases_of_steps import compare, dense, numbers
from keras import layers

import fittrain
from fittrain.testing import probe_trainer, probe_weight


@case(1, 2, 3, 4)
def accumulated_probe(folder):
    found = {}
    for name, targets, batch_size, steps in [
        ("uneven", (0, 4, 4), 3, 2),
        ("fewer samples than micro-batches", (1, 2, 3), 4, 4),
        ("split", (1, 2, 3, 4), 4, 4),
        ("last batch", range(1, 11), 4, 3),
        ("more micro-batches than samples", (5,), 4, 8),
    ]:
        trainer = probe_trainer(accumulate_steps=steps)
        trainer.fit(*ones(*targets), batch_size=batch_size, shuffle=False, verbose=0)
        found[name] = [probe_weight(trainer), int(trainer.model.optimizer.iterations)]
    return found


@case(1, 2, 4)
def ways_to_divide_a_batch(folder):
    trainer = probe_trainer(accumulate_steps=4 // fittrain.size())
    trainer.fit(*ones(1, 2, 3, 4), batch_size=4, shuffle=False, verbose=0)
    return probe_weight(trainer)


@case(2, 3, costly=True)
def accumulated_updates(folder):
    """Weight decay, schedules and Adam's counter advance once for each update."""
    model = keras.Sequential(
        [keras.Input((1,)), layers.Dense(1, use_bias=False, kernel_initializer="ones")]
    )
    decay = keras.optimizers.SGD(0.1, weight_decay=0.1)
    trainer = fittrain.Trainer(model, optimizer=decay, loss="mse", accumulate_steps=4)
    zeros = np.zeros((8, 1), "float32")
    trainer.fit(zeros, zeros, batch_size=8, verbose=0)

    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0], [1.0, 2.0])
    stepped = probe_trainer(
        optimizer=keras.optimizers.SGD(schedule), accumulate_steps=4, steps_per_execution=1
    )
    moves = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            moves.append(probe_weight(stepped))

    stepped.fit(*ones(*[0.5] * 16), batch_size=8, shuffle=False, callbacks=[Watch()], verbose=0)
    return {
        "decayed": float(model.get_weights()[0].item()),
        "moves": moves,
        "iterations": int(stepped.model.optimizer.iterations),
        "adam": compare(
            dense,
            numbers,
            lambda: {"optimizer": keras.optimizers.Adam(0.01), "loss": "mse"},
            samples=30,
            batch_size=12,
            accumulate_steps=3,
        ),
    }


@case(2)
def accumulated_embedding(folder):
    def build():
        return keras.Sequential(
            [
                keras.Input((3,), dtype="int64"),
                layers.Embedding(10, 4),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )

    def data(samples):
        generator = np.random.default_rng(samples)
        # Every row once in a batch: Keras's Adam does not add up repeated rows before squaring.
        words = np.stack([generator.permutation(10)[:3] for _ in range(samples)])
        return words, words.sum(axis=1, keepdims=True).astype("float32") / 10

    return compare(
        build,
        data,
        lambda: {"optimizer": keras.optimizers.SGD(0.1), "loss": "mse"},
        accumulate_steps=2,
    )


@case(2)
def what_cannot_be_accumulated(folder):
    class Twice(fittrain.Trainer):
        def train_step(self, batch):
            super().train_step(batch)
            return super().train_step(batch)

    class Inside(fittrain.Trainer):
        def train_step(self, batch):
            return tf.function(super().train_step, autograph=False)(batch)

    def fit(trainer_class):
        trainer = probe_trainer(trainer=trainer_class, accumulate_steps=2)
        trainer.fit(*ones(1, 2, 3, 4), batch_size=4, verbose=0)

    return [message_of(lambda trainer=trainer: fit(trainer)) for trainer in (Twice, Inside)]
