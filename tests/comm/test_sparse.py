"""Sparse gradients: the same sum whichever way it goes, on all ranks, in the fewer bytes."""

import numpy as np
import pytest
import tensorflow as tf

from fittrain.comm import sparse
from fittrain.comm.local import LocalCommunicator
from fittrain.comm.sparse import gathering_moves_less, merge_rows
from fittrain.errors import ArgumentError
from fittrain.testing import RecordingCommunicator
from tests.comm.together import run_together

WAYS = {"rows": 1e9, "table": -1.0}
ROWS, COLUMNS = 12, 3


def slices(values, indices, shape=(ROWS, COLUMNS)):
    return tf.IndexedSlices(tf.constant(values), tf.constant(indices), tf.constant(shape))


def random_slices(rank, count, dtype="float32"):
    generator = np.random.default_rng(rank)
    values = generator.normal(size=(count, COLUMNS)).astype(dtype)
    return slices(values, generator.integers(0, ROWS, count))


def as_table(gradient):
    return tf.convert_to_tensor(gradient).numpy()


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Sends rows, or whole tables, however many rows there are."""
    monkeypatch.setattr(sparse, "BYTES_OF_A_REDUCED_ELEMENT", WAYS[request.param])
    return request.param


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-14)])
def test_both_ways_give_the_weighted_mean(way, size, dtype, tolerance):
    parts = [random_slices(rank, 5 + rank, dtype) for rank in range(size)]

    def one(communicator):
        rank = communicator.rank
        means, total, (summed,) = communicator.weighted_mean([parts[rank]], rank + 1.0, [1.0])
        return means[0], float(total), float(summed)

    found, ranks = run_together(size, one)
    total = sum(range(1, size + 1))
    expected = sum((rank + 1) * as_table(part) for rank, part in enumerate(parts)) / total
    for mean, weight, summed in found:
        np.testing.assert_allclose(as_table(mean), expected, rtol=tolerance, atol=tolerance)
        assert (weight, summed) == (total, size)
        assert mean.dtype == dtype
        assert len(set(mean.indices.numpy())) == len(mean.indices)
        np.testing.assert_array_equal(mean.indices, found[0][0].indices)
        np.testing.assert_array_equal(mean.values, found[0][0].values)
    ways = {"rows": ["indices", "values"], "table": ["table"]}[way]
    assert [name.split(".")[-1] for _, name, *_ in ranks[0].calls] == ["ahead", *ways]


def test_a_rank_without_weight_or_without_rows_changes_nothing(way):
    silent = slices([[np.nan] * 3, [np.inf] * 3], [0, 11])
    none = slices(np.zeros((0, COLUMNS), "float32"), np.zeros(0, "int32"))
    parts, weights = [silent, none, slices([[2.0, 4.0, 6.0]], [7])], [0.0, 1.0, 1.0]

    def one(communicator):
        rank = communicator.rank
        return communicator.weighted_mean([parts[rank]], weights[rank])[0][0]

    expected = np.zeros((ROWS, COLUMNS))
    expected[7] = [1, 2, 3]
    for mean in run_together(3, one)[0]:
        np.testing.assert_array_equal(as_table(mean), expected)


def test_no_rank_with_weight_gives_zeros(way):
    def one(communicator):
        return communicator.weighted_mean([random_slices(0, 4)], 0.0)[0][0]

    for mean in run_together(2, one)[0]:
        assert not as_table(mean).any()


def test_sums_that_are_weighted_already_are_only_divided(way):
    def one(communicator):
        given = [slices([[6.0, 0.0, 0.0], [2.0, 0.0, 0.0]], [1, 1]), tf.constant([8.0])]
        return communicator.weighted_mean(given, 2.0, weighted=True)[0]

    for rows, dense in run_together(2, one)[0]:
        assert as_table(rows)[1].tolist() == [4.0, 0.0, 0.0]
        assert dense.numpy().tolist() == [4.0]


def test_on_one_rank_sums_that_are_weighted_already_are_divided_too():
    given = [slices([[6.0, 0.0, 0.0], [2.0, 0.0, 0.0]], [1, 1]), tf.constant([8.0]), None]
    rows, dense, none = LocalCommunicator().weighted_mean(given, 2.0, weighted=True)[0]
    assert (rows.values.numpy().tolist(), dense.numpy().tolist()) == ([[4.0, 0.0, 0.0]], [4.0])
    assert none is None


def test_half_precision_sums_in_float32(way):
    def one(communicator):
        given = random_slices(communicator.rank, 4, "float16")
        return communicator.weighted_mean([given], 60000.0)[0][0]

    expected = sum(as_table(random_slices(rank, 4, "float16")) for rank in (0, 1)) / 2
    for mean in run_together(2, one)[0]:
        assert mean.dtype == tf.float16
        np.testing.assert_allclose(as_table(mean), expected, rtol=1e-2, atol=1e-3)


def test_dense_and_sparse_gradients_share_the_exchange_ahead():
    def one(communicator):
        given = [random_slices(0, 2), tf.ones([4]), None, random_slices(1, 2)]
        return communicator.weighted_mean(given, 1.0, [0.0], "update")

    results, ranks = run_together(2, one)
    names = [call[1] for call in ranks[0].calls]
    assert names == [
        "update.ahead",
        "update",
        *("update.0.indices", "update.0.values"),
        *("update.3.indices", "update.3.values"),
    ]
    assert len(set(names)) == len(names)
    assert ranks[0].calls[0][2:] == ("float64", (4,))
    assert ranks[0].calls[1][2:] == ("float32", (4,))
    assert results[0][0][2] is None


@pytest.mark.parametrize(
    ("counts", "table_rows", "returned"),
    # 16 bytes for each row with its number, against twice 12 for each of the table's.
    [([2, 23], 24, 23), ([2, 12], 12, 12), ([12, 12], 24, 12), ([12, 7], 12, 12)],
)
def test_the_way_depends_on_the_rows_of_all_ranks(counts, table_rows, returned):
    def one(communicator):
        count = counts[communicator.rank]
        ones = np.ones((count, COLUMNS), "float32")
        given = slices(ones, np.arange(count), (table_rows, COLUMNS))
        return len(communicator.weighted_mean([given], 1.0)[0][0].indices)

    results, ranks = run_together(2, one)
    assert results == [returned, returned]
    is_table = sum(counts) * 16 >= 2 * table_rows * 12
    assert ("all_reduce" in [call[0] for call in ranks[0].calls[1:]]) is is_table


@pytest.mark.parametrize(("count", "is_less"), [(7.0, True), (9.0, False)])
def test_bytes_are_counted_with_the_row_numbers(count, is_less):
    # 8 bytes of values and 4 of a number for each row, against 2 x 6 x 8 bytes of a table.
    found = gathering_moves_less(tf.constant(count, tf.float64), tf.constant([6, 2]), 4, 4)
    assert bool(found) is is_less


def test_as_many_slices_as_rows_go_with_the_dense_gradients():
    communicator = RecordingCommunicator()

    @tf.function
    def update(values):
        every = tf.IndexedSlices(values, tf.range(ROWS), tf.constant([ROWS, COLUMNS]))
        mean = communicator.weighted_mean([every], 1.0)[0][0]
        assert isinstance(mean, tf.Tensor)
        return mean

    found = update(tf.ones([ROWS, COLUMNS]))
    assert communicator.calls == [("all_reduce", ((ROWS * COLUMNS + 1,), "float32"))]
    np.testing.assert_array_equal(found, np.ones((ROWS, COLUMNS)))


def test_run_eagerly_the_number_of_slices_of_one_rank_decides_nothing():
    counts = [ROWS, 1]

    def one(communicator):
        return communicator.weighted_mean([random_slices(0, counts[communicator.rank])], 1.0)[0][0]

    # Otherwise one rank would send a table and the other rows, for ever.
    first, second = run_together(2, one)[0]
    np.testing.assert_array_equal(as_table(first), as_table(second))


def test_a_sparse_gradient_of_no_known_table_is_refused():
    given = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([3]))
    with pytest.raises(ArgumentError, match=r"IndexedSlices without `dense_shape`"):
        RecordingCommunicator().weighted_mean([given], 1.0)


def test_rows_are_merged_in_the_order_they_come():
    merged = merge_rows(slices([[1.0] * 3, [2.0] * 3, [4.0] * 3], [5, 2, 5]))
    assert merged.indices.numpy().tolist() == [5, 2]
    assert merged.values.numpy().tolist() == [[5.0] * 3, [2.0] * 3]
