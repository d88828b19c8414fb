"""Metrics on several ranks are those of one, and everyone sees the same."""

import pytest

from tests.parallel.job import cases
from tests.parallel.test_numbers import on, same


@on(2)
def test_met_01_the_counts_of_auc_are_added_and_not_its_results(backend, ranks):
    # The mean of the parts' results is 1.
    assert same(cases(ranks, backend)["auc_of_two_parts"]) == pytest.approx(0.75, abs=0.01)


@on(2, 3)
def test_met_03_every_sample_counts_the_same_in_uneven_parts(backend, ranks):
    found = same(cases(ranks, backend)["validation_loss_of_uneven_parts"])
    assert found == pytest.approx([2.0] * 4, abs=1e-6)


@on(2, 3)
def test_met_04_no_sample_is_counted_twice_or_dropped(backend, ranks):
    # Squared error, samples, the largest target (a maximum), samples counted from 10 on.
    assert same(cases(ranks, backend)["validation_of_few_samples"]) == [[2.0, 5, 4, 15]] * 4


@on(2, 3)
def test_a_metric_that_does_not_add_up_is_refused_on_all_ranks(backend, ranks):
    found = same(cases(ranks, backend)["refused_metrics"])
    kind, message = found["highest"]
    assert kind == "ArgumentError"
    assert "`count` of the metric `samples` (Highest) does not add up over ranks" in message


@on(2, 3)
def test_ranks_must_agree_on_how_a_metric_merges(backend, ranks):
    kind, message = same(cases(ranks, backend)["refused_metrics"])["differing"]
    assert kind == "RankMismatchError"
    assert "`merge_over_ranks of the metrics` must be the same on all ranks" in message


@on(2)
def test_met_05_there_is_one_validation_loss_in_all_places_on_all_ranks(backend, ranks):
    found = same(cases(ranks, backend)["validation_loss_everywhere"])
    values = found["history"]
    assert len(set(values)) == 2
    places = ["first", "last", "history", "csv", "file names", "events"]
    assert found == dict.fromkeys(places, values)


@on(2)
def test_met_08_the_best_epoch_is_picked_by_all_ranks_and_written_once(backend, ranks):
    found = same(cases(ranks, backend)["best_by_a_metric_that_differs_by_rank"])
    assert found == [[2.0, 3.0, 5.0], ["1.keras"]]
