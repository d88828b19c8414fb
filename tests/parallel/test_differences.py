"""Calls that ranks make differently are refused together, and the next call works."""

import pytest

from tests.parallel.job import cases
from tests.parallel.test_numbers import same


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("seed", ["`seed`", "rank 0: 0", "rank 1: 1"]),
        ("init", ["`seed`", "rank 0: 7", "rank 1: 8"]),
        ("sample_weight", ["`sample_weight`", "rank 0: None", "rank 1: 'float32[4]'"]),
        ("validation_data", ["`validation_data x`", "rank 0: None", "rank 1: 'float32[4, 1]'"]),
        ("loss", ["`loss`", "rank 0: 'mse'", "rank 1: 'mae'"]),
        ("metrics", ["`metrics`", "MeanSquaredError", "MeanAbsoluteError"]),
        ("steps_per_execution", ["`steps_per_execution`", "rank 0: 1", "rank 1: 2"]),
    ],
)
def test_what_one_rank_was_given_differently_is_refused_by_name(what, words):
    kind, message = same([found[what] for found in cases(2, "mpi")["differences_between_ranks"]])
    assert kind == "RankMismatchError"
    assert [word for word in words if word not in message] == []


def test_seeds_that_were_refused_do_not_change_the_order_of_samples():
    found = cases(2, "mpi")["samples_after_seeds_that_differed"]
    assert [kind for kind, _ in found] == ["RankMismatchError"] * 2
    assert sorted(found[0][1] + found[1][1]) == list(range(8))


def test_a_refusal_on_one_rank_leaves_ranks_in_step():
    refusals, weight = same(cases(2, "mpi")["a_refusal_on_one_rank_leaves_ranks_in_step"])
    message = "rank 1: `callbacks` must be a list of callbacks. Received: int."
    assert refusals == [["ArgumentError", message]] * 2
    assert weight == 6.5


def test_callbacks_see_every_validation_batch():
    ours, theirs = same(cases(2, "mpi")["calls_for_every_validation_batch"])
    assert ours == theirs == [0, 1, 2, 3] * 2
