"""Does an optimizer average over ranks? One weight tells.

    mpirun -np 2 python examples/averaging.py

Rank r has the target r + 1. Averaging moves the weight of every rank onto the mean target; training
alone moves it onto the rank's own, and that is what Horovod's Keras API does on Keras 3, without an
error.
"""

import fittrain
import keras
import numpy as np
from fittrain.testing import probe_model, probe_trainer, probe_weight


def with_horovods_keras_api(target: float) -> float:
    import horovod.tensorflow.keras as hvd

    model = probe_model()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5)), "mse")
    model.fit(np.ones((1, 1)), np.full((1, 1), target), verbose=0)
    return model.get_weights()[0].item()


def with_fittrain(targets: np.ndarray) -> float:
    trainer = probe_trainer(backend="horovod")
    trainer.fit(np.ones_like(targets), targets, batch_size=len(targets), verbose=0)
    return probe_weight(trainer)


if __name__ == "__main__":
    communicator = fittrain.init("horovod").communicator
    targets = np.arange(1.0, communicator.size + 1)[:, None]
    theirs = communicator.gather(with_horovods_keras_api(targets[communicator.rank].item()))
    ours = communicator.gather(with_fittrain(targets))
    if communicator.is_chief:
        print("mean target             ", targets.mean())
        print("hvd.DistributedOptimizer", theirs)
        print("fittrain.Trainer        ", ours)
