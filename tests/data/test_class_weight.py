import numpy as np
import pytest
from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights

from fittrain.data.arrays import ArraySource
from fittrain.data.class_weight import ClassWeights
from fittrain.errors import ArgumentError

BY_CLASS = {0: 0.25, 2: 4.0, -1: 0.0}


@pytest.mark.parametrize(
    "labels",
    [
        np.asarray([0, 1, 2, 2, -1]),
        np.asarray([[0], [2], [1]], "uint8"),
        np.asarray([0.4, 0.5, 1.5, 2.5, -0.6, 2.49]),
        np.asarray([[0.0, 0.2, 0.8], [1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]),
        np.asarray([True, False]),
    ],
    ids=["integers", "column", "floats", "one-hot", "booleans"],
)
def test_weights_are_those_of_keras(labels):
    weights = ClassWeights(labels, BY_CLASS)
    expected = class_weight_to_sample_weights(labels, BY_CLASS)
    np.testing.assert_array_equal(weights[:], expected)
    np.testing.assert_array_equal(weights[np.array([1, 0])], expected[[1, 0]])
    assert weights.dtype == expected.dtype


def test_rows_come_with_their_weights():
    labels = np.asarray([0, 1, 2, 0])
    source = ArraySource(np.arange(4.0), labels).weigh_classes({0: 3.0})
    rows = source.gather(np.array([3, 1, 0]))
    assert [row.tolist() for row in rows] == [[3.0, 1.0, 0.0], [0, 1, 0], [3.0, 1.0, 3.0]]
    assert source.describe()["sample_weight"] == "float32[4]"


def test_labels_in_a_file_are_read_row_by_row(tmp_path):
    class Counting(np.memmap):
        read = 0

        def __getitem__(self, index):
            found = super().__getitem__(index)
            Counting.read += np.size(found)
            return found

    path = tmp_path / "labels.bin"
    (np.arange(5000) % 3).astype("int64").tofile(path)
    labels = np.memmap(path, "int64", "r").view(Counting)
    source = ArraySource(np.zeros(5000), labels).weigh_classes({2: 5.0})
    indices = np.array([2, 4001, 11, 4998, 700])
    assert source.gather(indices)[2].tolist() == [5.0, 5.0, 5.0, 1.0, 1.0]
    # Once as targets and once for their weights.
    assert Counting.read == 2 * len(indices)


def test_validation_taken_from_the_end_is_not_weighted():
    from fittrain.data.split import split_validation

    source = ArraySource(np.arange(10.0), np.arange(10) % 2)
    training, held_out = split_validation(source, 0.2, None)
    assert len(training.weigh_classes({1: 2.0}).gather(np.arange(2))) == 3
    assert len(held_out[""].gather(np.arange(2))) == 2


@pytest.mark.parametrize(
    ("y", "class_weight", "words"),
    [
        (None, {0: 1.0}, "Received: y=None"),
        ([np.zeros(3), np.zeros(3)], {0: 1.0}, "Received: y=a tuple of 2"),
        (np.zeros((3, 2, 2)), {0: 1.0}, "class_weight.*float64.3, 2, 2"),
        (np.asarray(["a", "b", "c"]), {0: 1.0}, "needs targets that are numbers"),
        (np.zeros(3), {"0": 1.0}, "whole numbers as keys"),
        (np.zeros(3), {float("nan"): 1.0}, "whole numbers as keys"),
        (np.zeros(3), {0: float("nan")}, "Received: nan for class 0"),
        (np.zeros(3), {0: None}, "Received: None for class 0"),
        (np.zeros(3), {0: -1}, "Received: -1 for class 0"),
        (np.zeros(3), "balanced", "must be a dict"),
    ],
)
def test_what_cannot_weigh_is_refused(y, class_weight, words):
    with pytest.raises(ArgumentError, match=words):
        ArraySource(np.zeros(3), y).weigh_classes(class_weight)
