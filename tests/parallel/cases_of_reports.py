"""What failure reports of other projects say about metrics and speed, tried here."""

import csv
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from cases import case, ones
from fittrain.callbacks import TensorBoard
from keras import layers

import fittrain
from fittrain import session
from fittrain.testing import digest, probe_model, probe_trainer


@case(2, 3)
def validation_of_uneven_losses(folder):
    """100 samples of loss 1 and 10 of loss 12, in batches that divide them in any way."""
    y = np.repeat([1.0, 12.0], [100, 10]).astype("float32")[:, None]
    found = []
    for batch_size in (1, 7, 32, 110, 200):
        trainer = target_trainer()
        history = trainer.fit(
            np.zeros_like(y),
            y,
            batch_size=64,
            validation_data=(np.zeros_like(y), y),
            validation_batch_size=batch_size,
            verbose=0,
        )
        found.append(history.history["val_loss"][0])
    return found


def target_trainer(**arguments):
    """Every sample's loss is its target."""
    return fittrain.Trainer(
        probe_model,
        optimizer=keras.optimizers.SGD(0.0),
        loss=lambda y, y_pred: y + 0.0 * y_pred,
        **arguments,
    )


class Samples(keras.metrics.Sum):
    """How many samples were counted."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(tf.ones(tf.shape(y_true)[0]))


@case(1, 2, 3)
def validation_of_five_samples(folder):
    y = np.sqrt(np.asarray([10, 0, 0, 0, 0], "float32"))[:, None]
    found = []
    for batch_size in (1, 2, 4, 5, 32):
        trainer = probe_trainer(
            optimizer=keras.optimizers.SGD(0.0), metrics=["mse", Samples(name="samples")]
        )
        x = np.ones_like(y)
        arguments = {"validation_data": (x, y), "validation_batch_size": batch_size}
        history = trainer.fit(x, y, verbose=0, **arguments).history
        found.append([history["val_mse"][0], history["val_samples"][0]])
    return found


class Values(keras.callbacks.Callback):
    """Every value of `val_loss` that a callback sees, as exact text."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(repr(logs["val_loss"]))


def events(folder: Path, tag: str) -> list[str]:
    found = []
    for path in sorted(folder.rglob("events*")):
        for record in tf.data.TFRecordDataset([str(path)]):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                if value.tag == tag:
                    found.append(repr(float(tf.make_ndarray(value.tensor))))
    return found


@case(2)
def one_value_everywhere(folder):
    name = f"places-{session.current().communicator.name}"
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(31, 1)), generator.normal(size=(31, 1))
    first, last = Values(), Values()
    callbacks = [
        first,
        keras.callbacks.CSVLogger(folder / f"{name}.csv"),
        keras.callbacks.ModelCheckpoint(folder / (name + "-{epoch}-{val_loss:.17g}.keras")),
        TensorBoard(folder / f"{name}-events"),
        last,
    ]
    trainer = probe_trainer(optimizer=keras.optimizers.SGD(0.01))
    settings = {"batch_size": 4, "epochs": 3, "verbose": 0, "validation_data": (x[:7], y[:7])}
    history = trainer.fit(x, y, callbacks=callbacks, **settings).history["val_loss"]
    session.current().communicator.barrier()
    rows = list(csv.DictReader((folder / f"{name}.csv").open()))
    files = sorted(folder.glob(f"{name}-[0-9]*.keras"))
    return {
        "history": [repr(value) for value in history],
        "first": first.seen,
        "last": last.seen,
        "csv": [repr(float(row["val_loss"])) for row in rows],
        "files": [repr(float(path.stem.split("-", 3)[3])) for path in files],
        "events": events(folder / f"{name}-events", "epoch_loss"),
    }


class ByEpoch(keras.metrics.Metric):
    """A mean of values that depend on rank and epoch."""

    def __init__(self, values, epoch):
        super().__init__(name="by_epoch")
        self.values, self.epoch = values, epoch
        self.total = self.add_variable((), "zeros", name="total")
        self.count = self.add_variable((), "zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        rows = tf.cast(tf.shape(y_true)[0], tf.float32)
        self.total.assign_add(tf.gather(self.values, self.epoch) * rows)
        self.count.assign_add(rows)

    def result(self):
        return self.total / self.count


@case(2)
def the_best_by_a_metric_of_ones_own(folder):
    name = f"best-{session.current().communicator.name}"
    epoch = tf.Variable(0)
    values = tf.constant([[3.0, 2.0, 1.0], [1.0, 4.0, 9.0]][fittrain.rank()])
    trainer = probe_trainer(metrics=[ByEpoch(values, epoch)])
    written = []

    class Counting(keras.callbacks.ModelCheckpoint):
        def _save_model(self, epoch, batch, logs):
            before = self.best
            super()._save_model(epoch, batch, logs)
            if self.best != before:
                written.append([epoch, float(self.best)])

    callbacks = [
        keras.callbacks.LambdaCallback(on_epoch_begin=lambda number, logs: epoch.assign(number)),
        Counting(
            folder / (name + "-{epoch}.keras"), "val_by_epoch", mode="min", save_best_only=True
        ),
    ]
    x, y = ones(1, 2, 3, 4)
    settings = {"batch_size": 4, "epochs": 3, "callbacks": callbacks, "verbose": 0}
    history = trainer.fit(x, y, validation_data=(x, y), **settings).history["val_by_epoch"]
    session.current().communicator.barrier()
    return {
        "values": history,
        "written": session.current().communicator.broadcast(written),
        "files": sorted(path.name for path in folder.glob(f"{name}-*.keras")),
    }


@case(2)
def exchanges_of_many_layers(folder):
    """How often an update of 200 layers, 400 gradients, asks for a reduction."""
    communicator = session.current().communicator
    original, asked = communicator.all_reduce, []

    def counted(flat, name="gradients"):
        asked.append(int(flat.shape[0]))
        return original(flat, name)

    model = keras.Sequential([keras.Input((4,)), *(layers.Dense(4) for _ in range(200))])
    trainer = fittrain.Trainer(model, optimizer="sgd", loss="mse")
    communicator.all_reduce = counted
    try:
        trainer.fit(np.ones((4, 4)), np.ones((4, 4)), batch_size=4, verbose=0)
    finally:
        del communicator.all_reduce
    return [len(trainer.model.trainable_variables), asked, digest(trainer)]


@case(1, 2)
def traces_of_a_fit(folder):
    """How often Python runs through the loss: while the start is tried out, and for programs."""

    class Traced(fittrain.Trainer):
        def compute_loss(self, x, y, y_pred, sample_weight):
            counts["train" if self.is_training else "evaluate"] += 1
            return super().compute_loss(x, y, y_pred, sample_weight)

    counts = {"train": 0, "evaluate": 0}
    seen = []
    watch = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: seen.append(dict(counts)),
        on_epoch_end=lambda epoch, logs: seen.append(dict(counts)),
    )
    x, y = ones(*range(10))
    settings = {"batch_size": 4, "epochs": 5, "validation_data": (x, y), "verbose": 0}
    probe_trainer(trainer=Traced).fit(x, y, callbacks=[watch], **settings)
    return [[one["train"], one["evaluate"]] for one in seen]
