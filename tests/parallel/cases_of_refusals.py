"""Calls that ranks make differently, or that only some of them get right."""

import keras
import numpy as np
from cases import case, message_of, ones

import fittrain
from fittrain.testing import Ledger, probe_model, probe_trainer, probe_weight


@case(2, backends=("mpi",))
def differences_between_ranks(folder):
    second = fittrain.rank() == 1
    x, y = ones(1, 2, 3, 4)

    def fit(trainer=None, **arguments):
        return message_of(lambda: (trainer or probe_trainer()).fit(x, y, verbose=0, **arguments))

    def compiled(**arguments):
        return fit(fittrain.Trainer(probe_model, optimizer="sgd", **{"loss": "mse", **arguments}))

    def init_again():
        fittrain.init(seed=7 + fittrain.rank())

    found = {
        "init": message_of(init_again),
        "seed": fit(probe_trainer(seed=fittrain.rank())),
        "sample_weight": fit(sample_weight=np.ones(4, "float32") if second else None),
        "validation_data": fit(validation_data=(x, y) if second else None),
        "loss": compiled(loss="mae" if second else "mse"),
        "metrics": compiled(metrics=["mae"] if second else ["mse"]),
        "steps_per_execution": fit(probe_trainer(steps_per_execution=2 if second else 1)),
    }
    # The seeds above must not reach later cases.
    fittrain.init(seed=7)
    return found


@case(2, backends=("mpi",))
def samples_after_seeds_that_differed(folder):
    x = np.arange(8, dtype="float32")[:, None]
    refused = message_of(
        lambda: probe_trainer(seed=20 + fittrain.rank()).fit(x, x, batch_size=8, verbose=0)
    )
    trainer = probe_trainer(trainer=Ledger)
    trainer.fit(x, x, batch_size=8, verbose=0)
    fittrain.init(seed=7)
    return [refused[0], trainer.ids[0]]


@case(2, backends=("mpi",))
def a_refusal_on_one_rank_leaves_ranks_in_step(folder):
    trainer = probe_trainer()
    x, y = ones(*range(1, 9))
    callbacks = 5 if fittrain.rank() == 1 else None
    refusals = [
        message_of(lambda: trainer.fit(x, y, callbacks=callbacks, verbose=0)),
        message_of(lambda: trainer.evaluate(x, y, callbacks=callbacks, verbose=0)),
    ]
    trainer.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    return [refusals, probe_weight(trainer)]


@case(2, backends=("mpi",))
def calls_for_every_validation_batch(folder):
    class Count(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.batches = []

        def on_test_batch_end(self, batch, logs=None):
            self.batches.append(batch)

    x, y = ones(*range(13))
    counts = [Count(), Count()]
    settings = {"batch_size": 4, "epochs": 2, "validation_data": (x, y), "verbose": 0}
    probe_trainer().fit(x, y, callbacks=counts[:1], **settings)
    plain = probe_model()
    plain.compile("sgd", "mse")
    plain.fit(x, y, callbacks=counts[1:], **settings)
    return [count.batches for count in counts]
