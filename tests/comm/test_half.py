"""Half precision on the wire neither overflows nor vanishes, and hides no NaN."""

import numpy as np
import pytest
import tensorflow as tf

from fittrain.comm.half import Packing, power_above, scale_for
from fittrain.comm.local import LocalCommunicator
from fittrain.errors import ArgumentError
from fittrain.testing import RecordingCommunicator
from tests.comm.together import run_together


def exchange(size, gradients_of, weights=None, **options):
    """Means on every rank, of gradients that travel in half precision."""

    def one(communicator):
        weight = weights[communicator.rank] if weights else 1.0
        given = [tf.constant(g, "float32") for g in gradients_of(communicator.rank)]
        means = communicator.weighted_mean(given, weight, wire_dtype="float16", **options)[0]
        return [mean.numpy() for mean in means]

    return run_together(size, one)


# Every addition rounds to 11 bits; these are equal, so that all are rounded the same way.
@pytest.mark.parametrize(("size", "tolerance"), [(1, 5e-4), (4, 1e-3), (32, 5e-3)])
@pytest.mark.parametrize("value", [30000.0, 1e-6, -1e30, 3e-30, 65504.0, 1.0])
def test_mp_02_neither_overflows_nor_vanishes(size, tolerance, value):
    results, _ = exchange(size, lambda rank: [[value], [1.0]])
    for mean, _ in results:
        assert mean[0] == pytest.approx(value, rel=tolerance)


def test_a_small_gradient_is_not_lost_beside_a_large_one_of_another_variable():
    results, _ = exchange(4, lambda rank: [[3e4], [1e-6]])
    assert results[0][1][0] == pytest.approx(1e-6, rel=2e-3)


def test_a_small_element_is_kept_beside_a_large_one_of_the_same_variable():
    results, _ = exchange(2, lambda rank: [[1.0, 1e-7]])
    assert results[0][0][1] == pytest.approx(1e-7, rel=2e-3)


def test_random_gradients_keep_eleven_bits():
    generators = [np.random.default_rng(rank) for rank in range(3)]
    given = [[g.normal(size=(40, 5)), g.normal(size=7) * 1e-5] for g in generators]
    results, _ = exchange(3, lambda rank: given[rank], weights=[1.0, 2.0, 5.0])
    for index in (0, 1):
        expected = (given[0][index] + 2 * given[1][index] + 5 * given[2][index]) / 8
        largest = np.abs(expected).max()
        for means in results:
            np.testing.assert_allclose(means[index], expected, atol=largest * 2e-3)
            np.testing.assert_array_equal(means[index], results[0][index])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_on_one_rank_is_not_finite_on_all(value):
    results, _ = exchange(3, lambda rank: [[1.0, value if rank == 1 else 1.0], [1.0]])
    for broken, whole in results:
        assert not np.isfinite(broken).all()
        assert whole[0] == 1.0


def test_a_rank_without_weight_has_no_say_in_the_scale():
    results, _ = exchange(2, lambda rank: [[np.nan] if rank else [1e-20]], weights=[1.0, 0.0])
    assert results[1][0][0] == pytest.approx(1e-20, rel=2e-3)


def test_sums_that_are_weighted_already():
    results, _ = exchange(2, lambda rank: [[6.0]], weights=[2.0, 1.0], weighted=True)
    assert results[0][0][0] == 4.0


def test_zeros_and_empty_variables_stay_what_they_are():
    results, _ = exchange(2, lambda rank: [np.zeros(3), np.zeros((0, 4))])
    assert results[0][0].tolist() == [0.0, 0.0, 0.0]
    assert results[0][1].shape == (0, 4)


def test_half_the_bytes_travel_and_other_dtypes_as_they_are():
    communicator = RecordingCommunicator()
    given = [tf.ones([6]), tf.ones([2, 2]), tf.ones([3], tf.float64), tf.ones([5], tf.bfloat16)]
    means, total, (summed,) = communicator.weighted_mean(given, 2.0, [3.0], wire_dtype="float16")
    assert communicator.calls == [
        # Weight, one sum and three bounds.
        ("all_reduce", ((5,), "float64")),
        ("all_reduce", ((15,), "float16")),
        ("all_reduce", ((3,), "float64")),
    ]
    assert [mean.dtype for mean in means] == [g.dtype for g in given]
    assert all((mean.numpy() == 1).all() for mean in means)
    assert (float(total), float(summed)) == (4.0, 6.0)


def test_rows_of_sparse_gradients_travel_in_half_precision_too():
    communicator = RecordingCommunicator()
    given = tf.IndexedSlices(tf.constant([[1e-7, 2e-7]]), tf.constant([3]), tf.constant([9, 2]))
    (mean,), _, _ = communicator.weighted_mean([given], 1.0, wire_dtype="float16")
    assert communicator.calls[1:] == [
        ("all_gather", ((1,), "int32")),
        ("all_gather", ((1, 2), "float16")),
    ]
    np.testing.assert_allclose(mean.values, [[1e-7, 2e-7]], rtol=2e-3)


@pytest.mark.parametrize("communicator", [LocalCommunicator(), RecordingCommunicator()])
def test_other_dtypes_are_refused(communicator):
    with pytest.raises(ArgumentError, match=r"`wire_dtype` must be 'float16', or None .*'int8'"):
        communicator.weighted_mean([tf.ones([1])], 1.0, wire_dtype="int8")


def test_one_rank_keeps_its_precision():
    (mean,), _, _ = LocalCommunicator().weighted_mean(
        [tf.constant(1.0001)], 1.0, wire_dtype="float16"
    )
    assert float(mean) == np.float32(1.0001)


@pytest.mark.parametrize("value", [1.0, 1.5, 2.0 - 2**-23, 3e38, 2.0**-126, 0.1])
def test_the_power_is_above_and_near(value):
    power = float(power_above(tf.constant([0.0, -value])))
    assert value < power <= 2 * value
    assert np.frexp(power)[0] == 0.5


def test_scaled_sums_fill_the_upper_half_of_the_range():
    bounds = 2.0 ** np.arange(-100, 120.0)
    scales = scale_for(tf.constant(bounds, tf.float64)).numpy().astype("float64")
    assert set(bounds * scales) == {2.0**14}


def test_packing_without_a_scale_changes_nothing():
    tensor = tf.constant([1.1])
    packing = Packing(tf.float32)
    assert packing.unpack(packing.pack(tensor), tf.float32).numpy() == tensor.numpy()
