import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fittrain.data.permutation import Permutation


@settings(max_examples=60, deadline=None)
@given(length=st.integers(1, 9000), key=st.integers(0, 2**64))
def test_every_element_appears_once(length, key):
    elements = Permutation(length, key)(np.arange(length))
    np.testing.assert_array_equal(np.sort(elements), np.arange(length))


def test_equal_keys_give_equal_orders_and_others_do_not():
    positions = np.arange(100)
    first, again, other = (Permutation(100, key)(positions) for key in (7, 7, 8))
    np.testing.assert_array_equal(first, again)
    assert (first != other).sum() > 80


def test_the_order_is_the_same_on_every_machine():
    assert Permutation(10, 7)(np.arange(10)).tolist() == [6, 9, 1, 5, 3, 8, 0, 2, 4, 7]
    assert Permutation(10**6, 7)(np.arange(5)).tolist() == [337316, 993139, 364409, 833283, 255735]


def test_a_position_far_out_costs_what_the_first_costs():
    order = Permutation(10**12, key=1)
    elements = order(np.array([0, 10**12 - 1, 5 * 10**11]))
    assert len(set(elements.tolist())) == 3
    assert elements.max() < 10**12


@pytest.mark.parametrize("length", [2, 3, 5, 12])
def test_small_lengths_put_every_element_everywhere_alike(length):
    keys = 6000
    counts = np.zeros((length, length))
    for key in range(keys):
        counts[np.arange(length), Permutation(length, key)(np.arange(length))] += 1
    expected = keys / length
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    freedom = (length - 1) ** 2
    # Ten standard deviations of the chi-squared distribution.
    assert chi_squared < freedom + 10 * np.sqrt(2 * freedom)


def test_long_orders_put_elements_everywhere_alike():
    length, keys, bins = 5000, 400, 10
    first = [Permutation(length, key)(np.arange(20)) * bins // length for key in range(keys)]
    counts = np.bincount(np.concatenate(first), minlength=bins)
    expected = keys * 20 / bins
    assert ((counts - expected) ** 2 / expected).sum() < 9 + 10 * np.sqrt(18)


def test_neighbours_are_not_correlated():
    elements = Permutation(100_003, key=3)(np.arange(100_003)).astype(float)
    assert abs(np.corrcoef(elements[:-1], elements[1:])[0, 1]) < 0.02
