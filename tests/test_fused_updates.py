"""Fused updates against Keras's own: the same numbers, for everything that Keras lets one set."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from fittrain import fused_updates

UPDATES = 25
OPTIMIZERS = {
    "sgd": lambda **k: keras.optimizers.SGD(0.05, **k),
    "momentum": lambda **k: keras.optimizers.SGD(0.02, momentum=0.9, **k),
    "nesterov": lambda **k: keras.optimizers.SGD(0.02, momentum=0.9, nesterov=True, **k),
    "adam": lambda **k: keras.optimizers.Adam(0.01, **k),
    "adamw": lambda **k: keras.optimizers.AdamW(0.01, **{"weight_decay": 0.1, **k}),
}
SETTINGS = {
    "plain": {},
    "clipnorm": {"clipnorm": 0.3},
    "clipvalue": {"clipvalue": 0.2},
    "global_clipnorm": {"global_clipnorm": 0.5},
    "weight_decay": {"weight_decay": 0.05},
    "ema": {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 4},
    "accumulated": {"gradient_accumulation_steps": 3},
    "loss_scale_factor": {"loss_scale_factor": 8.0},
}
KERNELS = {"ResourceApplyGradientDescent", "ResourceApplyKerasMomentum", "ResourceApplyAdam"}
# Of weights of about 1. Keras rounds the betas to float32 also for float64.
TOLERANCE = {"float32": 1e-6, "float64": 1e-12}


def variables_of(dtype="float32", constraint=None):
    generator = np.random.default_rng(5)
    return [
        keras.Variable(generator.normal(size=shape), dtype=dtype, constraint=constraint, name=name)
        for name, shape in [("kernel", (7, 5)), ("bias", (5,)), ("scalar", ()), ("table", (9, 3))]
    ]


def gradients_of(dtype="float32", updates=UPDATES):
    """Of changing size, so that moments built with another rounding would show."""
    generator = np.random.default_rng(6)
    shapes = [variable.shape for variable in variables_of()]
    return [
        [tf.constant(generator.normal(size=shape) * (1 + step % 5), dtype) for shape in shapes]
        for step in range(updates)
    ]


def train(apply, optimizer, variables, gradients, in_graph=True):
    """Weights and optimizer state after the updates."""
    optimizer.build(variables)
    step = lambda *parts: apply(optimizer, list(parts), variables)  # noqa: E731
    step = tf.function(step, autograph=False) if in_graph else step
    for parts in gradients:
        step(*parts)
    optimizer.finalize_variable_values(variables)
    return [np.asarray(v.numpy(), "float64") for v in [*variables, *optimizer.variables]]


def by_keras(optimizer, gradients, variables):
    optimizer.apply(gradients, variables)


def assert_same(make, gradients, tolerance=1e-6, variables=variables_of, in_graph=True):
    ours = train(fused_updates.apply, make(), variables(), gradients, in_graph)
    theirs = train(by_keras, make(), variables(), gradients, in_graph)
    for index, (found, wanted) in enumerate(zip(ours, theirs, strict=True)):
        # Second moments: 1 - beta_2 is rounded in another way, by 1.3e-5 of itself in float32.
        rtol = 2e-5 if tolerance > 1e-9 and index >= len(variables()) else tolerance
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=tolerance)


def kernels_in(optimizer, gradients, variables):
    """Fused kernels in the traced update, also in the branches of conditions, with their number."""
    optimizer.build(variables)
    traced = tf.function(
        lambda *parts: fused_updates.apply(optimizer, list(parts), variables), autograph=False
    ).get_concrete_function(*gradients)
    definition = traced.graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    found = [node.op for node in nodes if node.op in KERNELS]
    return {kernel: found.count(kernel) for kernel in found}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_keras(name, setting, dtype):
    def make():
        return OPTIMIZERS[name](**SETTINGS[setting])

    gradients = gradients_of(dtype)
    assert sum(kernels_in(make(), gradients[0], variables_of(dtype)).values()) == 4
    assert_same(make, gradients, TOLERANCE[dtype], lambda: variables_of(dtype))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_keras_outside_of_a_graph(name):
    assert_same(OPTIMIZERS[name], gradients_of(updates=20), in_graph=False)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_keras_under_a_dynamic_loss_scale_that_skips_updates(name):
    gradients = gradients_of()
    gradients[3][0] = gradients[3][0] * np.inf
    gradients[9][2] = gradients[9][2] * np.nan

    def make():
        return keras.optimizers.LossScaleOptimizer(
            OPTIMIZERS[name](), initial_scale=2.0, dynamic_growth_steps=5
        )

    assert sum(kernels_in(make(), gradients[0], variables_of()).values()) == 4
    assert_same(make, gradients)


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_equals_keras_under_a_schedule(name):
    rate = keras.optimizers.schedules.CosineDecay(0.001, 20, warmup_target=0.02, warmup_steps=5)
    made = {
        "momentum": lambda: keras.optimizers.SGD(rate, momentum=0.8),
        "adam": lambda: keras.optimizers.AdamW(rate, weight_decay=0.1, beta_2=0.95),
    }
    assert_same(made[name], gradients_of())


def test_a_rate_that_changes_between_updates_takes_effect():
    def changing(apply):
        def update(optimizer, gradients, variables):
            apply(optimizer, gradients, variables)
            optimizer._learning_rate.assign(optimizer._learning_rate * 0.9)

        return update

    made = [OPTIMIZERS["adamw"]() for _ in range(2)]
    ours = train(changing(fused_updates.apply), made[0], variables_of(), gradients_of())
    theirs = train(changing(by_keras), made[1], variables_of(), gradients_of())
    for found, wanted in zip(ours[:4], theirs[:4], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_keras_with_constraints(name):
    constraint = keras.constraints.MaxNorm(1.0, axis=[])
    assert_same(
        OPTIMIZERS[name], gradients_of(), variables=lambda: variables_of("float32", constraint)
    )


@pytest.mark.parametrize("setting", ["plain", "clipnorm", "weight_decay"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_keras_with_sparse_gradients(name, setting):
    gradients = gradients_of()
    for step, parts in enumerate(gradients):
        rows = tf.constant([step % 9, (step + 4) % 9, (step + 5) % 9], tf.int64)
        parts[3] = tf.IndexedSlices(tf.gather(parts[3], rows), rows, tf.constant([9, 3], tf.int64))
    assert_same(lambda: OPTIMIZERS[name](**SETTINGS[setting]), gradients)


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_without_a_gradient_stay_as_in_keras(name):
    def without(apply):
        return lambda optimizer, parts, variables: apply(
            optimizer, [parts[0], None, parts[1], None], variables
        )

    gradients = [[parts[0], parts[2]] for parts in gradients_of()]
    ours = train(without(fused_updates.apply), OPTIMIZERS[name](), variables_of(), gradients)
    theirs = train(without(by_keras), OPTIMIZERS[name](), variables_of(), gradients)
    assert np.array_equal(ours[1], variables_of()[1].numpy())
    for found, wanted in zip(ours[:4], theirs[:4], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


def test_weights_left_out_of_decay_stay_out():
    def make():
        optimizer = OPTIMIZERS["adamw"]()
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        return optimizer

    assert_same(make, gradients_of())


def test_dtypes_mix_and_half_precision_stays_keras():
    def mixed():
        kernel, bias, scalar, table = variables_of()
        return [
            kernel,
            keras.Variable(bias, dtype="float64"),
            keras.Variable(scalar, dtype="bfloat16"),
            keras.Variable(table, dtype="float16"),
        ]

    gradients = gradients_of()
    for optimizer in (OPTIMIZERS["adamw"](), OPTIMIZERS["momentum"](weight_decay=0.1)):
        assert sum(kernels_in(optimizer, gradients[0], mixed()).values()) == 2
    assert_same(OPTIMIZERS["adamw"], gradients, variables=mixed)


def test_a_layer_in_mixed_precision_trains_as_in_keras():
    def trained(apply):
        keras.utils.set_random_seed(2)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, dtype="mixed_float16")])
        optimizer = keras.optimizers.LossScaleOptimizer(OPTIMIZERS["adam"](), initial_scale=64.0)
        optimizer.build(model.trainable_variables)
        x = np.random.default_rng(1).normal(size=(8, 4)).astype("float32")

        @tf.function(autograph=False)
        def step():
            with tf.GradientTape() as tape:
                loss = optimizer.scale_loss(tf.reduce_mean(tf.square(model(x))))
            gradients = tape.gradient(loss, model.trainable_variables)
            apply(optimizer, gradients, model.trainable_variables)

        for _ in range(UPDATES):
            step()
        return model.get_weights()

    for found, wanted in zip(trained(fused_updates.apply), trained(by_keras), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


def test_an_optimizer_can_go_on_in_keras_and_be_saved(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(), "mse")
    ones = [tf.ones_like(v.value) for v in model.trainable_variables]
    fused_updates.apply(model.optimizer, ones, model.trainable_variables)
    assert "update_step" not in vars(model.optimizer)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    for one in (model, again):
        by_keras(one.optimizer, ones, one.trainable_variables)
    for found, wanted in zip(model.get_weights(), again.get_weights(), strict=True):
        assert np.array_equal(found, wanted)


def test_a_gradient_that_must_be_broadcast_is_as_in_keras():
    gradients = [
        [parts[0], parts[1], parts[2], tf.reduce_sum(parts[3])] for parts in gradients_of()
    ]
    assert_same(OPTIMIZERS["adam"], gradients)


def test_keras_gets_its_methods_back_after_an_error():
    optimizer = OPTIMIZERS["adam"](weight_decay=0.1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="shape|dimension"):
        fused_updates.apply(optimizer, [tf.ones([2])], [keras.Variable(np.ones(3))])
    assert not {"update_step", "_apply_weight_decay"} & vars(optimizer).keys()


def test_two_optimizers_at_once_do_not_mix():
    """One is used in another's update; each has its own rule."""
    outer, inner = OPTIMIZERS["adam"](), OPTIMIZERS["momentum"]()
    first, second = variables_of()[0], variables_of()[0]
    gradient = tf.ones([7, 5])
    fused_updates.apply(inner, [gradient], [second])
    fused_updates.apply(outer, [gradient], [first])
    fused_updates.apply(inner, [gradient], [second])
    start = variables_of()[0].numpy()
    np.testing.assert_allclose(start - first.numpy(), 0.01, rtol=1e-4)
    np.testing.assert_allclose(start - second.numpy(), 0.02 * (1 + 1.9), rtol=1e-4)


class OwnAdam(keras.optimizers.Adam):
    """A subclass, which may have a rule of its own."""


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: keras.optimizers.SGD(), ""),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.AdamW()), ""),
        (lambda: keras.optimizers.Adam(amsgrad=True), "Adam with amsgrad has no fused kernel"),
        (lambda: keras.optimizers.Lion(), "Lion has no fused kernel"),
        (lambda: OwnAdam(), "OwnAdam has no fused kernel"),
        (
            lambda: keras.optimizers.Adam(beta_1=tf.constant(0.5)),
            "this Adam has betas, epsilon or momentum that are not plain numbers",
        ),
    ],
)
def test_says_what_is_not_fused_and_why(make, reason):
    assert fused_updates.reason_against(make()) == reason
    assert fused_updates.is_fused(make()) == (reason == "")


@pytest.mark.parametrize(
    "make", [OwnAdam, keras.optimizers.Lion, lambda: keras.optimizers.Adam(amsgrad=True)]
)
def test_what_is_not_fused_is_keras(make):
    assert kernels_in(make(), gradients_of()[0], variables_of()) == {}
    assert_same(make, gradients_of(), tolerance=0.0)


def test_a_rule_of_its_own_on_one_optimizer_is_used():
    optimizer = keras.optimizers.SGD(0.5)
    vars(optimizer)["update_step"] = lambda gradient, variable, rate: variable.assign_add(gradient)
    weight = keras.Variable([1.0])
    fused_updates.apply(optimizer, [tf.constant([1.0])], [weight])
    assert weight.numpy().tolist() == [2.0]
    assert not fused_updates.is_fused(optimizer)
    assert "update_step" in vars(optimizer)


def test_not_fused_under_a_strategy():
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        optimizer = keras.optimizers.Adam()
    assert fused_updates.reason_against(optimizer) == (
        "this Adam belongs to a tf.distribute strategy"
    )


def test_scalars_are_computed_once_and_not_for_each_weight():
    optimizer = OPTIMIZERS["adam"]()
    variables = [keras.Variable(np.ones(3, "float32")) for _ in range(6)]
    optimizer.build(variables)
    traced = tf.function(
        lambda *parts: fused_updates.apply(optimizer, list(parts), variables), autograph=False
    ).get_concrete_function(*[tf.ones([3])] * 6)
    operations = [operation.type for operation in traced.graph.get_operations()]
    assert operations.count("ResourceApplyAdam") == 6
    # Two powers of betas, two of the rounding.
    assert operations.count("Pow") == 4
