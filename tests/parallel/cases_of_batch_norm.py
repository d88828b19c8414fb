"""Batch normalisation over the samples of all ranks."""

import keras
import numpy as np
import tensorflow as tf
from cases import case
from cases_of_statistics import column, largest_difference

import fittrain
from fittrain.layers import SyncBatchNormalization, convert_batch_norm
from fittrain.testing import digest

BACKENDS = ("horovod", "mpi")


class SeeOutputs(fittrain.Trainer):
    """Keeps what the normalisation gave for the samples of this rank."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.outputs = []

    def compute_loss(self, x, y, y_pred, sample_weight):
        tf.py_function(lambda seen: self.outputs.append(seen.numpy().tolist()), [y_pred], [])
        return super().compute_loss(x, y, y_pred, sample_weight)


def two_samples(layer):
    """Inputs 0 and 10 in one batch; the first update moves everything that can be moved."""
    keras.utils.set_random_seed(3)
    inputs = [keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones"), layer]
    model = keras.Sequential(inputs)
    return model, {"x": column(0, 10), "y": column(1, 5), "batch_size": 2, "verbose": 0}


@case(2, backends=BACKENDS)
def batch_norm_over_two_single_samples(folder):
    model, data = two_samples(SyncBatchNormalization(momentum=0.9, name="norm"))
    trainer = SeeOutputs(model, optimizer=keras.optimizers.SGD(0.1), loss="mse")
    trainer.fit(**data, shuffle=False)
    plain, data = two_samples(keras.layers.BatchNormalization(momentum=0.9))
    plain.compile(keras.optimizers.SGD(0.1), "mse")
    plain.fit(**data, shuffle=False)
    layer = model.get_layer("norm")
    return {
        # The last: the loss is tried on a few rows before the first update.
        "outputs": trainer.outputs[-1][0],
        "moving": [layer.moving_mean.numpy().item(), layer.moving_variance.numpy().item()],
        "from_keras": largest_difference(model.get_weights(), plain.get_weights()),
        "digest": digest(trainer),
    }


def convolutional():
    keras.utils.set_random_seed(3)
    norm = keras.layers.BatchNormalization
    return keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            keras.layers.Conv2D(4, 3, activation="tanh"),
            norm(name="first"),
            keras.layers.Conv2D(3, 3, activation="tanh"),
            norm(name="second", momentum=0.5),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )


def with_a_shared_one():
    keras.utils.set_random_seed(3)
    inputs = keras.Input((4,))
    shared = keras.layers.BatchNormalization(name="shared", momentum=0.5)
    x = shared(keras.layers.Dense(4, activation="tanh")(inputs))
    x = shared(keras.layers.Dense(4, activation="tanh")(x))
    return keras.Model(inputs, keras.layers.Dense(1)(x))


def masked():
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.Input((5, 2)),
            keras.layers.Masking(),
            keras.layers.Dense(3, activation="tanh"),
            keras.layers.BatchNormalization(momentum=0.5),
            keras.layers.LSTM(3),
            keras.layers.Dense(1),
        ]
    )


def channels_first():
    keras.utils.set_random_seed(3)
    norm = keras.layers.BatchNormalization(axis=1)
    shape = [keras.Input((6, 6, 2)), keras.layers.Dense(3), keras.layers.Permute((3, 1, 2)), norm]
    return keras.Sequential([*shape, keras.layers.Flatten(), keras.layers.Dense(1)])


def samples(*shape):
    generator = np.random.default_rng(0)
    x = generator.normal(size=shape).astype("float32")
    # In sorted order, so that the parts of a batch differ and their own moments would be wrong.
    x = x[np.argsort(x.reshape(len(x), -1).sum(axis=1))]
    return x, x.reshape(len(x), -1)[:, :3].sum(axis=1, keepdims=True)


def against_keras(build, x, y, **compiled):
    """Largest difference of the weights after training on all ranks, and in plain Keras."""
    # On 2 ranks parts of 2 and 2, then 1 and 1; on 3 of 1, 1, 2, and one is empty at the end.
    settings = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}
    compiled = {"loss": "mse", "jit_compile": False, **compiled}
    plain = build()
    model = convert_batch_norm(plain)
    plain.compile(optimizer=keras.optimizers.SGD(0.02, momentum=0.5), **compiled)
    model.compile(optimizer=keras.optimizers.SGD(0.02, momentum=0.5), **compiled)
    plain.fit(x, y, **settings)
    trainer = fittrain.Trainer(model)
    trainer.fit(x, y, **settings)
    return {
        "weights": largest_difference(model.get_weights(), plain.get_weights()),
        "digest": digest(trainer),
    }


@case(2, 3, backends=BACKENDS)
def batch_norm_equals_plain_keras(folder):
    images, steps = samples(10, 6, 6, 2), samples(10, 5, 2)
    steps[0][:, 3:] = 0.0
    steps[0][5:, 1:] = 0.0
    return {
        "convolutional": against_keras(convolutional, *images),
        "eager": against_keras(convolutional, *images, run_eagerly=True),
        "shared": against_keras(with_a_shared_one, *samples(10, 4)),
        "masked": against_keras(masked, *steps),
        "channels first": against_keras(channels_first, *images),
    }


@case(2, 3, backends=("mpi",))
def batch_norm_of_half_precision(folder):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = convert_batch_norm(convolutional())
    finally:
        keras.config.set_dtype_policy("float32")
    x, y = samples(10, 6, 6, 2)
    trainer = fittrain.Trainer(model, optimizer=keras.optimizers.SGD(0.02), loss="mse")
    trainer.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    mean = model.get_layer("first").moving_mean
    return [digest(trainer), mean.dtype, bool(np.isfinite(mean.numpy()).all())]


@case(2, 3, backends=BACKENDS)
def batch_norm_far_from_zero(folder):
    keras.utils.set_random_seed(3)
    layer = SyncBatchNormalization(momentum=0.0)
    model = keras.Sequential([keras.Input((2,)), layer, keras.layers.Dense(1)])
    x = np.random.default_rng(0).normal(1000.0, 1.0, size=(512, 2)).astype("float32")
    trainer = fittrain.Trainer(model, optimizer="sgd", loss="mse")
    trainer.fit(x, x[:, :1] - 1000, batch_size=512, verbose=0)
    exact = x.astype("float64").var(axis=0)
    return float(np.abs(layer.moving_variance.numpy() / exact - 1).max())
