"""One process: the synchronised layer next to Keras's own, and converting models."""

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import fittrain
from fittrain.batch import Batch
from fittrain.comm.local import LocalCommunicator
from fittrain.errors import ArgumentError
from fittrain.layers import SyncBatchNormalization, convert_batch_norm
from fittrain.testing import RecordingCommunicator

pytestmark = pytest.mark.usefixtures("fresh_session")


def entered(x, communicator=None, count=None, is_training=True):
    """A batch under way with `x`."""
    count = tf.constant(float(len(x) if count is None else count))
    return Batch((x,), count, count, is_training, communicator or LocalCommunicator()).entered()


def passed(layer, x, batch=None, mask=None):
    """Outputs, gradients and moving averages of a layer, as `y * y`'s mean would make them."""
    x = tf.convert_to_tensor(x)
    if not layer.built:
        layer.build(x.shape)
    with batch or entered(x, is_training=False), tf.GradientTape() as tape:
        tape.watch(x)
        outputs = layer(x, training=True, **({} if mask is None else {"mask": mask}))
        target = tf.cast(tf.range(tf.size(outputs)), outputs.dtype) / 7.0
        loss = tf.reduce_mean((tf.reshape(outputs, [-1]) - target) ** 2)
    gradients = tape.gradient(loss, [x, *[v.value for v in layer.trainable_variables]])
    return [outputs, *gradients, layer.moving_mean.value, layer.moving_variance.value]


def assert_equal(found, expected, tolerance=1e-5):
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(
            np.asarray(one, "float64"), np.asarray(other, "float64"), tolerance, tolerance
        )


def normal(*shape, dtype="float32"):
    return np.random.default_rng(0).normal(3.0, 2.0, size=shape).astype(dtype)


@pytest.mark.parametrize(
    ("shape", "arguments"),
    [
        ((6, 4), {}),
        ((6, 4), {"center": False, "scale": False, "epsilon": 1e-2}),
        ((5, 3, 4, 2), {"momentum": 0.5}),
        ((5, 3, 4, 2), {"axis": 1}),
        ((3, 2, 2, 2, 3), {}),
        ((3, 2, 2, 2, 3), {"axis": 2}),
        ((6, 4), {"dtype": "float64"}),
        ((6, 4), {"dtype": "mixed_float16"}),
        ((6, 4), {"dtype": "mixed_bfloat16"}),
    ],
)
@pytest.mark.parametrize("size", [1, 2])
def test_it_computes_what_kerass_layer_does(shape, arguments, size):
    # Where every rank holds the same samples the global moments are those of one rank.
    communicator = RecordingCommunicator(size=size) if size > 1 else LocalCommunicator()
    x = normal(*shape, dtype="float64" if arguments.get("dtype") == "float64" else "float32")
    expected = passed(keras.layers.BatchNormalization(**arguments), x)
    assert_equal(passed(SyncBatchNormalization(**arguments), x, entered(x, communicator)), expected)


@pytest.mark.parametrize("size", [1, 2])
def test_masked_positions_do_not_count(size):
    x = normal(4, 3, 2)
    mask = np.asarray([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0]], bool)
    x[~mask] = 1e6
    expected = passed(keras.layers.BatchNormalization(), x, mask=mask)
    batch = entered(x, RecordingCommunicator(size=size))
    assert_equal(passed(SyncBatchNormalization(), x, batch, mask=mask), expected)


def test_a_nan_behind_a_mask_stays_there():
    x = normal(2, 3, 2)
    mask = np.asarray([[1, 1, 0], [1, 1, 1]], bool)
    x[0, 2] = np.nan
    layer = SyncBatchNormalization()
    layer.build(x.shape)
    with entered(x):
        layer(x, training=True, mask=mask)
    assert np.isfinite(layer.moving_variance.numpy()).all()


def test_moments_of_data_far_from_zero_are_those_of_kerass_layer_or_better():
    x = np.random.default_rng(0).normal(1000.0, 1.0, size=(4096, 3)).astype("float32")
    exact = np.var(x.astype("float64"), axis=0)

    def error(layer, **options):
        passed(layer, x, **options)
        return np.abs(layer.moving_variance.numpy() / exact - 1.0).max()

    own = error(SyncBatchNormalization(momentum=0.0), batch=entered(x, RecordingCommunicator()))
    # What is left is the rounding of 4096 squares added up in float32.
    assert own < 3e-6
    assert own <= error(keras.layers.BatchNormalization(momentum=0.0)) + 1e-6


def test_every_call_of_a_layer_has_an_exchange_each_way_with_a_name_of_its_own():
    names = []

    class Naming(RecordingCommunicator):
        def all_reduce(self, flat, name="gradients"):
            names.append((name, tuple(flat.shape), flat.dtype.name))
            return super().all_reduce(flat, name)

    layer, x = SyncBatchNormalization(), tf.constant(normal(4, 2))
    layer.build(x.shape)
    with entered(x, Naming()), tf.GradientTape() as tape:
        tape.watch(x)
        outputs = layer(layer(x, training=True), training=True)
        tape.gradient(outputs, x)
    assert names == [
        ("batch_norm.1", (6,), "float64"),
        ("batch_norm.2", (6,), "float64"),
        ("batch_norm_gradient.3", (4,), "float64"),
        ("batch_norm_gradient.4", (4,), "float64"),
    ]


@pytest.mark.parametrize("options", [{"is_training": False}, {"frozen": True}])
def test_outside_of_training_nothing_is_exchanged(options):
    layer, x, communicator = SyncBatchNormalization(), normal(4, 2), RecordingCommunicator()
    layer.build(x.shape)
    layer.trainable = not options.pop("frozen", False)
    with entered(x, communicator, **options):
        layer(x, training=True)
    assert communicator.calls == []


class OtherRankOnly(RecordingCommunicator):
    """The other rank holds the samples 0 and 10; this one a row that stands in."""

    def all_reduce(self, flat, name="gradients"):
        self.calls.append(("all_reduce", flat.numpy().tolist()))
        other = [2.0, 10.0, 100.0] if len(flat) == 3 else [1.0, 1.0]
        return flat + tf.constant(other, flat.dtype)


def test_a_row_that_stands_in_does_not_count_but_follows():
    x, communicator = np.asarray([[np.nan]], "float32"), OtherRankOnly()
    layer = SyncBatchNormalization(momentum=0.9)
    _, by_x, *_ = passed(layer, x, entered(x, communicator, count=0))
    assert [flat for _, flat in communicator.calls] == [[0.0, 0.0, 0.0], [0.0, 0.0]]
    assert layer.moving_mean.numpy() == pytest.approx([0.5])
    assert layer.moving_variance.numpy() == pytest.approx([3.4])


def test_second_derivatives_are_refused():
    layer, x = SyncBatchNormalization(), tf.constant(normal(4, 2))
    layer.build(x.shape)
    with entered(x), tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            outputs = tf.reduce_sum(layer(x, training=True) ** 2)
        penalty = tf.reduce_sum(inner.gradient(outputs, x) ** 2)
    with pytest.raises(ArgumentError, match="has no second derivatives.*LayerNormalization"):
        outer.gradient(penalty, x)


def images():
    inputs = keras.Input((6, 6, 2))
    shared = keras.layers.BatchNormalization(name="shared")
    inner = keras.Sequential(
        [keras.Input((6, 6, 3)), keras.layers.BatchNormalization(name="inside")], name="nested"
    )
    x = shared(keras.layers.Conv2D(3, 3, padding="same", name="conv")(inputs))
    x = inner(shared(keras.layers.Activation("relu")(x))) + 1.0
    steps = keras.layers.Reshape((6, 18))(x)
    steps = keras.layers.TimeDistributed(keras.layers.BatchNormalization(), name="wrapped")(steps)
    pooled = keras.layers.GlobalAveragePooling1D()(keras.layers.Dropout(0.1, seed=3)(steps))
    return keras.Model(inputs, keras.layers.Dense(1)(pooled))


@pytest.fixture
def double():
    """Everything in float64, so that a difference is one of method and not of rounding."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.usefixtures("double")
def test_training_a_converted_model_equals_plain_keras(run_eagerly):
    keras.utils.set_random_seed(3)
    plain = images()
    model = convert_batch_norm(plain)
    x, y = (normal(*shape, dtype="float64") for shape in [(10, 6, 6, 2), (10, 1)])
    for one in (plain, model):
        one.compile(keras.optimizers.SGD(0.05), "mse", run_eagerly=run_eagerly)
    settings = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}
    plain.fit(x, y, **settings)
    trainer = fittrain.Trainer(model, backend="local")
    trainer.fit(x, y, **settings)
    assert_equal(model.get_weights(), plain.get_weights(), 1e-10)


def kinds(model):
    layers = model._flatten_layers()
    return [type(one) for one in layers if isinstance(one, keras.layers.BatchNormalization)]


def names(model):
    return [layer.name for layer in model._flatten_layers()]


def test_conversion_reaches_nested_models_and_wrappers_and_goes_back(tmp_path):
    model = images()
    model.compile("sgd", "mse")
    model.get_layer("nested").trainable = False
    model.get_layer("conv").trainable = False
    model.set_weights([normal(*weight.shape) for weight in model.get_weights()])
    converted = convert_batch_norm(model)
    assert kinds(model) == [keras.layers.BatchNormalization] * 3
    assert kinds(converted) == [SyncBatchNormalization] * 3
    back = convert_batch_norm(converted, synchronized=False)
    assert kinds(back) == [keras.layers.BatchNormalization] * 3
    for one in (converted, back):
        assert names(one) == names(model)
        assert_equal(one.get_weights(), model.get_weights(), 0)
        trainable = [layer.trainable for layer in one._flatten_layers()]
        assert trainable == [layer.trainable for layer in model._flatten_layers()]
        assert not one.compiled
    assert model.compiled
    x = normal(2, 6, 6, 2)
    assert_equal([converted(x), back(x)], [model(x), model(x)])


WITHOUT_FITTRAIN = """
import sys
sys.modules["fittrain"] = None
import keras
print(keras.models.load_model(sys.argv[1]).count_params())
"""


def test_a_model_converted_back_opens_without_fittrain_and_the_other_with_it(tmp_path):
    model = convert_batch_norm(images())
    model.save(tmp_path / "own.keras")
    assert kinds(keras.models.load_model(tmp_path / "own.keras")) == [SyncBatchNormalization] * 3
    convert_batch_norm(model, synchronized=False).save(tmp_path / "plain.keras")
    code = [sys.executable, "-c", WITHOUT_FITTRAIN, str(tmp_path / "plain.keras")]
    printed = subprocess.run(code, capture_output=True, text=True, check=True).stdout
    assert int(printed) == model.count_params()


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.norm = keras.layers.BatchNormalization()

    def call(self, x):
        return self.norm(x)


class Block(keras.layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.norm = keras.layers.BatchNormalization()

    def call(self, x):
        return self.norm(x)


class Own(keras.layers.BatchNormalization):
    pass


@pytest.mark.parametrize("part", [Subclassed, Block, Own])
def test_what_a_conversion_cannot_rebuild_is_refused_by_name(part):
    with pytest.raises(ArgumentError, match=rf"{part.__name__}.*Use fittrain\.layers\.Sync"):
        convert_batch_norm(keras.Sequential([keras.Input((2,)), part()]))


def test_only_models_are_converted():
    with pytest.raises(ArgumentError, match="`model` must be a keras.Model. Received: int"):
        convert_batch_norm(3)


def test_layers_are_found_below_the_package():
    code = "import fittrain; print(fittrain.layers.SyncBatchNormalization.__name__)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert printed.strip() == "SyncBatchNormalization"
