"""What once gave a wrong number, or an error that told nobody anything."""

import keras
import numpy as np
import tensorflow as tf
from cases import case, message_of
from cases_of_steps import Eager, compare, dense, numbers, sgd, weighted_numbers
from keras import layers

import fittrain


def mean_squared_error(**more):
    return {"optimizer": sgd(), "loss": "mse", **more}


class Dense(keras.Model):
    """Two layers; what inherits says how they learn."""

    def __init__(self, **options):
        super().__init__(**options)
        self.hidden, self.out = layers.Dense(8, activation="tanh"), layers.Dense(1)

    def call(self, x):
        return self.out(self.hidden(x))

    def loss_and_gradients(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        return loss, tape.gradient(loss, self.trainable_variables)


class Guide(Dense):
    """The step of Keras's guide, word for word: all metrics, the compiled ones in one."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


class MoreMetrics(Dense):
    """`compute_metrics` as in Keras's documentation: with more values for the logs."""

    def __init__(self):
        super().__init__()
        self.own = keras.metrics.MeanAbsoluteError(name="own")

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        results = super().compute_metrics(x, y, y_pred, sample_weight)
        self.own.update_state(y, y_pred)
        return {**results, "own": self.own.result(), "constant": tf.constant(0.5)}


@case(2, 3, costly=True)
def logs_of_models(folder):
    def compiled():
        return mean_squared_error(metrics=["mae"])

    return {
        "guide": compare(Guide, numbers, compiled),
        "guide, accumulated": compare(Guide, numbers, compiled, accumulate_steps=2),
        "guide, eager": compare(Guide, numbers, compiled, epochs=1, trainer=Eager),
        "compute_metrics": compare(MoreMetrics, numbers, compiled),
        "compute_metrics, accumulated": compare(MoreMetrics, numbers, compiled, accumulate_steps=3),
    }


def rooted(y, y_pred):
    return tf.sqrt(tf.reduce_mean((y - y_pred) ** 2))


def summed(y, y_pred):
    return tf.reduce_sum((y - y_pred) ** 2)


def averaged(y, y_pred):
    return tf.reduce_mean((y - y_pred) ** 2)


def by_sample(y, y_pred):
    return tf.reduce_mean((y - y_pred) ** 2, axis=-1)


class ByValidSteps(Dense):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        valid = tf.cast(y > 0, y_pred.dtype)
        return tf.reduce_sum((y - y_pred) ** 2 * valid) / (tf.reduce_sum(valid) + 1e-6)


class SummedLoss(fittrain.Trainer):
    def compute_loss(self, x, y, y_pred, sample_weight):
        return summed(y, y_pred)


class NotReduced(fittrain.Trainer):
    def compute_loss(self, x, y, y_pred, sample_weight):
        return by_sample(y, y_pred)


class Noisy(fittrain.Trainer):
    """A loss that is a mean, and another every time."""

    def compute_loss(self, x, y, y_pred, sample_weight):
        return averaged(y, y_pred + tf.random.normal(tf.shape(y_pred)))


class Own(keras.losses.Loss):
    def call(self, y, y_pred):
        return by_sample(y, y_pred)


def refusal(build=dense, data=numbers, trainer=fittrain.Trainer, loss="mse", **arguments):
    x, y, *weight = data(26)
    made = trainer(build, optimizer=keras.optimizers.SGD(1e-3), loss=loss, **arguments)
    weights = {"sample_weight": weight[0]} if weight else {}
    return message_of(lambda: made.fit(x, y, batch_size=8, verbose=0, **weights))


@case()
def losses_of_ones_own(folder):
    return {
        "root": refusal(loss=rooted),
        "sum": refusal(loss=summed),
        "mean": refusal(loss=averaged),
        "mean, weighted": refusal(data=weighted_numbers, loss=averaged),
        "by sample, weighted": refusal(data=weighted_numbers, loss=by_sample),
        "model's, by valid steps": refusal(ByValidSteps),
        "trainer's, sum": refusal(trainer=SummedLoss),
        "trainer's, not reduced": refusal(trainer=NotReduced),
        "trainer's, random": refusal(trainer=Noisy),
        "sum of one's own": refusal(loss=Own(reduction="sum")),
        "by weights": refusal(data=weighted_numbers, loss=Own(reduction="mean_with_sample_weight")),
    }


def clipping(clip):
    class Clipping(Dense):
        def train_step(self, data):
            loss, gradients = self.loss_and_gradients(data)
            self.optimizer.apply(clip(gradients), self.trainable_variables)
            return {"value": loss}

    return Clipping


class ClipsInside(Dense):
    """Its forward pass clips, which is no clipping of gradients."""

    def call(self, x):
        return tf.matmul(x, tf.clip_by_value(self.out.kernel, -0.5, 0.5))

    def build(self, shape):
        self.out.build(shape)

    train_step = clipping(list).train_step


@case()
def clipped_by_hand(folder):
    return {
        "global norm": refusal(clipping(lambda g: tf.clip_by_global_norm(g, 0.01)[0])),
        "norm": refusal(clipping(lambda g: [tf.clip_by_norm(one, 0.01) for one in g])),
        "value": refusal(clipping(lambda g: [keras.ops.clip(one, -0.01, 0.01) for one in g])),
        "scaled": refusal(clipping(lambda g: [2.0 * one for one in g])),
        "model": refusal(ClipsInside),
    }


class ReturnsRows(Dense):
    def train_step(self, data):
        loss, gradients = self.loss_and_gradients(data)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss, "rows": data[1]}


class ReturnsNothing(ReturnsRows):
    def train_step(self, data):
        super().train_step(data)


@case(1, 2)
def logs_that_are_no_numbers(folder):
    return {"rows": refusal(ReturnsRows), "nothing": refusal(ReturnsNothing)}


def images(samples):
    x = np.random.default_rng(samples).uniform(size=(samples, 4, 4, 1)).astype("float32")
    return x, (x > 0.5).astype("float32")


def classes(samples):
    return numbers(samples)[0], np.arange(samples) % 3


def masks():
    layer = layers.Conv2D(1, 1, activation="sigmoid")
    return keras.Sequential([keras.Input((4, 4, 1)), layer])


def unit_vectors():
    return keras.Sequential([keras.Input((5,)), layers.Dense(3), layers.UnitNormalization()])


@case(1, 2, 3, costly=True)
def losses_between_rows(folder):
    by_sample, whole = keras.losses.Dice(axis=(1, 2, 3)), keras.losses.Dice()

    def tversky():
        return {"optimizer": sgd(), "loss": keras.losses.Tversky(axis=(1, 2, 3))}

    return {
        "dice by sample": compare(masks, images, lambda: {"optimizer": sgd(), "loss": by_sample}),
        "tversky by sample": compare(masks, images, tversky),
        "dice": refusal(masks, images, loss=whole),
        "circle": refusal(unit_vectors, classes, loss=keras.losses.Circle()),
    }


class Apart(fittrain.Trainer):
    """Trains what is not in its model: a variable, a layer, and a model in a list in a dict.

    A target network follows, and the model counts its calls, also where a rank has no sample.
    """

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        keras.utils.set_random_seed(5 + fittrain.rank())
        self.factor = keras.Variable(1.0 + fittrain.rank())
        self.head = layers.Dense(1)
        self.head.build((None, 1))
        self.more = {"models": [keras.Sequential([keras.Input((1,)), layers.Dense(1)])]}
        self.target = dense()
        self.target.trainable = False
        self.its_optimizer = keras.optimizers.SGD(0.1)

    def train_step(self, batch):
        x, y = batch
        (more,) = self.more["models"]
        loose = [self.factor, *self.head.trainable_variables, *more.trainable_variables]
        weights = [*self.model.trainable_variables, *loose]
        with tf.GradientTape() as tape:
            found = more(self.head(self.factor * self.model(x, training=True)))
            loss = tf.reduce_mean((found - y - 0.1 * self.target(x)) ** 2)
        self.apply_gradients(tape.gradient(loss, weights), weights, self.its_optimizer)
        for old, new in zip(self.target.weights, self.model.trainable_variables, strict=True):
            old.assign(0.9 * old + 0.1 * new)
        return loss


class Counts(layers.Layer):
    def build(self, shape):
        self.calls = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)

    def call(self, x, training=False):
        if training:
            self.calls.assign_add(1)
        return x


def counting():
    return keras.Sequential([*dense().layers, Counts()])


@case()
def state_beside_the_model(folder):
    keras.utils.set_random_seed(3)
    trainer = Apart(counting, optimizer="sgd", loss="mse")
    # Batches of 4, 4 and 2: on three ranks the last gives one of them nothing.
    trainer.fit(*numbers(10), batch_size=4, epochs=2, shuffle=False, verbose=0)
    of_others = [trainer.factor, *trainer.head.weights, *trainer.more["models"][0].weights]
    weights = [*trainer.model.weights, *of_others, *trainer.target.weights]
    return [variable.numpy().tolist() for variable in weights]


class NoGradient(fittrain.Trainer):
    def train_step(self, batch):
        weights = self.model.trainable_variables
        loss = tf.reduce_mean((self.model(batch[0]) - batch[1]) ** 2)
        self.apply_gradients([None for _ in weights], weights)
        return loss


@case(1, 2)
def no_gradient_at_all(folder):
    return refusal(trainer=NoGradient)


def half_precise():
    return keras.Sequential([keras.Input((5,)), layers.Dense(1, dtype="mixed_float16")])


def opposite(samples):
    """Gradients of single rows are large, and cancel over a batch."""
    return numbers(samples)[0], np.resize([[3.0], [-3.0]], (samples, 1)).astype("float32")


@case(1, 2, 3)
def loss_scale_of_parts(folder):
    def updates(steps):
        keras.utils.set_random_seed(3)
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.01), initial_scale=2.0**14
        )
        trainer = fittrain.Trainer(
            half_precise, optimizer=optimizer, loss="mse", accumulate_steps=steps
        )
        trainer.fit(*opposite(24), batch_size=24, epochs=1, shuffle=False, verbose=0)
        return int(trainer.model.optimizer.inner_optimizer.iterations.numpy())

    return [updates(1), updates(24)]


class Adds(layers.Layer):
    """Adds a loss of its inputs, as `reduce` makes one of the samples' losses."""

    def __init__(self, reduce):
        super().__init__()
        self.reduce = reduce

    def call(self, x):
        self.add_loss(0.1 * self.reduce(tf.reduce_mean(x**2, axis=-1)))
        return x


def adding(reduce):
    return lambda: keras.Sequential([*dense().layers, Adds(reduce)])


@case(2)
def losses_that_layers_add(folder):
    return {
        "mean": compare(adding(tf.reduce_mean), numbers, mean_squared_error),
        "sum": refusal(adding(tf.reduce_sum)),
        "regulariser": refusal(
            lambda: keras.Sequential([keras.Input((5,)), layers.Dense(1, kernel_regularizer="l2")])
        ),
    }


class HoldsVariable(fittrain.Trainer):
    """Changes a variable that no optimizer sees."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.factor = keras.Variable(1.0, name="factor")

    def train_step(self, batch):
        loss = super().train_step(batch)
        self.factor.assign_sub(loss)
        return loss


@case(2)
def a_variable_of_the_trainer_changed_by_hand(folder):
    return refusal(trainer=HoldsVariable)


class Headed(fittrain.Trainer):
    """Its model ends in a layer of the trainer."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        keras.utils.set_random_seed(5)
        self.factor, self.head = keras.Variable(1.0), layers.Dense(1)
        self.head.build((None, 1))

    def train_step(self, batch):
        x, y = batch
        weights = [*self.model.trainable_variables, self.factor, *self.head.trainable_variables]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.head(self.factor * self.model(x)) - y) ** 2)
        self.apply_gradients(tape.gradient(loss, weights), weights)
        return loss


@case(2)
def what_is_beside_the_model_accumulated(folder):
    def trained(steps):
        keras.utils.set_random_seed(3)
        trainer = Headed(dense, optimizer="sgd", loss="mse", accumulate_steps=steps)
        trainer.fit(*numbers(8), batch_size=8, epochs=1, verbose=0)
        return [trainer.factor, *trainer.head.weights, *trainer.model.trainable_variables]

    pairs = zip(trained(1), trained(2), strict=True)
    return max(float(np.abs(a.numpy() - b.numpy()).max()) for a, b in pairs)


@case(2)
def a_model_with_a_batch_of_its_own(folder):
    def build():
        return keras.Sequential([keras.Input(batch_shape=(4, 5)), layers.Dense(1)])

    def fit(samples, **arguments):
        trainer = fittrain.Trainer(build, optimizer="sgd", loss="mse", **arguments)
        return message_of(lambda: trainer.fit(*numbers(samples), batch_size=8, verbose=0))

    return [fit(26), fit(24), fit(24, accumulate_steps=2)]
