"""Weights, several validation sets, single batches, outputs on one rank; next to plain Keras."""

import tracemalloc

import keras
import numpy as np
import tensorflow as tf
from cases import case, message_of, ones, without_counters
from keras import layers

import fittrain
from fittrain.testing import digest, probe_model, probe_trainer, probe_weight

CLASSES = 4
BY_CLASS = {0: 0.2, 1: 3.0, 3: 0.0}


def classifier():
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.Input((5,)),
            layers.Dense(8, activation="tanh"),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )


def classes(samples):
    generator = np.random.default_rng(samples)
    x = generator.normal(size=(samples, 5)).astype("float32")
    return x, generator.integers(0, CLASSES, samples)


def greatest(found, wanted):
    """The greatest difference between two lists of arrays or numbers."""
    return max(float(np.abs(np.subtract(a, b)).max()) for a, b in zip(found, wanted, strict=True))


def differences(trainer, plain, found, wanted):
    found, wanted = without_counters(found), without_counters(wanted)
    return {
        "weights": greatest(trainer.model.get_weights(), plain.get_weights()),
        "history": greatest([found[name] for name in wanted], wanted.values()),
        "names": [sorted(found), sorted(wanted)],
        "digest": digest(trainer),
    }


def compiled_classifier(loss):
    # Adam, which moves every weight however small its gradient is.
    return {
        "optimizer": keras.optimizers.Adam(0.02),
        "loss": loss,
        "metrics": ["accuracy"],
        "weighted_metrics": [f"{loss}" if loss != "mse" else "mae", "accuracy"],
    }


@case(1, 2, 3, costly=True)
def class_weights(folder):
    x, labels = classes(45)
    one_hot = np.eye(CLASSES, dtype="float32")[labels]
    found = {}
    for kind, y, loss in [
        ("integers", labels, "sparse_categorical_crossentropy"),
        ("a column of integers", labels[:, None], "sparse_categorical_crossentropy"),
        ("one-hot", one_hot, "categorical_crossentropy"),
        ("floats", labels.astype("float64") + 0.3, "sparse_categorical_crossentropy"),
    ]:
        y_loss = np.floor(y) if kind == "floats" else y
        settings = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
        settings |= {"class_weight": BY_CLASS, "validation_split": 0.2}
        plain, trainer = classifier(), fittrain.Trainer(classifier, **compiled_classifier(loss))
        plain.compile(**compiled_classifier(loss))
        wanted = plain.fit(x, y_loss, **settings).history
        history = trainer.fit(x, y_loss, **settings).history
        found[kind] = differences(trainer, plain, history, wanted)
    return found


@case(1, 2)
def class_weights_of_floats_between_classes(folder):
    """Labels that are rounded to their class; -1 and 1 are classes too."""
    y = np.asarray([[-1.2], [-0.6], [0.4], [0.9], [1.4], [-1.0]])
    settings = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}
    settings["class_weight"] = {-1: 2.0, 1.0: 0.5, np.int64(0): 4.0}
    trainer, plain = probe_trainer(), probe_model()
    plain.compile(keras.optimizers.SGD(0.5), "mse")
    wanted = plain.fit(np.ones_like(y), y, **settings).history
    history = trainer.fit(np.ones_like(y), y, **settings).history
    return differences(trainer, plain, history, wanted)


def two_outputs():
    keras.utils.set_random_seed(3)
    inputs = keras.Input((5,), name="numbers")
    hidden = layers.Dense(6, activation="tanh")(inputs)
    return keras.Model(
        inputs, {"a": layers.Dense(1, name="a")(hidden), "b": layers.Dense(2, name="b")(hidden)}
    )


def for_two_outputs(samples):
    generator = np.random.default_rng(samples)
    x = generator.normal(size=(samples, 5)).astype("float32")
    y = {"a": np.sin(x[:, :1]), "b": np.cos(x[:, 1:3])}
    weights = {name: generator.uniform(0.1, 3.0, samples).astype("float32") for name in y}
    return x, y, weights


def compiled_outputs():
    return {
        "optimizer": keras.optimizers.SGD(0.1, momentum=0.9),
        "loss": {"a": "mse", "b": "mae"},
        "loss_weights": {"a": 0.3, "b": 2.0},
        "metrics": {"a": ["mae"], "b": ["mse"]},
        "weighted_metrics": {"a": ["mae", "mse"], "b": ["mse"]},
    }


@case(1, 2, 3, costly=True)
def weights_of_several_outputs(folder):
    found = {}
    for kind in ("for each output", "for all outputs"):
        x, y, weights = for_two_outputs(29)
        xv, yv, held_out = for_two_outputs(13)
        if kind == "for all outputs":
            weights, held_out = weights["a"], held_out["b"]
        settings = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
        settings |= {"sample_weight": weights, "validation_data": (xv, yv, held_out)}
        trainer, plain = fittrain.Trainer(two_outputs, **compiled_outputs()), two_outputs()
        plain.compile(**compiled_outputs())
        wanted = plain.fit(x, y, **settings).history
        history = trainer.fit(x, y, **settings).history
        found[kind] = differences(trainer, plain, history, wanted)
        arguments = {"batch_size": 5, "sample_weight": held_out, "verbose": 0}
        results = trainer.evaluate(xv, yv, **arguments)
        found[kind]["evaluate"] = greatest(results, plain.evaluate(xv, yv, **arguments))
    return found


class Seen(keras.callbacks.Callback):
    """What callbacks are handed about validation."""

    def __init__(self):
        super().__init__()
        self.tests, self.epochs = [], []

    def on_test_batch_end(self, batch, logs=None):
        self.tests.append([batch, sorted(logs)])

    def on_test_end(self, logs=None):
        self.tests.append(["end", sorted(logs)])

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(dict(logs))


@case(1, 2, 3)
def named_validation_sets(folder):
    x, y, weights = for_two_outputs(29)
    sets = {"noisy": for_two_outputs(7), "clean": for_two_outputs(5)[:2]}
    trainer, plain = fittrain.Trainer(two_outputs, **compiled_outputs()), two_outputs()
    plain.compile(**compiled_outputs())
    seen = Seen()
    settings = {"batch_size": 4, "shuffle": False, "verbose": 0}
    settings["sample_weight"] = weights
    history = trainer.fit(x, y, epochs=2, validation_data=sets, callbacks=[seen], **settings)
    wanted = []
    for _ in range(2):
        logs = {name: values[0] for name, values in plain.fit(x, y, **settings).history.items()}
        for name, data in sets.items():
            arguments = dict(zip(("x", "y", "sample_weight"), data, strict=False))
            values = plain.evaluate(batch_size=4, verbose=0, return_dict=True, **arguments)
            logs |= {f"val_{name}_{key}": value for key, value in values.items()}
        wanted.append(logs)
    found = trainer.evaluate(sets, batch_size=4, verbose=0)
    by_name = trainer.evaluate(sets, batch_size=4, verbose=0, return_dict=True)
    return {
        "history": greatest([history.history[key] for key in logs], zip_logs(wanted)),
        "names": [sorted(history.history), sorted(logs)],
        "callbacks": [{key: repr(value) for key, value in epoch.items()} for epoch in seen.epochs],
        "logs": {key: [repr(v) for v in values] for key, values in history.history.items()},
        "tests": seen.tests[:5],
        "evaluate": {
            name: greatest(found[name], plain_values(plain, data)) for name, data in sets.items()
        },
        "by_name": {name: sorted(values) for name, values in by_name.items()},
        "last": [by_name["clean"]["loss"], history.history["val_clean_loss"][-1]],
    }


def zip_logs(epochs):
    return [[logs[key] for logs in epochs] for key in epochs[0]]


def plain_values(plain, data):
    arguments = dict(zip(("x", "y", "sample_weight"), data, strict=False))
    return plain.evaluate(batch_size=4, verbose=0, **arguments)


@case(1, 2)
def a_dict_of_arrays_is_an_input(folder):
    inputs = {name: keras.Input((1,), name=name) for name in ("a", "b")}
    output = layers.Concatenate()([inputs["a"], inputs["b"]])
    trainer = fittrain.Trainer(keras.Model(inputs, output), optimizer="sgd", loss="mse")
    x = {name: np.full((2, 1), value, "float32") for name, value in (("a", 1), ("b", 3))}
    return trainer.evaluate(x, np.zeros((2, 2), "float32"), verbose=0)


@case(1, 2, 3)
def outputs_on_rank_0(folder):
    trainer = fittrain.Trainer(two_outputs, **compiled_outputs())
    found = []
    for samples in (1, 2, 7, 20):
        x = for_two_outputs(samples)[0]
        everywhere = trainer.predict(x, batch_size=4, verbose=0)
        on_chief = trainer.predict(x, batch_size=4, verbose=0, gather="chief")
        if fittrain.is_chief():
            same = {name: bool((on_chief[name] == everywhere[name]).all()) for name in everywhere}
            found.append([same, len(on_chief["a"])])
        else:
            found.append([on_chief, len(everywhere["a"])])
    return found


@case(3, backends=("mpi",))
def memory_of_outputs(folder):
    """Bytes that NumPy takes at most while outputs of 12 MB are predicted and gathered."""
    samples, width = 3000, 1024
    trainer = fittrain.Trainer(
        keras.Sequential([keras.Input((1,)), layers.Dense(width)]), optimizer="sgd", loss="mse"
    )
    x = np.ones((samples, 1), "float32")
    trainer.predict(x[:300], batch_size=30, gather="chief", verbose=0)
    peaks = {}
    for gather in ("chief", "all"):
        tracemalloc.start()
        trainer.predict(x, batch_size=30, gather=gather, verbose=0)
        peaks[gather] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return {"peaks": peaks, "whole": samples * width * 4}


@case(1, 2, 3, 4)
def probe_on_batch(folder):
    trainer = probe_trainer(metrics=["mae"])
    found = []
    for targets in ([1, 2, 3, 4], [1, 2, 6], [5], [2, 4, 4, 6, 9], [1, 2]):
        values = trainer.train_on_batch(*ones(*targets))
        found.append([probe_weight(trainer), *values])
    x, y = ones(1, 3, 5)
    return {
        "updates": found,
        "weighted": [
            trainer.train_on_batch(x, y, sample_weight=np.asarray([1.0, 0.0, 0.0], "float32")),
            probe_weight(trainer),
        ],
        "test": trainer.test_on_batch(x, y, return_dict=True),
        "predict": trainer.predict_on_batch(x).tolist(),
        "iterations": int(trainer.model.optimizer.iterations),
        "digest": digest(trainer),
    }


@case(1, 2, 3)
def single_batches(folder):
    """Keras's calls in turn, with batches of different sizes and weights."""
    x, y = classes(64)
    compiled = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}
    compiled["weighted_metrics"] = ["sparse_categorical_crossentropy", "accuracy"]
    plain = classifier()
    plain.compile(optimizer=keras.optimizers.Adam(0.02), **compiled)
    trainer = fittrain.Trainer(classifier, optimizer=keras.optimizers.Adam(0.02), **compiled)
    found = {"values": [], "outputs": []}
    for call, samples in enumerate((8, 8, 5, 1, 8, 2, 13)):
        part = slice(call * 8, call * 8 + samples)
        extra = [{}, {"class_weight": BY_CLASS}, {"sample_weight": np.linspace(0, 2, samples)}]
        arguments = {"x": x[part], "y": y[part], **extra[call % 3]}
        # Some versions of Keras count on from batch to batch.
        plain.reset_metrics()
        wanted = plain.train_on_batch(**arguments)
        found["values"].append(greatest(trainer.train_on_batch(**arguments), wanted))
        plain.reset_metrics()
        wanted = plain.test_on_batch(x[part], y[part])
        found["values"].append(greatest(trainer.test_on_batch(x[part], y[part]), wanted))
        outputs = trainer.predict_on_batch(x[part])
        found["outputs"].append(greatest(outputs, plain.predict_on_batch(x[part])))
    found["weights"] = greatest(trainer.model.get_weights(), plain.get_weights())
    plain.reset_metrics()
    named = plain.test_on_batch(x, y, return_dict=True)
    found["names"] = [list(trainer.test_on_batch(x, y, return_dict=True)), list(named)]
    return {**found, "digest": digest(trainer)}


@case(2)
def single_batches_and_fit(folder):
    """Batch normalisation, micro-batches, and a `fit` in between, as one state on all ranks."""

    def build():
        keras.utils.set_random_seed(fittrain.rank())
        return keras.Sequential(
            [keras.Input((5,)), layers.Dense(4), layers.BatchNormalization(), layers.Dense(1)]
        )

    trainer = fittrain.Trainer(build, optimizer="adam", loss="mse", accumulate_steps=2)
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(7, 5)), generator.normal(size=(7, 1))
    found = []
    for _ in range(2):
        found.append(trainer.train_on_batch(x, y))
        # Before anything averages the moving averages again.
        found.append(digest(trainer))
        found.append(trainer.test_on_batch(x, y))
        trainer.fit(x, y, batch_size=3, verbose=0)
        found.append(digest(trainer))
    return [*found, int(trainer.model.optimizer.iterations)]


@case(1, 2)
def traces_of_single_batches(folder):
    class Traced(fittrain.Trainer):
        traces = 0

        def compute_loss(self, x, y, y_pred, sample_weight):
            Traced.traces += 1
            return super().compute_loss(x, y, y_pred, sample_weight)

    trainer = probe_trainer(trainer=Traced)
    found = []
    for _ in range(2):
        for samples in (4, 3, 1, 2, 5):
            trainer.train_on_batch(*ones(*range(samples)))
            trainer.test_on_batch(*ones(*range(samples)))
        found.append(Traced.traces)
    # Another loss is another program.
    trainer.model.compile(keras.optimizers.SGD(0.5), "mae")
    loss = trainer.train_on_batch(*ones(10.0, 12.0))
    return [*found, loss, int(trainer.model.optimizer.iterations)]


@case(2)
def a_warmup_on_single_batches(folder):
    def follow(**warmup):
        trainer = probe_trainer(
            optimizer=keras.optimizers.SGD(0.2), learning_rate=fittrain.Warmup(**warmup)
        )
        rates = []
        for samples in (2, 4, 2, 3, 1):
            trainer.train_on_batch(*ones(*range(samples)))
            rates.append(float(trainer.model.optimizer.learning_rate.numpy()))
        return rates

    return {
        "rates": follow(steps=4, scaling=None, initial_learning_rate=0.0),
        "epochs": message_of(lambda: follow(epochs=1, scaling=None)),
        "scaled": message_of(lambda: follow(steps=4, base_batch_size=2)),
    }


@case(2)
def refused_calls(folder):
    second = fittrain.rank() == 1
    x, y = ones(1, 2, 3, 4)
    outputs = for_two_outputs(4)

    def fit(*data, trainer=None, **arguments):
        return message_of(lambda: (trainer or probe_trainer()).fit(*data, verbose=0, **arguments))

    def several(**arguments):
        trainer = fittrain.Trainer(two_outputs, **compiled_outputs())
        return fit(*outputs[:2], trainer=trainer, **arguments)

    def evaluate(sets):
        return message_of(lambda: probe_trainer().evaluate(sets, verbose=0))

    def train(x, y, **arguments):
        return message_of(lambda: probe_trainer().train_on_batch(x, y, **arguments))

    clean = (x, y)
    return {
        "several outputs": several(class_weight={0: 1.0}),
        "weights of another nesting": several(sample_weight={"a": outputs[2]["a"]}),
        "both": fit(x, y, class_weight={0: 1.0}, sample_weight=np.ones(4)),
        "key": fit(x, y, class_weight={"0": 1.0}),
        "half key": fit(x, y, class_weight={0.5: 1.0}),
        "value": fit(x, y, class_weight={0: -1.0}),
        "no dict": fit(x, y, class_weight=[1.0, 2.0]),
        "targets": fit(x, y[..., None], class_weight={0: 1.0}),
        "differs": fit(x, y, class_weight={0: 1.0 + fittrain.rank()}),
        "one rank": fit(x, y, class_weight={0: "1"} if second else {0: 1.0}),
        "set name": fit(x, y, validation_data={"a b": clean}),
        "set names": fit(x, y, validation_data={"a": clean, "a_b": clean}),
        "set": fit(x, y, validation_data={"a": x}),
        "no set": fit(x, y, validation_data={}),
        "set data": fit(x, y, validation_data={"a": (x, y[:2])}),
        "order of sets": evaluate({name: clean for name in ("ab" if second else "ba")}),
        "sets of one rank": evaluate({"a": clean} if second else {"a": clean, "b": clean}),
        "gather": message_of(lambda: probe_trainer().predict(x, gather="rank 0", verbose=0)),
        "other gather": message_of(
            lambda: probe_trainer().predict(x, gather="all" if second else "chief", verbose=0)
        ),
        "batch": train(x[: 4 - fittrain.rank()], y[: 4 - fittrain.rank()]),
        "batch on one rank": train(x, y[:2] if second else y),
        "batch weights": train(x, y, class_weight={0: 1.0 + fittrain.rank()}),
    }


@case(2)
def batches_that_differ_later(folder):
    """The full comparison is for the first batch; a later difference is found as well."""
    trainer = probe_trainer()
    x, y = ones(1, 2, 3, 4)
    trainer.train_on_batch(x, y)
    second = fittrain.rank() == 1
    found = [
        message_of(lambda: trainer.train_on_batch(x[: 4 - second], y[: 4 - second])),
        message_of(lambda: trainer.train_on_batch(x, y[:1] if second else y)),
    ]
    trainer.train_on_batch(*ones(6, 8))
    return [found, probe_weight(trainer)]


@case(2)
def ragged_data(folder):
    x, y = ones(1, 2, 3)
    rows = [[1.0], [2.0, 3.0], [4.0, 5.0, 6.0]]
    objects = np.empty(3, object)
    objects[:] = [np.asarray(row) for row in rows]
    kinds = {
        "tensor": tf.ragged.constant(rows),
        "objects": objects,
        "lists": rows,
        "tensor in a dict": {"words": tf.ragged.constant(rows), "more": x},
        "objects in a dict": {"words": objects, "more": x},
        "lists in a dict": {"words": rows, "more": x},
        "a list of arrays": [np.asarray(row) for row in rows],
        "on one rank": tf.ragged.constant(rows) if fittrain.rank() else x,
    }
    found = {
        kind: message_of(lambda data=data: probe_trainer().fit(data, y, verbose=0))
        for kind, data in kinds.items()
    }
    found["targets"] = message_of(lambda: probe_trainer().evaluate(x, rows, verbose=0))
    found["predict"] = message_of(lambda: probe_trainer().predict(objects, verbose=0))
    found["held out"] = message_of(
        lambda: probe_trainer().fit(x, y, validation_data=(rows, y), verbose=0)
    )
    found["batch"] = message_of(lambda: probe_trainer().train_on_batch(rows, y))
    return found
