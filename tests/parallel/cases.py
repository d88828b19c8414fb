"""What every rank of a test job does, case after case; the tests judge what they return.

More cases are in `cases_of_*.py`, which import what they share from here.
A case gets a folder shared by the ranks and returns something that JSON can hold.
"""

import hashlib
import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
from fittrain.callbacks import TensorBoard

import fittrain
from fittrain import session
from fittrain.errors import FittrainError
from fittrain.testing import Ledger, digest, probe_trainer, probe_weight


@dataclass
class Case:
    function: Callable[[Path], object]
    ranks: tuple[int, ...]
    backends: tuple[str, ...]
    costly: bool = False


CASES: list[Case] = []
ALL = (1, 2, 3, 4)
SPARED = {("horovod", 1), ("mpi", 1), ("horovod", 3)}
"""Jobs without the costly cases, which others show as well."""


def case(*ranks: int, backends: tuple[str, ...] = ("local", "horovod", "mpi"), costly=False):
    """Registers a case for these numbers of ranks; one backend is enough where none matters."""

    def register(function):
        CASES.append(Case(function, ranks or ALL, backends, costly))
        return function

    return register


def ones(*targets: float):
    y = np.asarray(targets, "float32")[:, None]
    return np.ones_like(y), y


def message_of(call) -> list[str]:
    """Class and text of the refusal that `call` ends with."""
    try:
        call()
    except FittrainError as error:
        return [type(error).__name__, str(error)]
    return ["nothing", ""]


def mlp(seed: int = 3) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(16, activation="tanh"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )


def toy(samples: int = 48):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(samples, 5)).astype("float32")
    return x, (x.sum(axis=1, keepdims=True) > 0).astype("float32")


def without_counters(history: dict) -> dict:
    """The history with automatic metric names (auc, auc_1) as one."""
    return {re.sub(r"_\d+$", "", name): values for name, values in history.items()}


def against_keras(optimizer: Callable[[], keras.Optimizer], samples: int = 48, weights=None):
    """Differences between `Trainer.fit` on all ranks and plain Keras on this rank."""
    (x, y), (xv, yv) = toy(samples), toy(13)
    settings = {"batch_size": 8, "epochs": 3, "shuffle": False, "verbose": 0}
    settings |= {"validation_data": (xv, yv)}
    compiled = {"loss": "binary_crossentropy", "metrics": ["accuracy", keras.metrics.AUC()]}
    plain = mlp()
    plain.compile(optimizer=optimizer(), **compiled)
    expected = plain.fit(x, y, sample_weight=weights, **settings).history
    compiled["metrics"] = ["accuracy", keras.metrics.AUC()]
    trainer = fittrain.Trainer(mlp, optimizer=optimizer(), **compiled)
    history = trainer.fit(x, y, sample_weight=weights, **settings).history
    found, wanted = without_counters(history), without_counters(expected)
    pairs = zip(trainer.model.get_weights(), plain.get_weights(), strict=True)
    return {
        "weights": max(float(np.abs(a - b).max()) for a, b in pairs),
        "history": max(float(np.abs(np.subtract(found[k], wanted[k])).max()) for k in wanted),
        "names": [sorted(found), sorted(wanted)],
        "logs": {name: [repr(v) for v in values] for name, values in history.items()},
        "digest": digest(trainer),
    }


@case()
def probe(folder):
    found = {}
    for name, targets, batch_size in [
        ("even", range(1, 9), 8),
        ("updates", range(1, 9), 4),
        ("partial", range(1, 11), 4),
        ("few", range(1, 4), 4),
        ("single", [5], 4),
    ]:
        trainer = probe_trainer()
        trainer.fit(*ones(*targets), batch_size=batch_size, shuffle=False, verbose=0)
        found[name] = probe_weight(trainer)
    return found


@case()
def equivalent_to_keras(folder):
    return against_keras(lambda: keras.optimizers.SGD(0.1, momentum=0.9))


@case(1, 2, 3)
def equivalent_to_keras_with_adam_and_a_partial_batch(folder):
    return against_keras(lambda: keras.optimizers.Adam(1e-2), samples=45)


@case(1, 2)
def equivalent_to_keras_with_sample_weights_and_clipping(folder):
    weights = np.linspace(0.1, 2.0, 48, dtype="float32")
    return against_keras(lambda: keras.optimizers.SGD(0.1, clipnorm=0.05), weights=weights)


@case(1, 2, 4)
def constant_loss(folder):
    found = []
    for batch_size in (1, 4, 7):
        trainer = fittrain.Trainer(
            keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]),
            optimizer="sgd",
            loss=lambda y, y_pred: 3.0 + 0.0 * y_pred,
        )
        x, y = ones(*range(10))
        history = trainer.fit(x, y, batch_size=batch_size, validation_data=(x, y), verbose=0)
        found += [history.history["loss"][0], history.history["val_loss"][0]]
    return found


@case(1, 2, 3, 4)
def ledger(folder):
    trainer = probe_trainer(trainer=Ledger, seed=11)
    x = np.arange(10, dtype="float32")[:, None]
    trainer.fit(x, x, batch_size_per_rank=1, epochs=3, verbose=0)
    return trainer.ids


@case(2, 4)
def shuffled_ledger(folder):
    runs = []
    x = np.arange(16, dtype="float32")[:, None]
    for _ in range(2):
        trainer = probe_trainer(trainer=Ledger, seed=5)
        trainer.fit(x, x, batch_size_per_rank=1, epochs=3, verbose=0)
        runs.append(trainer.ids)
    return runs


@case(2, 3)
def weights_at_every_epoch(folder):
    seen = []

    class Watch(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(digest(trainer))

    x, y = toy(100)
    trainer = fittrain.Trainer(mlp, optimizer="adam", loss="binary_crossentropy", seed=1)
    trainer.fit(x, y, batch_size=10, epochs=5, callbacks=[Watch()], verbose=0)
    return seen


@case(2)
def late_built_model(folder):
    class Late(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden, self.out = keras.layers.Dense(8), keras.layers.Dense(1)

        def call(self, x):
            return self.out(self.hidden(x))

    def seeded(seed):
        keras.utils.set_random_seed(seed)
        return Late()

    x, y = toy(8)
    trainer = fittrain.Trainer(
        lambda: seeded(fittrain.rank()), optimizer="sgd", loss="mse", steps_per_execution=1
    )
    trainer.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    plain = seeded(0)
    plain.compile("sgd", "mse")
    plain.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    pairs = zip(trainer.model.get_weights(), plain.get_weights(), strict=True)
    return {
        "difference": max(float(np.abs(a - b).max()) for a, b in pairs),
        "digest": digest(trainer),
    }


@case(2, 4)
def dropout_masks(folder):
    runs = []
    for _ in range(2):
        layer = None

        def build():
            nonlocal layer
            keras.utils.set_random_seed(40)
            layer = keras.layers.Dropout(0.5)
            return keras.Sequential([keras.Input((64,)), layer, keras.layers.Dense(1)])

        trainer = fittrain.Trainer(build, optimizer=keras.optimizers.SGD(0.0), loss="mse", seed=40)
        trainer.fit(np.ones((8, 64)), np.ones((8, 1)), batch_size=8, verbose=0)
        mask = layer(np.ones((1, 64), "float32"), training=True).numpy() > 0
        runs.append({"mask": mask[0].astype(int).tolist(), "digest": digest(trainer)})
    return runs


@case(2)
def every_optimizer(folder):
    found = {}
    x, y = toy(24)
    for optimizer in ("SGD", "Adam", "AdamW", "Lion", "Lamb", "RMSprop", "Adagrad", "Nadam"):
        trainer = fittrain.Trainer(
            mlp, optimizer=getattr(keras.optimizers, optimizer)(1e-2), loss="mse", seed=2
        )
        trainer.fit(x, y, batch_size=7, epochs=2, verbose=0)
        found[optimizer] = [digest(trainer), float(np.ptp(trainer.model.get_weights()[0]))]
    return found


@case(2)
def broadcast_in_pieces(folder):
    communicator = session.current().communicator
    communicator.chunk_bytes, before = 2**20, communicator.chunk_bytes
    payload = np.random.default_rng(fittrain.rank()).bytes(5 * 2**20)
    received = communicator.broadcast(payload)
    array = communicator.broadcast_array(np.frombuffer(payload, np.uint8), root=1)
    communicator.chunk_bytes = before
    return [hashlib.sha256(data).hexdigest() for data in (payload, received, array.tobytes())]


@case(2)
def refusals(folder):
    rank = fittrain.rank()
    x, y = ones(1, 2, 3, 4)

    def fit(*data, **arguments):
        return lambda: probe_trainer().fit(*data, verbose=0, **arguments)

    stop = keras.callbacks.EarlyStopping("loss", patience=0)
    return {
        "batch_size": message_of(fit(x, y, batch_size=2 + rank)),
        "samples": message_of(fit(x[rank:], y[rank:])),
        "dtype": message_of(fit(x.astype("int32") if rank else x, y)),
        "callbacks": message_of(fit(x, y, callbacks=[stop] if rank == 0 else [])),
        "validation": message_of(fit(x, y, validation_data=(x, y) if rank == 0 else None)),
        "epochs_on_one_rank": message_of(fit(x, y, epochs=0 if rank == 1 else 1)),
        "lengths": message_of(fit(x, y[:3])),
        "both_sizes": message_of(fit(x, y, batch_size=2, batch_size_per_rank=1)),
        "optimizer": message_of(
            lambda: probe_trainer(optimizer=keras.optimizers.SGD(0.1 * (1 + rank))).fit(x, y)
        ),
        "model": message_of(
            lambda: fittrain.Trainer(
                keras.Sequential([keras.Input((1,)), keras.layers.Dense(1 + rank)]),
                optimizer="sgd",
                loss="mse",
            ).fit(x, y)
        ),
        "drop": message_of(fit(x, y, batch_size=8, drop_remainder=True)),
    }


@case(2)
def foreign_error_on_one_rank(folder):
    def build():
        if fittrain.rank() == 1:
            raise KeyError("boom-3")
        return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])

    try:
        fittrain.Trainer(build, optimizer="sgd", loss="mse").fit(*ones(1, 2))
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["nothing", ""]


@case(2, 4)
def stop_asked_on_one_rank(folder):
    class Stop(keras.callbacks.Callback):
        steps = 0

        def on_train_batch_end(self, batch, logs=None):
            Stop.steps += 1
            if fittrain.rank() == 1 and Stop.steps == 8:
                self.model.stop_training = True

    trainer = probe_trainer()
    x, y = ones(*range(20))
    history = trainer.fit(x, y, batch_size=4, epochs=9, callbacks=[Stop()], verbose=0)
    return [Stop.steps, len(history.history["loss"]), int(trainer.model.optimizer.iterations)]


@case(2)
def requested_stop(folder):
    class Ask(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1 and fittrain.rank() == 1:
                trainer.request_stop()

    trainer = probe_trainer(steps_per_execution=5)
    x, y = ones(*range(20))
    trainer.fit(x, y, batch_size=4, epochs=9, callbacks=[Ask()], verbose=0)
    return int(trainer.model.optimizer.iterations)


@case(1, 2)
def stock_callbacks(folder):
    name = f"{fittrain.size()}-{session.current().communicator.name}"
    rates, lines = [], []
    callbacks = [
        keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.CSVLogger(folder / f"{name}.csv"),
        keras.callbacks.ModelCheckpoint(folder / f"{name}.keras", "val_loss", save_best_only=True),
        keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: rates.append(
                float(trainer.model.optimizer.learning_rate.numpy())
            )
        ),
        TensorBoard(folder / f"{name}-events"),
        keras.callbacks.TensorBoard(folder / f"{name}-keras", update_freq=1, histogram_freq=1),
    ]
    x, y = toy(40)
    trainer = fittrain.Trainer(
        mlp, optimizer=keras.optimizers.Adam(0.05), loss="mse", metrics=["mae"], seed=1
    )
    history = trainer.fit(
        x, y, batch_size=8, epochs=6, validation_split=0.2, callbacks=callbacks, verbose=0
    )
    session.current().communicator.barrier()
    lines = (folder / f"{name}.csv").read_text().splitlines()
    events = {
        kind: len(list((folder / f"{name}-{kind}" / "train").glob("events*")))
        for kind in ("events", "keras")
    }
    return {
        "logs": {key: [repr(value) for value in values] for key, values in history.history.items()},
        "rates": rates,
        "csv_lines": len(lines),
        "events": events,
        "loads": keras.models.load_model(folder / f"{name}.keras").count_params(),
        "digest": digest(trainer),
    }


@case(1, 2, 3)
def predict_in_order(folder):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    trainer = fittrain.Trainer(model, optimizer="sgd", loss="mse")
    found = []
    for samples in (1, 2, 7, 20):
        x = np.arange(samples, dtype="float32")[:, None]
        outputs = trainer.predict(x, batch_size=4)
        kernel = trainer.model.get_weights()[0].item()
        found.append([outputs.shape[0], float(np.abs(outputs[:, 0] - x[:, 0] * kernel).max())])
    return found


SHAPES = (("a", 1), ("b", 2))


@case(2)
def nested_inputs(folder):
    left, right = keras.Input((2,), name="left"), keras.Input((3,), name="right")
    joined = keras.layers.Concatenate()([left, right])
    model = keras.Model(
        {"left": left, "right": right},
        {
            "a": keras.layers.Dense(1, name="a")(joined),
            "b": keras.layers.Dense(2, name="b")(joined),
        },
    )
    trainer = fittrain.Trainer(
        model, optimizer="adam", loss={"a": "mse", "b": "mae"}, metrics={"a": ["mae"]}
    )
    generator = np.random.default_rng(0)
    x = {"left": generator.normal(size=(9, 2)), "right": generator.normal(size=(9, 3))}
    y = {"a": generator.normal(size=(9, 1)), "b": generator.normal(size=(9, 2))}
    history = trainer.fit(x, y, batch_size=4, epochs=2, verbose=0)
    outputs = trainer.predict(x)
    return [sorted(history.history), {name: list(v.shape) for name, v in outputs.items()}]


@case(2)
def dropped_remainder(folder):
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("fittrain").addHandler(handler)
    trainer = probe_trainer()
    x, y = ones(*range(11))
    trainer.fit(x, y, batch_size_per_rank=2, drop_remainder=True, verbose=0)
    logging.getLogger("fittrain").removeHandler(handler)
    return [int(trainer.model.optimizer.iterations), lines]


@case(1, 2)
def own_train_step(folder):
    import tensorflow as tf

    class Own(fittrain.Trainer):
        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.model(x, training=True) - y) ** 2)
            variables = self.model.trainable_variables
            self.apply_gradients(tape.gradient(loss, variables), variables)
            return loss

    trainer = probe_trainer(trainer=Own)
    history = trainer.fit(*ones(*range(1, 6)), batch_size=3, shuffle=False, verbose=0)
    return [probe_weight(trainer), history.history["loss"][0]]


@case(2, 4)
def host_share(folder):
    import tensorflow as tf

    tf.reduce_sum(tf.ones([10]))
    return {
        "intra_op": os.environ.get("TF_NUM_INTRAOP_THREADS"),
        "affinity": len(os.sched_getaffinity(0)),
        "yield": os.environ.get("OMPI_MCA_mpi_yield_when_idle"),  # noqa: SIM112
        "cycle": os.environ.get("HOROVOD_CYCLE_TIME"),
    }


@case(2)
def saved_model(folder):
    trainer = fittrain.Trainer(mlp, optimizer="adam", loss="mse", seed=1)
    x, y = toy(20)
    trainer.fit(x, y, verbose=0)
    # Beyond this job's folder, which is gone when the test looks.
    path = Path(os.environ["FITTRAIN_TEST_KEEP"], session.current().communicator.name + ".keras")
    trainer.save(path)
    return {
        "exists": path.exists(),
        "others": [p.name for p in path.parent.iterdir() if p.suffix == ".keras" and p != path],
        "predictions": trainer.predict(x[:3]).ravel().tolist(),
        "refused": message_of(lambda: trainer.save("model.h5")),
    }
