"""Metrics over all ranks: values, counts, and who sees them."""

import keras
import numpy as np
import tensorflow as tf
from cases import case, message_of
from cases_of_statistics import column
from fittrain.callbacks import TensorBoard
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import fittrain
from fittrain import session

BACKENDS = ("horovod", "mpi")


def still(units=1):
    """A model that gives its input, and learns nothing."""
    dense = keras.layers.Dense(units, use_bias=False, kernel_initializer="identity")
    return keras.Sequential([keras.Input((units,)), dense])


def validated(data, *, units=1, loss="mse", metrics=(), **options):
    """Logs of a validation at the end of one epoch."""
    trainer = fittrain.Trainer(
        lambda: still(units),
        optimizer=keras.optimizers.SGD(0.0),
        loss=loss,
        metrics=list(metrics),
    )
    settings = {"validation_data": data, "batch_size": 4, "verbose": 0, **options}
    history = trainer.fit(*data, **settings).history
    return {name: values[-1] for name, values in history.items()}


class Samples(keras.metrics.Metric):
    """How many samples were counted; a metric of the user's own."""

    def __init__(self, name="samples"):
        super().__init__(name=name)
        self.count = self.add_variable((), "zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.count.assign(self.count + keras.ops.cast(keras.ops.shape(y_true)[0], "float32"))

    def result(self):
        return self.count


class Highest(Samples):
    """The largest target."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.count.assign(keras.ops.maximum(self.count, keras.ops.max(y_true)))


class Declared(Highest):
    merge_over_ranks = "max"


class From10(Samples):
    def reset_state(self):
        self.count.assign(10.0)


@case(2, backends=BACKENDS)
def auc_of_two_parts(folder):
    # Within each part every positive is above every negative.
    data = column(0.9, 0.8, 0.3, 0.2), column(1, 0, 1, 0)
    auc = keras.metrics.AUC(name="auc")
    return validated(data, loss="binary_crossentropy", metrics=[auc])["val_auc"]


@case(2, 3, backends=BACKENDS)
def validation_loss_of_uneven_parts(folder):
    data = np.zeros((110, 1), "float32"), column(*[1.0] * 100, *[12.0] * 10)
    sizes = (110, 100, 11, 3)
    return [validated(data, loss="mae", validation_batch_size=size)["val_loss"] for size in sizes]


@case(2, 3, backends=BACKENDS)
def validation_of_few_samples(folder):
    # The squared errors are 10, 0, 0, 0, 0.
    y = np.zeros((5, 2), "float32")
    y[0] = 4.0, 2.0
    data = np.zeros((5, 2), "float32"), y
    found = []
    for size in (5, 4, 2, 1):
        metrics = ["mse", Samples(), Declared("highest"), From10("from10")]
        logs = validated(data, units=2, metrics=metrics, validation_batch_size=size)
        found.append([logs[f"val_{name}"] for name in ("mse", "samples", "highest", "from10")])
    return found


@case(2, 3, backends=BACKENDS)
def refused_metrics(folder):
    data = column(1, 2, 3), column(1, 2, 3)
    second = fittrain.rank() == 1
    return {
        "highest": message_of(lambda: validated(data, metrics=[Highest()])),
        "differing": message_of(
            lambda: validated(data, metrics=[with_merge("max" if second else "min")])
        ),
    }


def with_merge(merge):
    metric = Highest()
    metric.merge_over_ranks = merge
    return metric


@case(2, backends=BACKENDS)
def validation_loss_everywhere(folder):
    name = session.current().communicator.name
    first, last = [], []

    def keep(seen):
        return keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: seen.append(logs["val_loss"])
        )

    callbacks = [
        keep(first),
        keras.callbacks.CSVLogger(folder / f"{name}.csv"),
        keras.callbacks.ModelCheckpoint(folder / f"{name}-{{val_loss:.17g}}-.keras"),
        TensorBoard(folder / f"{name}-events"),
        keep(last),
    ]
    generator = np.random.default_rng(fittrain.rank())
    held_out = tuple(generator.normal(size=(7, 1)).astype("float32") for _ in "xy")
    trainer = fittrain.Trainer(still, optimizer="sgd", loss="mse", seed=1)
    x = column(*range(8))
    settings = {"batch_size": 4, "epochs": 2, "callbacks": callbacks, "verbose": 0}
    history = trainer.fit(x, 1.0 - x / 9, validation_data=held_out, **settings).history
    session.current().communicator.barrier()
    lines = [line.split(",") for line in (folder / f"{name}.csv").read_text().splitlines()]
    events = EventAccumulator(str(folder / f"{name}-events" / "validation"))
    events.Reload()
    saved = [float(path.name.split("-")[1]) for path in folder.glob(f"{name}-*-.keras")]
    order = {value: number for number, value in enumerate(history["val_loss"])}
    return {
        "first": first,
        "last": last,
        "history": history["val_loss"],
        "csv": [float(line[lines[0].index("val_loss")]) for line in lines[1:]],
        "file names": sorted(saved, key=lambda value: order.get(value, -1)),
        "events": [
            float(tf.make_ndarray(event.tensor_proto)) for event in events.Tensors("epoch_loss")
        ],
    }


class Local(keras.metrics.Metric):
    """A mean over samples of a number that each rank sets in each epoch."""

    def __init__(self, name="local"):
        super().__init__(name=name)
        self.value = tf.Variable(1.0, trainable=False)
        self.total = self.add_variable((), "zeros", name="total")
        self.count = self.add_variable((), "zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        rows = keras.ops.cast(keras.ops.shape(y_true)[0], "float32")
        self.total.assign(self.total + rows * self.value)
        self.count.assign(self.count + rows)

    def result(self):
        return self.total / self.count


@case(2, backends=BACKENDS)
def best_by_a_metric_that_differs_by_rank(folder):
    name = session.current().communicator.name
    values = [[3.0, 2.0, 1.0], [1.0, 4.0, 9.0]][fittrain.rank()]
    metric = Local()
    callbacks = [
        keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: metric.value.assign(values[epoch])
        ),
        keras.callbacks.ModelCheckpoint(
            folder / f"best-{name}-{{epoch}}.keras", "val_local", mode="min", save_best_only=True
        ),
    ]
    trainer = fittrain.Trainer(still, optimizer="sgd", loss="mse", metrics=[metric])
    x = column(1, 2, 3, 4)
    settings = {"batch_size": 4, "epochs": 3, "callbacks": callbacks, "verbose": 0}
    history = trainer.fit(x, x, validation_data=(x, x), **settings).history
    session.current().communicator.barrier()
    files = sorted(path.name for path in folder.glob(f"best-{name}-*"))
    return [history["val_local"], [file.removeprefix(f"best-{name}-") for file in files]]
