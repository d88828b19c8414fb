"""Mixed precision: every rank skips or applies together, and a hopeless run ends."""

import keras
import numpy as np
from cases import case, message_of, ones

import fittrain
from fittrain.testing import digest, probe_trainer, probe_weight


def half_probe(**arguments):
    return probe_trainer(precision="mixed_float16", **arguments)


class Watch(keras.callbacks.Callback):
    """Weight and loss scale after every update."""

    def __init__(self, trainer):
        super().__init__()
        self.trainer, self.seen = trainer, []

    def on_train_batch_end(self, batch, logs=None):
        scale = float(self.trainer.model.optimizer.dynamic_scale.numpy())
        self.seen.append([probe_weight(self.trainer), scale, logs["loss"]])


@case(4)
def overflow_on_one_rank(folder):
    x, y = ones(*np.tile([0.1, 0.2, 0.3, 0.4], 4))
    x[10] = 1e30  # rank 2's sample of update 3
    trainer = half_probe()
    watch = Watch(trainer)
    trainer.fit(x, y, batch_size=4, shuffle=False, callbacks=[watch], verbose=0)
    return [watch.seen, int(trainer.model.optimizer.iterations), digest(trainer)]


@case(2)
def half_precision_probe(folder):
    found = {}
    for precision in ("mixed_float16", "mixed_bfloat16"):
        for steps in (1, 2):
            trainer = probe_trainer(precision=precision, accumulate_steps=steps)
            # Keras wraps the optimizer by itself under mixed_float16.
            history = trainer.fit(
                *ones(0.1, 0.2, 0.3, 0.4), batch_size=4, shuffle=False, epochs=3, verbose=0
            )
            wrapped = type(trainer.model.optimizer).__name__
            found[f"{precision} {steps}"] = [
                probe_weight(trainer),
                wrapped,
                history.history["loss"][0],
            ]
    return found


@case(2)
def precision_of_a_model_that_is_made(folder):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    trainer = fittrain.Trainer(model, optimizer="sgd", loss="mse", precision="mixed_float16")
    return message_of(lambda: trainer.fit(*ones(1, 2), verbose=0))


@case(2, 4)
def half_precision_on_the_wire(folder):
    found = []
    for scale in (1.0, 30000.0, 1e-6):
        for steps in (1, 2):
            trainer = probe_trainer(wire_dtype="float16", accumulate_steps=steps)
            x, y = ones(*(np.arange(1, 9) * scale))
            trainer.fit(x, y, batch_size=8, shuffle=False, verbose=0)
            found.append(probe_weight(trainer) / scale)
    return found


@case(2)
def optimizers_of_ranks_that_have_built_others(folder):
    """Automatic names count what a rank has made before, also those of wrapped optimizers."""
    for _ in range(fittrain.rank()):
        keras.optimizers.SGD()
        keras.optimizers.schedules.CosineDecay(0.1, 10)
    schedule = keras.optimizers.schedules.CosineDecay(0.5, 1000)
    trainer = half_probe(optimizer=keras.optimizers.SGD(schedule))
    return message_of(lambda: trainer.fit(*ones(0.1, 0.3), batch_size=2, verbose=0))
