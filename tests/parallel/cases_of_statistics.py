"""State beside the gradients: batch normalisation, masks, averaged weights, losses by output."""

import keras
import numpy as np
from cases import case

import fittrain
from fittrain.testing import digest


def largest_difference(first, second) -> float:
    """Between two lists of arrays of the same shapes."""
    pairs = zip(first, second, strict=True)
    return max(float(np.abs(np.subtract(a, b)).max()) for a, b in pairs)


def column(*values: float):
    return np.asarray(values, "float32")[:, None]


def normalised() -> keras.Model:
    """A model whose moving statistics are those of the last batch."""
    keras.utils.set_random_seed(3)
    normalisation = keras.layers.BatchNormalization(momentum=0.0, name="norm")
    return keras.Sequential([keras.Input((1,)), normalisation, keras.layers.Dense(1)])


def moving_mean(model: keras.Model) -> float:
    return float(model.get_layer("norm").moving_mean.numpy().item())


class SeeMean(keras.callbacks.Callback):
    """Keeps the moving mean that validation starts with and that the end of an epoch sees."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_test_begin(self, logs=None):
        self.seen.append(moving_mean(self.model))

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(moving_mean(self.model))


class SeeMeanOfBatches(SeeMean):
    """Looks after every batch, too, as one that saves the model there would."""

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(moving_mean(self.model))


@case(2, backends=("mpi",))
def batch_norm_statistics_after_single_batches(folder):
    watch, x = SeeMeanOfBatches(), column(0, 10, 2, 4)
    trainer = fittrain.Trainer(normalised, optimizer="sgd", loss="mse")
    trainer.fit(x, x, batch_size=2, shuffle=False, callbacks=[watch], verbose=0)
    return watch.seen


@case(1, 2, backends=("mpi",))
def batch_norm_statistics(folder):
    watch, x = SeeMean(), column(0, 10)
    trainer = fittrain.Trainer(normalised, optimizer="sgd", loss="mse")
    settings = {"batch_size": 2, "shuffle": False, "verbose": 0}
    trainer.fit(x, x, validation_data=(x, x), callbacks=[watch], **settings)
    path = folder / f"normalised-{fittrain.size()}.keras"
    trainer.save(path)
    plain = normalised()
    plain.compile("sgd", "mse")
    plain.fit(x, x, **settings)
    return {
        "seen": watch.seen,
        "held": moving_mean(trainer.model),
        "saved": moving_mean(keras.models.load_model(path)),
        "from_keras": largest_difference(trainer.model.get_weights(), plain.get_weights()),
        "digest": digest(trainer),
    }


@case(1, 3, backends=("mpi",))
def batch_norm_statistics_without_a_part_of_the_last_batch(folder):
    trainer = fittrain.Trainer(normalised, optimizer="sgd", loss="mse")
    x = column(0, 3, 6, 9)
    trainer.fit(x, x, batch_size=3, shuffle=False, verbose=0)
    return moving_mean(trainer.model)


@case(1, 2, backends=("mpi",))
def averaged_weights(folder):
    def build():
        keras.utils.set_random_seed(3)
        return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])

    def optimizer():
        return keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9)

    x, y = column(1, 2, 3, 4, 5), column(2, 4, 6, 8, 10)
    settings = {"batch_size": 2, "epochs": 3, "shuffle": False, "verbose": 0}
    trainer = fittrain.Trainer(build, optimizer=optimizer(), loss="mse")
    trainer.fit(x, y, **settings)
    plain = build()
    plain.compile(optimizer(), "mse")
    plain.fit(x, y, **settings)
    return largest_difference(trainer.model.get_weights(), plain.get_weights())


@case(1, 2, 3, backends=("local", "mpi"))
def repeated_rows_of_an_embedding(folder):
    def build():
        keras.utils.set_random_seed(3)
        embedding = keras.layers.Embedding(5, 2)
        parts = [keras.Input((3,), dtype="int32"), embedding, keras.layers.Flatten()]
        return keras.Sequential([*parts, keras.layers.Dense(1)])

    x = np.asarray([[1, 1, 2], [1, 3, 3], [0, 1, 1], [2, 2, 2], [4, 1, 1]], "int32")
    y = column(1, 2, 3, 4, 5)
    trainer = fittrain.Trainer(build, optimizer=keras.optimizers.Adam(0.1), loss="mse")
    trainer.fit(x, y, batch_size=4, epochs=3, shuffle=False, verbose=0)
    return [weight.tolist() for weight in trainer.model.get_weights()]


@case(2, 3, backends=("mpi",))
def losses_of_two_outputs(folder):
    def build():
        keras.utils.set_random_seed(3)
        inputs = keras.Input((2,))
        outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in ("a", "b")}
        return keras.Model(inputs, outputs)

    def compiled():
        return {
            "optimizer": keras.optimizers.SGD(0.1),
            "loss": {"a": "mse", "b": "mae"},
            "metrics": {"a": ["mse", "mae"], "b": ["mae", "mse"]},
        }

    generator = np.random.default_rng(0)
    x = generator.normal(size=(10, 2)).astype("float32")
    y = {name: generator.normal(size=(10, 1)).astype("float32") for name in ("a", "b")}
    held_out = (x[:5], {name: part[:5] for name, part in y.items()})
    # Three updates, the last with 2 samples: on 3 ranks, one gets none of them.
    settings = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}
    trainer = fittrain.Trainer(build, **compiled())
    history = trainer.fit(x, y, validation_data=held_out, **settings).history
    plain = build()
    plain.compile(**compiled())
    expected = plain.fit(x, y, validation_data=held_out, **settings).history
    return {
        "names": [sorted(history), sorted(expected)],
        "history": {name: [history[name], expected[name]] for name in expected},
        "evaluated": [
            trainer.evaluate(x, y, batch_size=4, verbose=0),
            plain.evaluate(x, y, batch_size=4, verbose=0),
        ],
    }
