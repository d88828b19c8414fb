import numpy as np
import pytest

from fittrain.config import BLOCK_BYTES, BLOCK_SECONDS
from fittrain.data.arrays import ArraySource
from fittrain.data.feed import BlockPlanner, blocks, check_steps_per_execution
from fittrain.data.sampler import Sampler
from fittrain.errors import ArgumentError


def test_blocks_cover_an_epoch_in_order():
    source, sampler = ArraySource(np.arange(10)), Sampler(10, 3, shuffle=False)
    planner = BlockPlanner(2, source.row_bytes, 3)
    found = [(d[0].tolist(), p.rows.tolist()) for d, p in blocks(source, sampler, 0, planner)]
    assert found == [([0, 1, 2, 3, 4, 5], [3, 3]), ([6, 7, 8, 9], [3, 1])]


def test_a_fixed_number_of_steps_is_kept():
    planner = BlockPlanner(4, 1, 1)
    planner.observe(1e-6, 4)
    planner.observe(1e-6, 4)
    assert planner.steps == 4


def test_auto_learns_from_the_second_call_on():
    planner = BlockPlanner("auto", row_bytes=1, rows=1)
    planner.observe(60.0, 1)
    assert planner.steps == 1
    planner.observe(BLOCK_SECONDS / 10, 1)
    assert planner.steps == 10
    planner.observe(BLOCK_SECONDS * 2, 10)
    assert planner.steps == 5


def test_auto_grows_in_bounded_leaps_and_within_memory():
    planner = BlockPlanner("auto", row_bytes=BLOCK_BYTES // 64, rows=2)
    for _ in range(4):
        planner.observe(1e-9, 1)
    assert planner.steps == 32


def test_an_error_while_reading_reaches_the_reader():
    source, sampler = ArraySource(np.arange(4)), Sampler(9, 3)
    with pytest.raises(IndexError):
        list(blocks(source, sampler, 0, BlockPlanner(1, 8, 3)))


@pytest.mark.parametrize("value", [0, -1, True, "all", 2.0, None])
def test_steps_per_execution_that_cannot_work_is_refused(value):
    with pytest.raises(ArgumentError, match="`steps_per_execution`"):
        check_steps_per_execution(value)
