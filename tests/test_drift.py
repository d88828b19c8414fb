import keras
import numpy as np
import pytest

from fittrain import drift
from fittrain.errors import DriftError
from fittrain.testing import RecordingCommunicator


class OneDiffers(RecordingCommunicator):
    """Rank 0 of three; rank 1's digest of one variable is another."""

    def _reduce(self, array, op):
        other = array.copy()
        half = len(array) // 2
        other[1] += 7
        other[half + 1] -= 7
        return np.minimum(array, other)

    def _gather(self, value):
        return [value, value + 7, value]


def variables():
    return [keras.Variable([1.0, 2.0], name="a"), keras.Variable([3.0], name="b")]


def test_equal_weights_pass():
    drift.check(variables(), RecordingCommunicator(size=2), "now")


def test_a_difference_names_the_variable_and_the_ranks():
    with pytest.raises(DriftError, match="`b` differs between ranks 0, 2 and rank 1 now"):
        drift.check(variables(), OneDiffers(size=3), "now")


def test_every_bit_counts():
    first, second = variables()[0], variables()[0]
    second.assign([1.0, np.nextafter(np.float32(2.0), np.float32(3.0))])
    assert drift.digests([first]) != drift.digests([second])
