"""How many exchanges one update takes, with everything that might add to them."""

import keras
import numpy as np
import pytest

import fittrain
from fittrain.testing import RecordingCommunicator, probe_trainer

pytestmark = pytest.mark.usefixtures("fresh_session")


def in_the_graph(communicator):
    """Dtypes of the exchanges of gradients, as the one trace of an update recorded them."""
    return [detail[1] for kind, detail in communicator.calls if kind.startswith("all_")]


@pytest.mark.parametrize("clipping", ["clipnorm", "global_clipnorm", "clipvalue", None])
def test_perf_04_clipping_exchanges_nothing_twice(clipping):
    communicator = RecordingCommunicator()
    options = {clipping: 1.0} if clipping else {}
    optimizer = keras.optimizers.SGD(0.5, **options)
    trainer = probe_trainer(backend=communicator, optimizer=optimizer)
    x = np.ones((20, 1), "float32")
    trainer.fit(x, x, batch_size=2, verbose=0)
    assert trainer.model.optimizer.iterations == 10
    assert in_the_graph(communicator) == ["float32"]


def test_a_sparse_gradient_adds_one_small_exchange_and_its_own():
    communicator = RecordingCommunicator()
    parts = [keras.layers.Embedding(50, 2), keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((1,), dtype="int32"), *parts])
    trainer = fittrain.Trainer(model, backend=communicator, optimizer="adam", loss="mse")
    x = np.arange(8, dtype="int32")[:, None]
    trainer.fit(x, x.astype("float32"), batch_size=4, verbose=0)
    # Traced are both ways that the embedding's rows may take; then the dense layer's weights.
    expected = ["float64", "float32", "float32", "float32", "int32"]
    assert sorted(in_the_graph(communicator)) == sorted(expected)
