"""LARS against numbers worked out by hand."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import fittrain
from fittrain.errors import ArgumentError
from fittrain.optimizers import LARS


def stepped(start, gradients, dtype="float32", **arguments):
    """The weights after each gradient, at a rate of 1 and a trust coefficient of 0.1."""
    weights = keras.Variable(start, dtype=dtype, name="weights")
    arguments = {"momentum": 0.0, "trust_coefficient": 0.1, "epsilon": 0.0, **arguments}
    optimizer = LARS(arguments.pop("learning_rate", 1.0), **arguments)
    found = []
    for gradient in gradients:
        optimizer.apply([tf.constant(gradient, dtype)], [weights])
        found.append(weights.numpy().ravel().tolist())
    return found


MATRIX = [[3.0], [4.0]]


def test_a_step_is_in_proportion_to_the_norm_of_the_weights():
    # |w| = 5, |g| = 1: local rate 0.1 * 5 / 1 = 1/2. A gradient 10 times as long: the same step.
    for length in (1.0, 10.0):
        gradient = [[0.6 * length], [0.8 * length]]
        assert stepped(MATRIX, [gradient])[0] == pytest.approx([2.7, 3.6])


def test_momentum_keeps_steps_with_their_own_local_rate():
    # Second: |w| = 4.5, |g| = 2, local rate 0.225; v = 0.5 * (-0.3, -0.4) - 0.225 * (0, 2).
    gradients = [[[0.6], [0.8]], [[0.0], [2.0]]]
    found = stepped(MATRIX, gradients, momentum=0.5)
    assert found == [pytest.approx([2.7, 3.6]), pytest.approx([2.55, 2.95])]


def test_nesterov_looks_ahead():
    # v = (-0.3, -0.4); w moves by 0.5 v - (0.3, 0.4) = 1.5 v.
    found = stepped(MATRIX, [[[0.6], [0.8]]], momentum=0.5, nesterov=True)
    assert found[0] == pytest.approx([2.55, 3.4])


def test_decay_joins_the_gradient_once_and_the_local_rate():
    # Local rate 0.1 * 5 / (1 + 0.2 * 5) = 1/4, of (0.8, 0.6) + 0.2 * (3, 4) = (1.4, 1.4).
    found = stepped(MATRIX, [[[0.8], [0.6]]], weight_decay=0.2)
    assert found[0] == pytest.approx([2.65, 3.65])


def test_epsilon_joins_the_gradients_norm():
    # Local rate 0.1 * 5 / (1 + 4) = 0.1.
    found = stepped(MATRIX, [[[0.6], [0.8]]], epsilon=4.0)
    assert found[0] == pytest.approx([2.94, 3.92])


@pytest.mark.parametrize(
    ("start", "gradient", "expected"),
    [
        ([[0.0], [0.0]], [[0.6], [0.8]], [-0.6, -0.8]),
        (MATRIX, [[0.0], [0.0]], [2.7, 3.6]),
        ([[0.0], [0.0]], [[0.0], [0.0]], [0.0, 0.0]),
    ],
)
def test_norms_of_zero_have_a_local_rate_of_1(start, gradient, expected):
    assert stepped(start, [gradient], weight_decay=0.1)[0] == pytest.approx(expected)


def test_vectors_and_excluded_names_take_the_plain_step_without_decay():
    options = {"weight_decay": 0.2, "learning_rate": 0.5}
    assert stepped([3.0, 4.0], [[0.6, 0.8]], **options)[0] == pytest.approx([2.7, 3.6])
    excluded = stepped(MATRIX, [[[0.6], [0.8]]], exclude=["^weig"], **options)
    assert excluded[0] == pytest.approx([2.7, 3.6])
    # |w| = 5: 0.5 * 0.1 * 5 / (1 + 1) = 1/8 of (0.6, 0.8) + 0.2 * (3, 4).
    adapted = stepped([3.0, 4.0], [[0.6, 0.8]], exclude_vectors=False, **options)
    assert adapted[0] == pytest.approx([2.85, 3.8])


def test_norms_beyond_the_range_of_half_precision():
    # |w| = 300 and |g| = 3000, whose squares float16 cannot hold.
    found = stepped(np.full((100, 1), 30.0), [np.full((100, 1), 300.0)], "float16")
    assert found[0] == pytest.approx([27.0] * 100, rel=1e-3)


def test_repeated_rows_of_a_sparse_gradient_add_up():
    rows = tf.IndexedSlices(tf.constant([[0.6], [0.4], [0.4]]), [0, 1, 1], (2, 1))
    weights = keras.Variable(MATRIX)
    LARS(1.0, momentum=0.0, trust_coefficient=0.1, epsilon=0.0).apply([rows], [weights])
    assert weights.numpy().ravel().tolist() == pytest.approx([2.7, 3.6])


def test_a_file_holds_every_argument(tmp_path):
    arguments = {
        "learning_rate": 0.3,
        "momentum": 0.8,
        "weight_decay": 0.01,
        "trust_coefficient": 0.02,
        "epsilon": 1e-6,
        "nesterov": True,
        "exclude": ["gamma"],
        "exclude_vectors": False,
        "clipnorm": 0.7,
    }
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(LARS(**arguments), "mse")
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras").optimizer
    config = loaded.get_config()
    assert {name: config[name] for name in arguments} == {
        **arguments,
        "learning_rate": pytest.approx(0.3),
    }
    for variable, wanted in zip(loaded.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(variable.numpy(), wanted.numpy())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"momentum": 1.5}, "`momentum` must be from 0 to 1. Received: momentum=1.5"),
        ({"weight_decay": -1}, "`weight_decay` must be 0 or more"),
        ({"epsilon": float("nan")}, "`epsilon` must be 0 or more"),
        ({"trust_coefficient": -0.1}, "`trust_coefficient` must be 0 or more"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments, words):
    with pytest.raises(ArgumentError, match=words):
        LARS(**arguments)


def test_it_is_reached_through_the_package():
    assert fittrain.optimizers.LARS is LARS
