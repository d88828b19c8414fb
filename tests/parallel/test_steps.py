"""Steps and models of every kind: what N ranks compute is what plain Keras computes."""

import re

import pytest

from tests.parallel.job import cases
from tests.parallel.test_numbers import on, same


def is_equal_to_keras(found, history=1e-5):
    assert found["weights"] < 1e-6
    assert found["history"] < history
    assert found["names"][0] == found["names"][1]


@on(2, 3, costly=True)
@pytest.mark.parametrize(
    "kind", ["mask", "mask and weights", "mask, mean by weights", "mask, accumulated"]
)
def test_masked_losses_equal_plain_keras(backend, ranks, kind):
    is_equal_to_keras(same(cases(ranks, backend)["masked_losses"])[kind])


@on(2, 3, costly=True)
@pytest.mark.parametrize("kind", ["sum", "sum, accumulated", "mean by weights"])
def test_losses_that_are_sums_or_weighted_means_equal_plain_keras(backend, ranks, kind):
    is_equal_to_keras(same(cases(ranks, backend)["other_reductions"])[kind])


@on(2, 3, costly=True)
@pytest.mark.parametrize("kind", ["two outputs", "two outputs, accumulated", "one output"])
def test_mod_11_loss_weights_of_one_and_several_outputs(backend, ranks, kind):
    is_equal_to_keras(same(cases(ranks, backend)["several_outputs"])[kind])


@on(2, 3, costly=True)
@pytest.mark.parametrize("kind", ["guide", "guide, accumulated", "super", "eager"])
def test_a_model_with_a_train_step_of_its_own_equals_plain_keras(backend, ranks, kind):
    found = same(cases(ranks, backend)["models_with_a_step_of_their_own"])[kind]
    if kind == "guide, accumulated":
        found = {**found, "names": [[], []]}  # "last" is the last micro-batch's
    is_equal_to_keras(found)


@on(2, 3, costly=True)
def test_mod_02_two_optimizers_in_one_step(backend, ranks):
    found = same(cases(ranks, backend)["two_optimizers"])
    is_equal_to_keras(found["model"])
    assert found["trainer"][2][0] == 5


@on(2)
def test_mod_03_frozen_layers_and_missing_gradients(backend, ranks):
    unchanged, refused, moved, _ = same(cases(ranks, backend)["frozen_layers"])
    assert unchanged
    assert refused[0] == "ArgumentError"
    # Keras numbers layers by how many were made before.
    assert re.search(r"`half/dense\w*/kernel` became trainable after the optimizer", refused[1])
    assert moved


@on(2, 4)
def test_mod_06_regularisers_count_once(backend, ranks):
    for weight, loss in same(cases(ranks, backend)["regularised"]):
        assert weight == pytest.approx(0.9)
        assert loss == pytest.approx(0.1)


@on(2)
def test_mod_08_each_rank_keeps_its_own_recurrent_state(backend, ranks):
    states, weights = zip(*cases(ranks, backend)["stateful_recurrence"], strict=True)
    assert states[0] != states[1]
    assert weights[0] == weights[1]


@on(2)
def test_a_weight_that_is_changed_around_the_door_is_refused(backend, ranks):
    around, inside, weight = same(cases(ranks, backend)["writes_around_the_door"])
    for kind, message in (around, inside):
        assert kind == "ArgumentError"
        assert "`train_step` changes `sequential" in message
    assert weight == 2.5


@on(2)
def test_a_step_that_forgets_to_scale_its_loss_is_refused(backend, ranks):
    refused, weight = same(cases(ranks, backend)["a_loss_that_was_not_scaled"])
    assert refused[0] == "ArgumentError"
    assert "Take gradients of `self.scale_loss(loss)`" in refused[1]
    assert weight == pytest.approx(0.25, abs=1e-2)


@on(2)
def test_clip_01_clip_02_the_averaged_gradient_is_clipped(backend, ranks):
    weights, refused = same(cases(ranks, backend)["clipping"])
    assert weights == pytest.approx([-0.5, -0.5, -0.5, 5e-4, 5e-4, -0.5, 5e-4])
    assert refused[1].startswith("`clip_norm`=2.0 and the optimizer's own {'clipvalue': 1.0}")


@on(2)
@pytest.mark.parametrize("kind", ["dense", "accumulated"])
def test_a_step_compiled_by_xla_equals_plain_keras(backend, ranks, kind):
    is_equal_to_keras(same(cases(ranks, backend)["compiled_by_xla"])[kind])
