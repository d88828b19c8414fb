"""One process: what a `Trainer` shares with plain Keras beyond the numbers of one `fit`."""

import keras
import numpy as np
import pytest

import fittrain
from fittrain.testing import probe_model, probe_trainer

pytestmark = pytest.mark.usefixtures("fresh_session")


def ones(*targets):
    y = np.asarray(targets, "float32")[:, None]
    return np.ones_like(y), y


def two_outputs():
    keras.utils.set_random_seed(3)
    inputs = keras.Input((2,))
    outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in ("a", "b")}
    model = keras.Model(inputs, outputs)
    model.compile("sgd", {"a": "mse", "b": "mae"}, metrics={"a": ["mse", "mae"], "b": ["mae"]})
    return model


def test_another_loss_with_the_same_optimizer_takes_effect():
    model, optimizer = probe_model(), keras.optimizers.SGD(0.5)
    trainer = fittrain.Trainer(model, backend="local")
    x, y = ones(4, 8)
    model.compile(optimizer, "mse", metrics=["mse"])
    trainer.fit(x, y, verbose=0)
    assert model.get_weights()[0].item() == 6.0
    model.compile(optimizer, "mae", metrics=["mae"])
    # Errors at weight 6: 2 and -2, whose signs cancel out.
    assert trainer.evaluate(x, y, verbose=0, return_dict=True) == {"loss": 2.0, "mae": 2.0}
    history = trainer.fit(x, y + 10, verbose=0).history
    assert history == {"loss": [10.0], "mae": [10.0]}
    assert model.get_weights()[0].item() == 6.5


def test_metrics_alone_can_be_compiled_anew():
    model, optimizer = probe_model(), keras.optimizers.SGD(0.5)
    trainer = fittrain.Trainer(model, backend="local")
    model.compile(optimizer, "mse")
    trainer.fit(*ones(2), verbose=0)
    assert trainer.evaluate(*ones(5), verbose=0) == 9.0
    model.compile(optimizer, "mse", metrics=["mae"])
    assert trainer.evaluate(*ones(5), verbose=0) == [9.0, 3.0]


def test_evaluate_lists_metrics_in_the_order_of_keras():
    trainer = probe_trainer(backend="local", metrics=["mse", "mae"])
    x, y = ones(1, 2, 3)
    found = trainer.evaluate(x, y, verbose=0)
    assert found == pytest.approx([14 / 3, 14 / 3, 2.0])
    assert found == trainer.model.evaluate(x, y, verbose=0)


def test_evaluate_lists_several_outputs_in_the_order_of_keras():
    model = two_outputs()
    generator = np.random.default_rng(0)
    x = generator.normal(size=(7, 2)).astype("float32")
    y = {name: generator.normal(size=(7, 1)).astype("float32") for name in ("a", "b")}
    found = fittrain.Trainer(model, backend="local").evaluate(x, y, batch_size=4, verbose=0)
    assert found == pytest.approx(model.evaluate(x, y, batch_size=4, verbose=0), abs=1e-6)
    assert len(set(found)) == 6


class ToldWhetherItTrains(keras.Model):
    def __init__(self):
        super().__init__()
        self.out = keras.layers.Dense(1)

    def call(self, x):
        return self.out(x)

    def compute_loss(self, x, y, y_pred, sample_weight, training=True):
        return keras.ops.mean(y_pred) * 0.0 + (1.0 if training else 5.0)


def test_a_loss_of_the_model_is_told_whether_it_trains():
    model = ToldWhetherItTrains()
    trainer = fittrain.Trainer(model, optimizer="sgd", loss="mse", backend="local")
    history = trainer.fit(*ones(1, 2), validation_data=ones(3), verbose=0).history
    assert history == {"loss": [1.0], "val_loss": [5.0]}
    assert trainer.evaluate(*ones(3), verbose=0) == 5.0


def test_data_of_another_structure_can_follow():
    trainer = probe_trainer(backend="local", metrics=["mae"])
    x, y = ones(2, 4)
    trainer.fit(x, y.astype("int32"), verbose=0)
    assert trainer.evaluate(x, y, verbose=0) == [1.0, 1.0]
    assert trainer.evaluate(x, y.astype("int32"), verbose=0) == [1.0, 1.0]
    weights = np.asarray([0.0, 3.0], "float32")
    assert trainer.evaluate(x, y, sample_weight=weights, verbose=0) == [1.5, 1.0]
    assert trainer.evaluate(x, y, verbose=0) == [1.0, 1.0]
    trainer.fit(x, y, sample_weight=weights, verbose=0)
    assert trainer.predict(x).tolist() == [[4.5], [4.5]]


def test_rows_of_another_shape_can_follow():
    model = keras.Sequential([keras.Input((None, 1)), keras.layers.GlobalAveragePooling1D()])
    model.compile("sgd", "mse")
    trainer = fittrain.Trainer(model, backend="local")
    for steps in (3, 5, 3):
        assert trainer.predict(np.full((4, steps, 1), steps)).tolist() == [[steps]] * 4


def test_a_wrong_shape_does_not_spoil_the_next_call():
    trainer = probe_trainer(backend="local")
    x, y = ones(2, 4)
    with pytest.raises(ValueError, match="expected axis -1|incompatible"):
        trainer.predict(np.ones((2, 3), "float32"))
    assert trainer.predict(x).tolist() == [[0.0], [0.0]]
    trainer.fit(x, y, verbose=0)
    with pytest.raises(ValueError, match="expected axis -1|incompatible"):
        trainer.predict(np.ones((2, 3), "float32"))
    assert trainer.predict(x).tolist() == [[3.0], [3.0]]


def test_the_models_history_stays_that_of_fit():
    trainer = probe_trainer(backend="local")
    x, y = ones(2, 4)
    history = trainer.fit(x, y, epochs=2, verbose=0)
    trainer.evaluate(x, y, verbose=0)
    assert trainer.model.history is history
    assert len(trainer.model.history.history["loss"]) == 2


class SeenBatches(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.calls = []

    def on_test_batch_begin(self, batch, logs=None):
        self.calls.append(("begin", batch))

    def on_test_batch_end(self, batch, logs=None):
        self.calls.append(("end", batch))


def test_callbacks_see_every_validation_batch():
    data = ones(*range(13))
    settings = {"batch_size": 4, "epochs": 2, "validation_data": data, "verbose": 0}
    ours, theirs = SeenBatches(), SeenBatches()
    trainer = probe_trainer(backend="local")
    trainer.fit(*data, callbacks=[ours], **settings)
    trainer.evaluate(*data, batch_size=4, callbacks=[ours], verbose=0)
    plain = probe_model()
    plain.compile("sgd", "mse")
    plain.fit(*data, callbacks=[theirs], **settings)
    plain.evaluate(*data, batch_size=4, callbacks=[theirs], verbose=0)
    assert ours.calls == theirs.calls
    assert len(ours.calls) == 3 * 4 * 2


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_averaged_weights_become_the_weights_as_in_keras(momentum):
    def optimizer():
        return keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=momentum)

    settings = {"batch_size": 2, "epochs": 3, "shuffle": False, "verbose": 0}
    trainer = probe_trainer(backend="local", optimizer=optimizer())
    trainer.fit(*ones(1, 2, 3), **settings)
    plain = probe_model()
    plain.compile(optimizer(), "mse")
    plain.fit(*ones(1, 2, 3), **settings)
    np.testing.assert_allclose(trainer.model.get_weights()[0], plain.get_weights()[0], rtol=1e-6)
