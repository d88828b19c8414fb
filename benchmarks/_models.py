"""Models and synthetic data for them: steps of microseconds to tens of milliseconds.

Synopsis::

    workload = WORKLOADS["cnn"]
    model = workload.build()
    model.compile(workload.optimizer(), loss_of(workload), workload.metrics)
    x, y = workload.data()
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

USERS, ITEMS, WIDTH = 50_000, 20_000, 32
LETTERS, CONTEXT = 65, 64


@dataclass
class Workload:
    """One model and how it is trained.

    Args:
        title: for tables.
        build: makes the model.
        data: makes (x, y).
        optimizer: makes the optimizer.
        loss: name of the loss.
        metrics: names of the metrics.
        batch: rows of one update on each rank.
        block: updates in one call of the loop written by hand.
    """

    title: str
    build: Callable[[], keras.Model]
    data: Callable[[], tuple[Any, Any]]
    optimizer: Callable[[], keras.Optimizer]
    loss: str
    metrics: list[str]
    batch: int
    block: int


def mlp() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((20,)),
            layers.Dense(64, activation="relu"),
            layers.Dense(64, activation="relu"),
            layers.Dense(1),
        ]
    )


def mlp_data():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(32 * 4096, 20)).astype("float32")
    return x, x[:, :1] * x[:, 1:2] + x[:, 2:3]


def cnn() -> keras.Model:
    """The convolutional network that tutorials train on MNIST; 1.2 million weights."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Dropout(0.25),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(10),
        ]
    )


def small_cnn() -> keras.Model:
    """Two convolutions with pooling and one dense layer; 35 thousand weights."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(10),
        ]
    )


def images(count: int):
    def data():
        generator = np.random.default_rng(0)
        x = generator.random(size=(count, 28, 28, 1), dtype="float32")
        return x, generator.integers(0, 10, size=count)

    return data


class Positions(keras.layers.Layer):
    """Adds a learned vector to every place of a text."""

    def build(self, shape):
        self.table = self.add_weight(shape=shape[1:], initializer="normal", name="table")

    def call(self, x):
        return x + self.table


def transformer(blocks: int = 4, width: int = 128, heads: int = 4) -> keras.Model:
    """Predicts the next character; 0.8 million weights, pre-norm (Xiong et al. 2020)."""
    layers = keras.layers
    inputs = keras.Input((CONTEXT,), dtype="int32")
    x = Positions()(layers.Embedding(LETTERS, width)(inputs))
    for _ in range(blocks):
        seen = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(heads, width // heads)
        x = x + attention(seen, seen, use_causal_mask=True)
        seen = layers.LayerNormalization()(x)
        x = x + layers.Dense(width)(layers.Dense(4 * width, activation="gelu")(seen))
    return keras.Model(inputs, layers.Dense(LETTERS)(layers.LayerNormalization()(x)))


def text():
    letters = np.random.default_rng(0).integers(0, LETTERS, size=(512, CONTEXT + 1))
    return letters[:, :-1].astype("int32"), letters[:, 1:].astype("int32")


def recommender() -> keras.Model:
    """A rating from a user and an item; 2.2 million weights in two tables."""
    layers = keras.layers
    user, item = (keras.Input((), dtype="int32", name=name) for name in ("user", "item"))
    vectors = [layers.Embedding(USERS, WIDTH)(user), layers.Embedding(ITEMS, WIDTH)(item)]
    hidden = layers.Dense(64, activation="relu")(layers.Concatenate()(vectors))
    rating = layers.Dense(1)(hidden) + layers.Dot(axes=1)(vectors)
    return keras.Model({"user": user, "item": item}, rating)


def ratings():
    generator = np.random.default_rng(0)
    count = 256 * 128
    x = {
        "user": generator.integers(0, USERS, size=count).astype("int32"),
        "item": generator.integers(0, ITEMS, size=count).astype("int32"),
    }
    return x, generator.normal(size=(count, 1)).astype("float32")


def adam() -> keras.Optimizer:
    return keras.optimizers.Adam(1e-3)


CLASSES = "sparse_categorical_crossentropy"
WORKLOADS = {
    "mlp": Workload("MLP", mlp, mlp_data, adam, "mse", [], 32, 512),
    "small_cnn": Workload(
        "CNN, 35 k weights", small_cnn, images(4096), adam, CLASSES, ["accuracy"], 64, 16
    ),
    "cnn": Workload("CNN, 1.2 M weights", cnn, images(2048), adam, CLASSES, ["accuracy"], 64, 8),
    "transformer": Workload("transformer", transformer, text, adam, CLASSES, [], 16, 8),
    "recommender": Workload("recommender", recommender, ratings, adam, "mse", [], 256, 128),
}
"""By the name that `step.py --models` takes."""


def loss_of(workload: Workload) -> Any:
    """The compiled loss; classes are told by logits."""
    if workload.loss == CLASSES:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return workload.loss
