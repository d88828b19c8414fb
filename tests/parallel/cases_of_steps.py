"""Steps and models of every kind, next to plain Keras in one process."""

import keras
import numpy as np
import tensorflow as tf
from cases import case, message_of, ones, without_counters
from keras import layers

import fittrain
from fittrain.testing import digest, probe_model, probe_trainer, probe_weight


def compare(build, data, compiled, *, samples=26, batch_size=8, epochs=2, **arguments):
    """Differences between `Trainer.fit` on all ranks and plain Keras on this rank.

    `data(samples)` gives (x, y) or (x, y, sample_weight); `compiled()` what compiles the model.
    """
    trainer_class = arguments.pop("trainer", fittrain.Trainer)
    settings = {"batch_size": batch_size, "epochs": epochs, "shuffle": False, "verbose": 0}
    x, y, *weight = data(samples)
    settings |= {"validation_data": data(13)}
    if weight:
        settings["sample_weight"] = weight[0]

    def seeded():
        keras.utils.set_random_seed(3)
        return build()

    plain = seeded()
    plain.compile(**compiled())
    wanted = without_counters(plain.fit(x, y, **settings).history)
    trainer = trainer_class(seeded, **compiled(), **arguments)
    found = without_counters(trainer.fit(x, y, **settings).history)
    pairs = list(zip(trainer.model.get_weights(), plain.get_weights(), strict=True))
    return {
        "weights": max(float(np.abs(a - b).max()) for a, b in pairs),
        "moved": max(float(np.abs(a).max()) for a, _ in pairs),
        "history": max(float(np.abs(np.subtract(found[k], wanted[k])).max()) for k in wanted),
        "names": [sorted(found), sorted(wanted)],
        "digest": digest(trainer),
    }


def sentences(samples):
    """Words of which 0 is none, different numbers of them in each sample, and a target for each."""
    generator = np.random.default_rng(samples)
    words = generator.integers(1, 9, size=(samples, 6))
    words[np.arange(6) >= generator.integers(1, 7, size=samples)[:, None]] = 0
    return words, np.sin(words.astype("float32"))[..., None]


def weighted_sentences(samples):
    x, y = sentences(samples)
    return x, y, np.linspace(0.1, 2.0, samples, dtype="float32")[:, None]


def tagger():
    return keras.Sequential(
        [
            keras.Input((6,), dtype="int64"),
            layers.Embedding(9, 4, mask_zero=True),
            layers.SimpleRNN(5, return_sequences=True),
            layers.Dense(1),
        ]
    )


def sgd(**options):
    return keras.optimizers.SGD(0.1, momentum=0.9, **options)


def mse(**options):
    return {"optimizer": sgd(), "loss": keras.losses.MeanSquaredError(**options)}


@case(2, 3, costly=True)
def masked_losses(folder):
    by_weights = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    return {
        "mask": compare(tagger, sentences, lambda: {**mse(), "metrics": ["mae"]}),
        "mask and weights": compare(tagger, weighted_sentences, mse),
        "mask, mean by weights": compare(
            tagger, weighted_sentences, lambda: {"optimizer": sgd(), "loss": by_weights}
        ),
        "mask, accumulated": compare(tagger, sentences, mse, accumulate_steps=3),
    }


def numbers(samples):
    generator = np.random.default_rng(samples)
    x = generator.normal(size=(samples, 5)).astype("float32")
    return x, np.sin(x.sum(axis=1, keepdims=True))


def weighted_numbers(samples):
    return *numbers(samples), np.linspace(0.1, 2.0, samples, dtype="float32")


def dense():
    return keras.Sequential(
        [keras.Input((5,)), layers.Dense(8, activation="tanh"), layers.Dense(1)]
    )


@case(2, 3, costly=True)
def other_reductions(folder):
    small = {"optimizer": "sgd", "loss": keras.losses.MeanSquaredError(reduction="sum")}
    mean = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    return {
        "sum": compare(dense, numbers, lambda: {**small, "optimizer": keras.optimizers.SGD(1e-3)}),
        "sum, accumulated": compare(
            dense,
            numbers,
            lambda: {**small, "optimizer": keras.optimizers.SGD(1e-3)},
            accumulate_steps=2,
        ),
        "mean by weights": compare(
            dense, weighted_numbers, lambda: {"optimizer": sgd(), "loss": mean}
        ),
    }


def two_outputs():
    x = keras.Input((6,), dtype="int64", name="words")
    more = keras.Input((5,), name="numbers")
    hidden = layers.Embedding(9, 4, mask_zero=True)(x)
    tags = layers.Dense(1, name="tags")(layers.SimpleRNN(5, return_sequences=True)(hidden))
    pooled = layers.GlobalAveragePooling1D()(hidden)
    score = layers.Dense(
        1, name="score", kernel_regularizer=keras.regularizers.L2(0.1), activity_regularizer="l2"
    )(layers.Concatenate()([pooled, more]))
    return keras.Model({"words": x, "numbers": more}, {"tags": tags, "score": score})


def for_two_outputs(samples):
    words, tags = sentences(samples)
    x, y = numbers(samples)
    return {"words": words, "numbers": x}, {"tags": tags, "score": y}


@case(2, 3, costly=True)
def several_outputs(folder):
    def compiled():
        return {
            "optimizer": sgd(),
            "loss": {"tags": "mse", "score": "mae"},
            "loss_weights": {"tags": 1.0, "score": 0.3},
            "metrics": {"tags": ["mae"], "score": ["mse"]},
        }

    def single():
        return {"optimizer": sgd(), "loss": "mse", "loss_weights": [0.3]}

    return {
        "two outputs": compare(two_outputs, for_two_outputs, compiled),
        "two outputs, accumulated": compare(
            two_outputs, for_two_outputs, compiled, accumulate_steps=2
        ),
        "one output": compare(dense, numbers, single),
    }


class KerasStep(keras.Model):
    """The step of Keras's guide: gradients to the optimizer, a tracker of its own."""

    def __init__(self, **options):
        super().__init__(**options)
        self.hidden, self.out = layers.Dense(8, activation="tanh"), layers.Dense(1)
        self.tracker = keras.metrics.Mean(name="loss")
        self.mae = keras.metrics.MeanAbsoluteError(name="mae")

    def call(self, x):
        return self.out(self.hidden(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = keras.ops.mean(keras.losses.mean_squared_error(y, y_pred))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        self.tracker.update_state(loss)
        self.mae.update_state(y, y_pred)
        return {"loss": self.tracker.result(), "mae": self.mae.result(), "last": loss}

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        self.tracker.update_state(keras.ops.mean((y - y_pred) ** 2))
        self.mae.update_state(y, y_pred)
        return {"loss": self.tracker.result(), "mae": self.mae.result()}

    @property
    def metrics(self):
        return [self.tracker, self.mae]


class SuperStep(keras.Sequential):
    """A step that adds nothing."""

    def train_step(self, data):
        return super().train_step(data)


@case(2, 3, costly=True)
def models_with_a_step_of_their_own(folder):
    def super_step():
        return SuperStep(dense().layers)

    def adam():
        return {"optimizer": keras.optimizers.Adam(0.01), "loss": "mse", "metrics": ["mae"]}

    return {
        "guide": compare(KerasStep, numbers, adam),
        "guide, accumulated": compare(KerasStep, numbers, adam, accumulate_steps=2),
        "super": compare(super_step, numbers, adam),
        "eager": compare(KerasStep, numbers, adam, epochs=1, trainer=Eager),
    }


class Eager(fittrain.Trainer):
    """Runs eagerly."""

    @property
    def model(self):
        model = super().model
        model.run_eagerly = True
        return model


class Gan(keras.Model):
    """Two optimizers in one step."""

    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential([keras.Input((2,)), layers.Dense(4), layers.Dense(1)])
        self.critic = keras.Sequential([keras.Input((1,)), layers.Dense(4), layers.Dense(1)])

    def compile(self, **options):
        super().compile(**options)
        self.critic_optimizer = keras.optimizers.Adam(0.02)

    def call(self, x):
        return self.generator(x)

    def train_step(self, data):
        noise, real = data
        with tf.GradientTape() as tape:
            fake = self.generator(noise, training=True)
            judged = keras.ops.mean((self.critic(real) - 1.0) ** 2 + self.critic(fake) ** 2)
        weights = self.critic.trainable_variables
        self.critic_optimizer.apply(tape.gradient(judged, weights), weights)
        with tf.GradientTape() as tape:
            fooled = keras.ops.mean((self.critic(self.generator(noise)) - 1.0) ** 2)
        weights = self.generator.trainable_variables
        gradients = tape.gradient(fooled, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return {"judged": judged, "fooled": fooled}

    def test_step(self, data):
        return {"fooled": keras.ops.mean((self.critic(self.generator(data[0])) - 1.0) ** 2)}


class GanTrainer(fittrain.Trainer):
    """The same, with the critic outside of the trainer's model."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        keras.utils.set_random_seed(5 + fittrain.rank())
        self.critic = keras.Sequential([keras.Input((1,)), layers.Dense(4), layers.Dense(1)])
        self.critic_optimizer = keras.optimizers.Adam(0.02)

    def train_step(self, batch):
        noise, real = batch
        with tf.GradientTape() as tape:
            fake = self.model(noise, training=True)
            judged = keras.ops.mean((self.critic(real) - 1.0) ** 2 + self.critic(fake) ** 2)
        weights = self.critic.trainable_variables
        self.apply_gradients(tape.gradient(judged, weights), weights, self.critic_optimizer)
        with tf.GradientTape() as tape:
            fooled = keras.ops.mean((self.critic(self.model(noise)) - 1.0) ** 2)
        weights = self.model.trainable_variables
        self.apply_gradients(tape.gradient(fooled, weights), weights)
        return fooled


def noise(samples):
    generator = np.random.default_rng(samples)
    draw = generator.normal(size=(samples, 2)).astype("float32")
    return draw, 3.0 + generator.normal(size=(samples, 1)).astype("float32")


@case(2, 3, costly=True)
def two_optimizers(folder):
    def compiled():
        return {"optimizer": keras.optimizers.Adam(0.01), "loss": "mse"}

    trainer = GanTrainer(
        keras.Sequential([keras.Input((2,)), layers.Dense(4), layers.Dense(1)]), **compiled()
    )
    trainer.fit(*noise(20), batch_size=4, epochs=1, verbose=0)
    critic = [v.numpy().tolist() for v in trainer.critic.weights]
    slots = [v.numpy().tolist() for v in trainer.critic_optimizer.variables]
    return {
        "model": compare(Gan, noise, compiled),
        "trainer": [digest(trainer), critic, slots],
    }


@case(2)
def frozen_layers(folder):
    class Half(keras.Model):
        def __init__(self):
            super().__init__()
            self.frozen, self.used = layers.Dense(4), layers.Dense(1)
            self.unused = layers.Dense(1)
            self.frozen.trainable = False

        def build(self, shape):
            self.frozen.build(shape)
            self.used.build((None, 4))
            self.unused.build((None, 4))

        def call(self, x):
            return self.used(self.frozen(x))

    trainer = fittrain.Trainer(Half(), optimizer="sgd", loss="mse")
    trainer.fit(*numbers(16), batch_size=8, verbose=0)
    before = trainer.model.frozen.kernel.numpy()
    trainer.fit(*numbers(16), batch_size=8, verbose=0)
    unchanged = bool((trainer.model.frozen.kernel.numpy() == before).all())
    trainer.model.frozen.trainable = True
    refused = message_of(lambda: trainer.fit(*numbers(16), batch_size=8, verbose=0))
    trainer.model.compile(optimizer="sgd", loss="mse")
    trainer.fit(*numbers(16), batch_size=8, verbose=0)
    moved = bool((trainer.model.frozen.kernel.numpy() != before).any())
    return [unchanged, refused, moved, digest(trainer)]


@case(2, 4)
def regularised(folder):
    class Added(layers.Layer):
        def __init__(self):
            super().__init__()
            self.kernel = self.add_weight(shape=(), initializer="ones")

        def call(self, x):
            self.add_loss(0.1 * self.kernel**2)
            return self.kernel * x

    def dense_layer():
        return layers.Dense(
            1,
            use_bias=False,
            kernel_initializer="ones",
            kernel_regularizer=keras.regularizers.L2(0.1),
        )

    found = []
    for layer in (dense_layer, Added):
        for steps in (1, 2):
            model = keras.Sequential([keras.Input((1,)), layer()])
            trainer = fittrain.Trainer(
                model, optimizer=keras.optimizers.SGD(0.5), loss="mse", accumulate_steps=steps
            )
            zeros = np.zeros((8, 1), "float32")
            history = trainer.fit(zeros, zeros, batch_size=8, verbose=0)
            found.append([float(model.get_weights()[0].item()), history.history["loss"][0]])
    return found


@case(2)
def stateful_recurrence(folder):
    per_rank = 2
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input(batch_shape=(per_rank, 3, 1)),
            layers.GRU(2, stateful=True),
            layers.Dense(1),
        ]
    )
    x = np.random.default_rng(0).normal(size=(16, 3, 1)).astype("float32")
    trainer = fittrain.Trainer(model, optimizer="sgd", loss="mse")
    trainer.fit(x, x[:, 0], batch_size_per_rank=per_rank, epochs=2, shuffle=False, verbose=0)
    state = model.layers[0].states[0].numpy().tolist()
    return [state, digest_of_weights(trainer)]


def digest_of_weights(trainer):
    return [v.numpy().tolist() for v in trainer.model.trainable_variables]


@case(2)
def writes_around_the_door(folder):
    class Around(fittrain.Trainer):
        def train_step(self, batch):
            loss = super().train_step(batch)
            self.model.trainable_variables[0].assign_sub([[0.1]])
            return loss

    class AroundInside(fittrain.Trainer):
        @tf.function(autograph=False)
        def nudge(self):
            self.model.trainable_variables[0].assign_sub([[0.1]])

        def train_step(self, batch):
            loss = super().train_step(batch)
            self.nudge()
            return loss

    class Compiled(fittrain.Trainer):
        """Its step is a function of its own, which is allowed."""

        def train_step(self, batch):
            return tf.function(super().train_step, autograph=False)(batch)

    def fit(trainer_class):
        trainer = probe_trainer(trainer=trainer_class)
        trainer.fit(*ones(1, 2, 3, 4), batch_size=4, verbose=0)
        return probe_weight(trainer)

    return [
        message_of(lambda: fit(Around)),
        message_of(lambda: fit(AroundInside)),
        fit(Compiled),
    ]


@case(2)
def a_loss_that_was_not_scaled(folder):
    class Unscaled(fittrain.Trainer):
        scaled = False

        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = keras.ops.mean((tf.cast(self.model(x), y.dtype) - y) ** 2)
                taken = self.scale_loss(loss) if self.scaled else loss
            weights = self.model.trainable_variables
            self.apply_gradients(tape.gradient(taken, weights), weights)
            return loss

    class Scaled(Unscaled):
        scaled = True

    def fit(trainer_class):
        trainer = probe_trainer(trainer=trainer_class, precision="mixed_float16")
        trainer.fit(*ones(0.1, 0.2, 0.3, 0.4), batch_size=4, verbose=0)
        return probe_weight(trainer)

    return [message_of(lambda: fit(Unscaled)), fit(Scaled)]


@case(2)
def clipping(folder):
    found = []
    for clip, targets in [
        ({"clipnorm": 1.0}, (-4, 1)),
        ({"global_clipnorm": 1.0}, (-4, 1)),
        ({"clipvalue": 1.0}, (-4, 1)),
        ({"clipnorm": 0.001}, (1, 1)),
        ({"clipvalue": 0.001}, (1, 1)),
    ]:
        trainer = probe_trainer(optimizer=keras.optimizers.SGD(0.5, **clip))
        trainer.fit(*ones(*targets), batch_size=2, shuffle=False, verbose=0)
        found.append(probe_weight(trainer))
    for norm, targets in [(1.0, (-4, 1)), (0.001, (1, 1))]:
        trainer = probe_trainer(clip_norm=norm)
        trainer.fit(*ones(*targets), batch_size=2, shuffle=False, verbose=0)
        found.append(probe_weight(trainer))
    trainer = fittrain.Trainer(
        probe_model, optimizer=keras.optimizers.SGD(0.5, clipvalue=1.0), loss="mse", clip_norm=2.0
    )
    return [found, message_of(lambda: trainer.fit(*ones(1, 1), verbose=0))]


@case(2)
def compiled_by_xla(folder):
    def adam():
        return {"optimizer": keras.optimizers.Adam(0.01), "loss": "mse", "metrics": ["mae"]}

    return {
        "dense": compare(dense, numbers, adam, jit_compile=True),
        "accumulated": compare(dense, numbers, adam, jit_compile=True, accumulate_steps=2),
    }
