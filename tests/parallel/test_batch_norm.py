"""Synchronised batch normalisation computes what one process would with the global batch."""

import pytest

from tests.parallel.job import cases
from tests.parallel.test_numbers import on, same


@on(2)
def test_bn_02_two_single_samples_are_normalised_by_each_other(backend, ranks):
    results = cases(ranks, backend)["batch_norm_over_two_single_samples"]
    assert results[0]["outputs"] == pytest.approx([-1.0], abs=1e-3)
    assert results[1]["outputs"] == pytest.approx([1.0], abs=1e-3)
    found = same([{**found, "outputs": None} for found in results])
    assert found["moving"] == pytest.approx([0.5, 3.4], abs=1e-6)
    assert found["from_keras"] < 1e-6


@on(2, 3)
@pytest.mark.parametrize("model", ["convolutional", "eager", "shared", "masked", "channels first"])
def test_bn_02_training_equals_plain_keras_also_with_uneven_and_empty_parts(backend, ranks, model):
    found = same([one[model] for one in cases(ranks, backend)["batch_norm_equals_plain_keras"]])
    assert found["weights"] < 1e-5


@pytest.mark.parametrize("ranks", [2, 3])
def test_half_precision_has_moments_in_float32_and_the_same_weights_everywhere(ranks):
    _, dtype, is_finite = same(cases(ranks, "mpi")["batch_norm_of_half_precision"])
    assert (dtype, is_finite) == ("float32", True)


@on(2, 3)
def test_the_variance_of_data_far_from_zero_keeps_its_digits(backend, ranks):
    # The mean of squares less the square of the mean, in float32, is wrong by half of the variance.
    assert same(cases(ranks, backend)["batch_norm_far_from_zero"]) < 3e-6
