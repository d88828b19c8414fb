"""The rate of every update on every rank."""

import keras
import numpy as np
from cases import against_keras, case, message_of, mlp, ones, toy

import fittrain
from fittrain.testing import probe_trainer


class Rates(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))


def warming_up(**arguments):
    return probe_trainer(
        optimizer=keras.optimizers.SGD(0.1),
        learning_rate=fittrain.Warmup(**{"epochs": 5, **arguments}),
    )


def rates_of(trainer, callbacks=(), **arguments):
    """Two updates in an epoch, of one sample on each rank."""
    rates = Rates()
    x, y = ones(*[1.0] * 2 * fittrain.size())
    callbacks = [*callbacks, rates]
    trainer.fit(x, y, batch_size_per_rank=1, callbacks=callbacks, verbose=0, **arguments)
    return rates.seen


def carry_over(source, target):
    """What a checkpoint does: the optimizer's variables, the scaled rate among them."""
    target.model.optimizer.build(target.model.trainable_variables)
    target.model.optimizer.set_weights([v.numpy() for v in source.model.optimizer.variables])


@case(1, 2, 4)
def rates_of_a_warmup(folder):
    whole = rates_of(warming_up(), epochs=7)
    first, resumed = warming_up(), warming_up()
    parts = rates_of(first, epochs=3)
    carry_over(first, resumed)
    parts += rates_of(resumed, epochs=7, initial_epoch=3)
    late = rates_of(warming_up(), epochs=12, initial_epoch=10)
    return {"whole": whole, "parts": parts, "late": late}


@case(4, backends=("mpi",))
def rates_with_an_identity_scheduler(folder):
    identity = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate)
    return rates_of(warming_up(epochs=2), [identity], epochs=4)


@case(2)
def rates_with_a_plateau(folder):
    def plateau():
        return keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=0, min_delta=100)

    x, y = ones(1.0)
    settings = {"epochs": 4, "validation_data": (x, y)}
    everywhere = rates_of(warming_up(epochs=1), [plateau()], **settings)
    trainer = warming_up(epochs=1)
    on_rank_0 = [plateau()] if fittrain.rank() == 0 else []
    refusal = message_of(lambda: rates_of(trainer, on_rank_0, **settings))
    return {
        "everywhere": everywhere,
        "refusal": refusal,
        "updates": int(trainer.model.optimizer.iterations),
    }


@case(2, backends=("mpi",))
def warmups_that_differ(folder):
    second = fittrain.rank() == 1
    loaded = warming_up()
    if second:
        loaded.model.optimizer.learning_rate = 0.2
    return {
        "epochs": message_of(lambda: rates_of(warming_up(epochs=4 if second else 5))),
        "none": message_of(lambda: rates_of(probe_trainer() if second else warming_up())),
        "base": message_of(lambda: rates_of(loaded)),
        "global batch": message_of(
            lambda: warming_up().fit(*ones(1.0, 2.0), batch_size=2, verbose=0)
        ),
    }


@case(1, 2, 3)
def a_warmup_and_a_schedule_against_keras(folder):
    """The same global batches with the same rates, in plain Keras."""
    x, y = toy(45)
    settings = {"batch_size": 8, "epochs": 3, "shuffle": False, "verbose": 0}
    decay = keras.optimizers.schedules.ExponentialDecay(0.05, 4, 0.5)
    trainer = fittrain.Trainer(
        mlp,
        optimizer=keras.optimizers.Adam(decay),
        loss="binary_crossentropy",
        learning_rate=fittrain.Warmup(epochs=1, base_batch_size=2),
    )
    trainer.fit(x, y, **settings)
    # The factor is sqrt(8 / 2) = 2, and an epoch has 6 updates.
    rates = [0.05 + 0.05 * s / 6 for s in range(6)]
    rates += [2 * 0.05 * 0.5 ** (s / 4) for s in range(12)]
    by_hand = keras.optimizers.schedules.PiecewiseConstantDecay(list(range(17)), rates)
    plain = mlp()
    plain.compile(keras.optimizers.Adam(by_hand), "binary_crossentropy")
    plain.fit(x, y, **settings)
    pairs = zip(trainer.model.get_weights(), plain.get_weights(), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


@case(1, 2)
def lars_against_keras(folder):
    # Vectors take the plain step, for which 1 is no small rate.
    options = {"weight_decay": 1e-3, "trust_coefficient": 0.02, "nesterov": True}
    return against_keras(lambda: fittrain.optimizers.LARS(1.0, **options), samples=45)


@case(1, 2)
def lamb_against_keras(folder):
    return against_keras(lambda: keras.optimizers.Lamb(0.01, weight_decay=1e-3), samples=45)
