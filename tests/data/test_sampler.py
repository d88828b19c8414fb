import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fittrain.data.sampler import Sampler
from fittrain.data.split import contiguous_part


def used(length, batch_size, size, epoch=0, **options):
    """Samples that count, update by update, over all ranks in rank order."""
    updates = []
    samplers = [Sampler(length, batch_size, rank, size, **options) for rank in range(size)]
    for update in range(samplers[0].updates):
        parts = [sampler.part(epoch, update, 1) for sampler in samplers]
        updates.append([int(i) for p in parts for i in p.indices[: p.counts[0]]])
    return updates


@settings(max_examples=80, deadline=None)
@given(
    length=st.integers(1, 200),
    batch_size=st.integers(1, 60),
    size=st.integers(1, 9),
    shuffle=st.booleans(),
)
def test_every_sample_is_used_once_in_an_order_that_ranks_do_not_change(
    length, batch_size, size, shuffle
):
    alone = used(length, batch_size, 1, seed=3, shuffle=shuffle)
    together = used(length, batch_size, size, seed=3, shuffle=shuffle)
    assert together == alone
    assert sorted(sum(alone, [])) == list(range(length))


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(1, 100),
    batch_size=st.integers(1, 30),
    size=st.integers(1, 5),
    block=st.integers(1, 7),
)
def test_blocks_hold_what_single_updates_hold(length, batch_size, size, block):
    sampler = Sampler(length, batch_size, size - 1, size, seed=1)
    first = sampler.updates // 2
    block = min(block, sampler.updates - first)
    whole = sampler.part(2, first, block)
    singles = [sampler.part(2, first + i, 1) for i in range(block)]
    np.testing.assert_array_equal(whole.indices, np.concatenate([p.indices for p in singles]))
    np.testing.assert_array_equal(whole.rows, np.concatenate([p.rows for p in singles]))
    np.testing.assert_array_equal(whole.counts, np.concatenate([p.counts for p in singles]))


def test_an_empty_part_holds_one_row_that_does_not_count():
    part = Sampler(length=5, batch_size=4, rank=0, size=2, shuffle=False).part(0, 1, 1)
    assert (part.indices.tolist(), part.rows.tolist(), part.counts.tolist()) == ([4], [1], [0])


def test_epochs_have_orders_of_their_own():
    assert used(50, 50, 1, epoch=0) != used(50, 50, 1, epoch=1)


def test_without_shuffle_the_order_is_the_datas():
    assert used(7, 3, 2, shuffle=False) == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.parametrize(("drop", "updates", "dropped"), [(False, 3, 0), (True, 2, 3)])
def test_drop_remainder_leaves_out_the_last_short_batch(drop, updates, dropped):
    sampler = Sampler(length=11, batch_size=4, drop_remainder=drop)
    assert (sampler.updates, sampler.dropped) == (updates, dropped)


@given(length=st.integers(0, 50), size=st.integers(1, 9))
def test_contiguous_parts_cover_everything_and_differ_by_one_at_most(length, size):
    parts = [contiguous_part(length, rank, size) for rank in range(size)]
    assert sum((list(range(*part)) for part in parts), []) == list(range(length))
    sizes = [stop - start for start, stop in parts]
    assert max(sizes) - min(sizes) <= 1
