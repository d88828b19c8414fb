"""State beside the gradients is what one process would hold, or a mean over ranks by samples."""

import numpy as np
import pytest

from tests.parallel.job import cases
from tests.parallel.test_numbers import same


@pytest.mark.parametrize("ranks", [1, 2])
def test_batch_norm_statistics_are_averaged_before_anything_reads_them(ranks):
    found = same(cases(ranks, "mpi")["batch_norm_statistics"])
    # On 2 ranks the means of 0 and 10, on one rank the mean of both.
    assert found["seen"] == [5.0, 5.0]
    assert (found["held"], found["saved"]) == (5.0, 5.0)
    assert ranks > 1 or found["from_keras"] == 0.0


def test_batch_norm_statistics_are_averaged_for_who_looks_at_single_batches():
    # Means of 0 and 10, then of 2 and 4, and those at the end of the epoch.
    assert same(cases(2, "mpi")["batch_norm_statistics_after_single_batches"]) == [5.0, 3.0, 3.0]


@pytest.mark.parametrize(("ranks", "mean"), [(1, 9.0), (3, (1 * 0 + 1 * 3 + 2 * 9) / 4)])
def test_batch_norm_statistics_do_not_count_a_part_that_is_empty(ranks, mean):
    # The last batch is one sample, 9, for the last rank, which has seen 2 samples.
    name = "batch_norm_statistics_without_a_part_of_the_last_batch"
    assert same(cases(ranks, "mpi")[name]) == mean


@pytest.mark.parametrize("ranks", [1, 2])
def test_weights_averaged_over_updates_become_the_weights_as_in_keras(ranks):
    assert same(cases(ranks, "mpi")["averaged_weights"]) < 1e-6


@pytest.mark.parametrize(("backend", "ranks"), [("mpi", 1), ("mpi", 2), ("mpi", 3)])
def test_rows_that_repeat_are_added_up_on_any_number_of_ranks(backend, ranks):
    alone = same(cases(1, "local")["repeated_rows_of_an_embedding"])
    found = same(cases(ranks, backend)["repeated_rows_of_an_embedding"])
    for weight, expected in zip(found, alone, strict=True):
        np.testing.assert_allclose(weight, expected, atol=1e-6)


@pytest.mark.parametrize("ranks", [2, 3])
def test_met_11_losses_of_single_outputs_equal_plain_keras(ranks):
    found = same(cases(ranks, "mpi")["losses_of_two_outputs"])
    names, expected_names = found["names"]
    assert names == expected_names
    assert {"a_loss", "b_loss", "val_a_loss", "val_b_loss"} < set(names)
    for name, (values, expected) in found["history"].items():
        assert values == pytest.approx(expected, abs=1e-5), name
    evaluated, expected = found["evaluated"]
    assert evaluated == pytest.approx(expected, abs=1e-5)
