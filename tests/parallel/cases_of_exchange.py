"""What travels between ranks: rows of sparse gradients, halves, and rows for one rank."""

import ctypes
import hashlib
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from cases import case, message_of
from cases_of_statistics import column, largest_difference

import fittrain
from fittrain import session
from fittrain.comm import mpi, sparse
from fittrain.testing import digest

SEVERAL_BACKENDS = ("horovod", "mpi")
WAYS = {"rows": 1e9, "table": -1.0}


def communicator():
    return session.current().communicator


def checksum(*arrays) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest()


def embedding_of_zeros() -> keras.Model:
    embedding = keras.layers.Embedding(10, 1, embeddings_initializer="zeros")
    return keras.Sequential([keras.Input((1,), dtype="int32"), embedding, keras.layers.Flatten()])


@case(2, backends=SEVERAL_BACKENDS)
def rows_of_different_ranks(folder):
    found = []
    for ids in ([[3], [5]], [[3], [3]]):
        trainer = fittrain.Trainer(
            embedding_of_zeros, optimizer=keras.optimizers.SGD(0.5), loss="mse"
        )
        x = np.asarray(ids, "int32")
        trainer.fit(x, column(2, 6), batch_size=2, shuffle=False, verbose=0)
        found.append(trainer.model.get_weights()[0].ravel().tolist())
    return found


def own_part(rank: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Values and row numbers of a rank, with rows that repeat."""
    generator = np.random.default_rng(rank)
    values = generator.normal(size=(count, 3)).astype("float32")
    return values, generator.integers(0, 12, count).astype("int32")


@case(2, 3, 4, backends=SEVERAL_BACKENDS)
def both_ways_of_sparse_gradients(folder):
    """The last rank has no weight, and rank 1 no rows; updates follow each other in one call."""
    rank, size = fittrain.rank(), fittrain.size()
    counts = [0 if one == 1 else 4 + 3 * one for one in range(size)]
    weights = [one + 1.0 for one in range(size - 1)] + [0.0]
    expected = np.zeros((12, 3))
    for one in range(size - 1):
        values, indices = own_part(one, counts[one])
        np.add.at(expected, indices, weights[one] * values / sum(weights))
    values, indices = own_part(rank, counts[rank])
    values = np.full_like(values, np.nan) if weights[rank] == 0 else values
    dense = np.full(5, float(rank + 1), "float32")

    def update(values, indices, wire_dtype, name):
        given = [
            tf.IndexedSlices(values, indices, tf.constant([12, 3])),
            tf.constant(dense),
            tf.IndexedSlices(2 * values, tf.cast(indices, tf.int64), tf.constant([12, 3])),
        ]
        first, mean, second = communicator().weighted_mean(
            given, weights[rank], name=name, wire_dtype=wire_dtype
        )[0]
        return tf.convert_to_tensor(first), mean, tf.convert_to_tensor(second)

    def run(wire_dtype, name):
        signature = [tf.TensorSpec([None, 3]), tf.TensorSpec([None], tf.int32)]

        @tf.function(input_signature=signature)
        def several(values, indices):
            total = [tf.zeros([12, 3]), tf.zeros([5]), tf.zeros([12, 3])]
            for _ in tf.range(3):
                # As in the trainer: no two updates at once, which would send one name twice.
                tf.autograph.experimental.set_loop_options(parallel_iterations=1)
                found = update(values, indices, wire_dtype, name)
                total = [sum_ + part for sum_, part in zip(total, found, strict=True)]
            return total

        return [tensor.numpy() / 3 for tensor in several(values, indices)]

    dense_mean = sum((one + 1) * w for one, w in enumerate(weights)) / sum(weights)
    results = {}
    for way, factor in WAYS.items():
        for wire_dtype in (None, "float16"):
            # Messages of one element: everything goes in pieces.
            with (
                mock.patch.object(sparse, "BYTES_OF_A_REDUCED_ELEMENT", factor),
                mock.patch.object(mpi, "MESSAGE_ELEMENTS", 1),
            ):
                first, mean, second = run(wire_dtype, f"{way}.{wire_dtype}")
            results[f"{way} {wire_dtype}"] = {
                "rows": float(np.abs(first - expected).max()),
                "double": float(np.abs(second - 2 * expected).max()),
                "dense": float(np.abs(mean - dense_mean).max()),
                "checksum": checksum(first, mean, second),
            }
    return results


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.5),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.1),
    "clipped": lambda: keras.optimizers.Adam(0.1, global_clipnorm=0.01),
}


def words(table_rows: int) -> keras.Model:
    keras.utils.set_random_seed(3)
    parts = [keras.layers.Embedding(table_rows, 2), keras.layers.Flatten(), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((3,), dtype="int32"), *parts])


@case(2, 3, backends=SEVERAL_BACKENDS)
def optimizers_with_sparse_gradients(folder):
    """Against one process that makes every gradient dense; 3 samples are few for 3 ranks."""
    generator = np.random.default_rng(0)
    found = {}
    for table_rows in (5, 1000):
        x = generator.integers(0, table_rows, (10, 3)).astype("int32")
        x[:, 1] = x[:, 0]
        y = generator.normal(size=(10, 1)).astype("float32")
        for name, optimizer in OPTIMIZERS.items():
            trainer = fittrain.Trainer(
                lambda rows=table_rows: words(rows), optimizer=optimizer(), loss="mse"
            )
            trainer.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
            plain, plain_optimizer = words(table_rows), optimizer()
            for start in [0, 4, 8] * 2:
                with tf.GradientTape() as tape:
                    predicted = plain(x[start : start + 4])
                    loss = tf.reduce_mean((predicted - y[start : start + 4]) ** 2)
                gradients = tape.gradient(loss, plain.trainable_variables)
                plain_optimizer.apply(
                    [tf.convert_to_tensor(gradient) for gradient in gradients],
                    plain.trainable_variables,
                )
            difference = largest_difference(trainer.model.get_weights(), plain.get_weights())
            found[f"{name} {table_rows}"] = [difference, digest(trainer)]
    return found


VOCABULARY, WIDTH = 50_000, 64
TABLE_BYTES = VOCABULARY * WIDTH * 4


class Tied(keras.layers.Layer):
    """An embedding whose table is the output layer's kernel too."""

    def __init__(self, vocabulary):
        super().__init__()
        self.table = self.add_weight(shape=(vocabulary, WIDTH), initializer="uniform")

    def call(self, ids):
        hidden = keras.ops.mean(keras.ops.take(self.table, ids, axis=0), axis=1)
        return keras.ops.matmul(hidden, keras.ops.transpose(self.table))


def tied(vocabulary: int) -> keras.Model:
    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.Input((4,), dtype="int32"), Tied(vocabulary)])


def every_row(vocabulary: int) -> keras.Model:
    """An embedding of which two samples use all rows: a sparse gradient as large as the table."""
    keras.utils.set_random_seed(3)
    embedding = keras.layers.Embedding(vocabulary, WIDTH)
    pooling = keras.layers.GlobalAveragePooling1D()
    ids = keras.Input((vocabulary // 2,), dtype="int32")
    return keras.Sequential([ids, embedding, pooling, keras.layers.Dense(1)])


def samples_of(build, vocabulary: int, samples: int):
    """Token ids, targets and the loss for `tied` or `every_row`."""
    if build is every_row:
        two = np.arange(vocabulary, dtype="int32").reshape(2, -1)
        return np.tile(two, (samples // 2, 1)), np.ones((samples, 1)), "mse"
    ids = np.random.default_rng(0).integers(0, vocabulary, (samples, 4)).astype("int32")
    return ids, ids[:, 0], keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def train_large_table(build, vocabulary: int):
    """Trains for 5 updates; the trainer, by how much memory grew, and what plain Keras gets."""
    batch_size = 2 * fittrain.size()
    x, y, loss = samples_of(build, vocabulary, 5 * batch_size)
    settings = {"batch_size": batch_size, "shuffle": False, "verbose": 0}
    trainer = fittrain.Trainer(
        lambda: build(vocabulary), optimizer=keras.optimizers.SGD(0.5), loss=loss
    )
    growths = []
    assert trainer.model.built
    with peak_growth(growths):
        trainer.fit(x, y, **settings)
    plain = build(vocabulary)
    plain.compile(keras.optimizers.SGD(0.5), loss)
    plain.fit(x, y, **settings)
    difference = largest_difference(trainer.model.get_weights(), plain.get_weights())
    return [growths[0] / TABLE_BYTES, difference, digest(trainer)]


@contextmanager
def peak_growth(found: list):
    """Appends by how many bytes the resident memory rises above what it was."""
    # Memory that was used and is free again would hide what is used now.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    yield
    found.append(memory("VmHWM") - before)


def memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


@case(2, 4, backends=SEVERAL_BACKENDS)
def memory_of_large_sparse_gradients(folder):
    found = {}
    for build in (tied, every_row):
        # What any training takes is there after a small one.
        train_large_table(build, 1000)
        found[build.__name__] = train_large_table(build, VOCABULARY)
    return found


@case(2, 3, 4, backends=SEVERAL_BACKENDS)
def gradients_in_half_precision(folder):
    rank, size = fittrain.rank(), fittrain.size()
    bad = [1.0, np.nan if rank == size - 1 else 1.0, 1e-3]
    infinite = [1.0, np.inf if rank == 0 else 1.0]
    drawn = [np.random.default_rng(one).normal(size=1001) for one in range(size)]
    given = [[30000.0], [1e-6], bad, infinite, [0.0], drawn[rank], [-1e30, 1e24]]
    weights = [one + 1.0 for one in range(size)]

    @tf.function
    def exchange():
        tensors = [tf.constant(part, tf.float32) for part in given]
        return communicator().weighted_mean(tensors, weights[rank], [1.0], wire_dtype="float16")

    means, total, (summed,) = exchange()
    large, small, nan, infinity, zero, random, huge = (mean.numpy() for mean in means)
    expected = np.average(drawn, axis=0, weights=weights)
    return {
        "large": large.tolist(),
        "small": small.tolist(),
        "finite": [bool(np.isfinite(nan).all()), bool(np.isfinite(infinity).all())],
        "zero": zero.tolist(),
        "random": float(np.abs(random - expected).max()),
        "huge": huge.tolist(),
        "sums": [float(total), float(summed)],
        "checksum": checksum(large, small, zero, random, huge),
    }


@case(1, 2, 3)
def rows_for_one_rank(folder):
    rank, size = fittrain.rank(), fittrain.size()
    parts = [np.arange(one * 2 * 3, dtype="float16").reshape(one * 2, 3) for one in range(size)]
    found = []
    for root in range(size):
        with mock.patch.object(communicator(), "chunk_bytes", 5):
            whole = communicator().gather_rows(parts[rank], root)
        found.append(None if whole is None else [whole.dtype.name, whole.tolist()])
    return {
        "found": found,
        "expected": ["float16", np.concatenate(parts).tolist()],
        "refusal": message_of(lambda: communicator().gather_rows(np.zeros((1, rank + 1)))),
    }


@case(2, backends=("mpi",))
def memory_of_rows_for_one_rank(folder):
    part = np.full((2**23, 1), 1.5, "float64")
    communicator().gather_rows(part[:8])
    growths = []
    with peak_growth(growths):
        whole = communicator().gather_rows(part)
    return [growths[0] / part.nbytes, None if whole is None else float(whole.sum())]
