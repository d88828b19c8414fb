"""Faults that were found by trying to break it; each failed before it was corrected."""

import numpy as np
import pytest

from tests.parallel.job import cases
from tests.parallel.test_numbers import on, same
from tests.parallel.test_steps import is_equal_to_keras


@on(2, 3, costly=True)
@pytest.mark.parametrize(
    "kind",
    [
        "guide",
        "guide, accumulated",
        "guide, eager",
        "compute_metrics",
        "compute_metrics, accumulated",
    ],
)
def test_logs_of_a_model_s_own_step_and_metrics_equal_plain_keras(backend, ranks, kind):
    is_equal_to_keras(same(cases(ranks, backend)["logs_of_models"])[kind])


@on(1, 2, 3)
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("root", "`loss` `rooted`"),
        ("sum", "`loss` `summed`"),
        ("mean, weighted", "`loss` `averaged`"),
        ("model's, by valid steps", "`compute_loss` of the model"),
        ("trainer's, sum", "`compute_loss` of the trainer"),
    ],
)
def test_a_loss_of_one_s_own_that_is_no_mean_is_refused(backend, ranks, kind, name):
    error, message = same(cases(ranks, backend)["losses_of_ones_own"])[kind]
    if ranks == 1:
        assert error == "nothing"
    else:
        assert error == "ArgumentError"
        assert message.startswith(f"{name} is no mean over samples")


@on(2, 3)
@pytest.mark.parametrize(
    "kind", ["mean", "by sample, weighted", "trainer's, random", "sum of one's own", "by weights"]
)
def test_a_loss_of_one_s_own_that_adds_up_is_taken(backend, ranks, kind):
    assert same(cases(ranks, backend)["losses_of_ones_own"])[kind][0] == "nothing"


@on(1, 2, 3)
def test_a_loss_that_is_not_reduced_is_refused_before_the_first_update(backend, ranks):
    error, message = same(cases(ranks, backend)["losses_of_ones_own"])["trainer's, not reduced"]
    assert error == "ArgumentError"
    assert "`compute_loss` must return the mean loss" in message


@on(1, 2, 3)
@pytest.mark.parametrize("kind", ["global norm", "norm", "value"])
def test_gradients_clipped_by_hand_are_refused_where_there_are_parts(backend, ranks, kind):
    error, message = same(cases(ranks, backend)["clipped_by_hand"])[kind]
    if ranks == 1:
        assert error == "nothing"
    else:
        assert error == "ArgumentError"
        assert "was clipped before it was averaged" in message
        assert "clip_norm" in message


@on(2, 3)
@pytest.mark.parametrize("kind", ["scaled", "model"])
def test_other_gradients_are_not_taken_for_clipped_ones(backend, ranks, kind):
    assert same(cases(ranks, backend)["clipped_by_hand"])[kind][0] == "nothing"


@on(1, 2)
@pytest.mark.parametrize(("kind", "value"), [("rows", "`rows`"), ("nothing", "`loss`: NoneType")])
def test_logs_that_are_no_numbers_are_refused_by_name(backend, ranks, kind, value):
    error, message = same(cases(ranks, backend)["logs_that_are_no_numbers"])[kind]
    assert error == "ArgumentError"
    assert "`train_step` must return numbers for the logs" in message
    assert value in message


@on(2, 3, costly=True)
@pytest.mark.parametrize("kind", ["dice by sample", "tversky by sample"])
def test_a_ratio_by_sample_is_taken(backend, ranks, kind):
    is_equal_to_keras(same(cases(ranks, backend)["losses_between_rows"])[kind])


@on(1, 2, 3, costly=True)
def test_a_loss_between_samples_is_refused_where_there_are_parts(backend, ranks):
    found = same(cases(ranks, backend)["losses_between_rows"])
    assert "a ratio of sums over the whole batch" in found["dice"][1]
    error, message = found["circle"]
    assert error == ("ArgumentError" if ranks > 1 else "nothing")
    assert ranks == 1 or "compares the samples of a batch with each other" in message


@on(2, 3)
def test_what_is_trained_beside_the_model_starts_and_stays_alike(backend, ranks):
    found = same(cases(ranks, backend)["state_beside_the_model"])
    (alone,) = cases(1, "local")["state_beside_the_model"]
    assert found[4] == alone[4] == 6  # updates: a layer's own count
    for of_ranks, of_one in zip(found, alone, strict=True):
        assert np.allclose(of_ranks, of_one, atol=1e-6)


@on(1, 2)
def test_a_step_without_gradients_is_refused_before_the_first_update(backend, ranks):
    error, message = same(cases(ranks, backend)["no_gradient_at_all"])
    assert error == "ArgumentError"
    assert "`gradients` are None for all 4 variables" in message


@on(1, 2, 3)
def test_half_precision_overflows_where_the_whole_batch_would_and_only_there(backend, ranks):
    assert same(cases(ranks, backend)["loss_scale_of_parts"]) == [1, 1]


@on(2)
def test_a_loss_that_a_layer_adds_is_a_mean_or_refused(backend, ranks):
    found = same(cases(ranks, backend)["losses_that_layers_add"])
    is_equal_to_keras(found["mean"])
    kind, message = found["sum"]
    assert kind == "ArgumentError"
    assert "`add_loss` of the layer `adds" in message
    assert found["regulariser"] == ["nothing", ""]


@on(2)
def test_a_variable_of_the_trainer_is_changed_through_the_door_alone(backend, ranks):
    kind, message = same(cases(ranks, backend)["a_variable_of_the_trainer_changed_by_hand"])
    assert kind == "ArgumentError"
    assert "`train_step` changes `factor` by itself" in message


@on(2)
def test_what_is_beside_the_model_accumulates_too(backend, ranks):
    assert same(cases(ranks, backend)["what_is_beside_the_model_accumulated"]) < 1e-6


@on(2)
def test_a_model_that_fixes_its_batch_gets_such_parts_or_none(backend, ranks):
    uneven, even, halved = same(cases(ranks, backend)["a_model_with_a_batch_of_its_own"])
    assert even == ["nothing", ""]
    assert "takes exactly [4] rows, and `batch_size`=8 of 26 samples on 2 rank(s)" in uneven[1]
    assert "gives parts of [1, 4]" in uneven[1]
    assert "gives parts of [2]" in halved[1]
