import collections

import numpy as np
import pytest
import tensorflow as tf

from fittrain.data.arrays import ArraySource
from fittrain.data.rows import file_mapping
from fittrain.data.split import split_validation
from fittrain.errors import ArgumentError


def test_rows_keep_the_nesting_of_the_data():
    point = collections.namedtuple("point", "u v")
    x = {"a": np.arange(4.0), "b": (np.arange(8).reshape(4, 2), point(np.ones(4), np.zeros(4)))}
    (rows,) = ArraySource(x).gather(np.array([2, 0]))
    assert rows["a"].tolist() == [2.0, 0.0]
    assert rows["b"][0].tolist() == [[4, 5], [0, 1]]
    assert rows["b"][1].u.tolist() == [1.0, 1.0]


def test_floats_become_floatx_and_integers_stay():
    rows = ArraySource(np.zeros(3), np.zeros(3, "int64")).gather(np.array([0]))
    assert [row.dtype.name for row in rows] == ["float32", "int64"]


def test_tensors_are_taken_as_they_are():
    assert ArraySource(tf.constant([[1.0], [2.0]])).gather(np.array([1]))[0].tolist() == [[2.0]]


def test_a_memory_map_is_read_in_rows(tmp_path):
    path = tmp_path / "rows.bin"
    np.arange(600, dtype="float64").tofile(path)
    mapped = np.memmap(path, "float64", "r", shape=(200, 3))
    indices = np.random.default_rng(0).permutation(200)
    rows = ArraySource(mapped).gather(indices)[0]
    np.testing.assert_array_equal(rows, np.arange(600).reshape(200, 3)[indices])
    assert rows.dtype == np.float32


def test_changes_in_a_copy_on_write_map_survive_reading(tmp_path):
    path = tmp_path / "rows.bin"
    np.zeros(200, "float32").tofile(path)
    mapped = np.memmap(path, "float32", "c")
    mapped[2] = 5
    source = ArraySource(mapped)
    source.gather(np.arange(0, 200, 2))
    assert source.gather(np.array([2, 0]))[0].tolist() == [5, 0]
    assert file_mapping(mapped) is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((np.zeros(3), np.zeros(4)), ["same number of samples", "'x': 3", "'y': 4"]),
        ((np.zeros((0, 2)),), ["`x` holds no samples"]),
        ((3.0,), ["`x` must have a first dimension", "scalar"]),
        (([1.0, 2.0],), ["`x[0]` must have a first dimension", "numpy.asarray"]),
        ((np.array([None, 1], object),), ["`x` cannot become a tensor", "object"]),
        ((object(),), ["`x` must be an array", "object"]),
        ((None,), ["`x` holds no array"]),
        (({},), ["`x` holds no array"]),
        ((np.zeros(3), None, np.ones(3)), ["`sample_weight` was given without `y`"]),
    ],
)
def test_what_is_no_data_is_refused_by_name(arguments, words):
    with pytest.raises(ArgumentError) as caught:
        ArraySource(*arguments)
    assert [word for word in words if word not in str(caught.value)] == []


def test_validation_split_takes_the_end():
    training, held_out = split_validation(ArraySource(np.arange(10)), 0.2, None)
    held_out = held_out[""]
    assert training.gather(np.arange(8))[0].tolist() == list(range(8))
    assert held_out.gather(np.arange(2))[0].tolist() == [8, 9]


@pytest.mark.parametrize(
    ("split", "data", "words"),
    [
        (1.0, None, "`validation_split` must be at least 0 and less than 1"),
        (0.95, None, "leaves 0 for training and 10 for validation"),
        (0.0, np.zeros(3), r"`validation_data` must be \(x, y\)"),
    ],
)
def test_validation_that_cannot_work_is_refused(split, data, words):
    with pytest.raises(ArgumentError, match=words):
        split_validation(ArraySource(np.arange(10)), split, data)
