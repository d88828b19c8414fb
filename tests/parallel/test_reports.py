"""What failure reports of other projects say about metrics and speed, tried here."""

import pytest

from tests.parallel.job import HERE, cases, mpirun
from tests.parallel.test_numbers import on, same


@on(2, 3)
def test_met_03_validation_counts_samples_and_not_batches_or_ranks(backend, ranks):
    found = same(cases(ranks, backend)["validation_of_uneven_losses"])
    assert found == [pytest.approx(2.0, abs=1e-5)] * 5


@on(1, 2, 3)
def test_met_04_every_validation_sample_counts_once(backend, ranks):
    found = same(cases(ranks, backend)["validation_of_five_samples"])
    assert found == [[pytest.approx(2.0, abs=1e-6), 5.0]] * 5


@on(2)
def test_met_05_one_value_to_the_last_bit_in_all_places_on_all_ranks(backend, ranks):
    found = same(cases(ranks, backend)["one_value_everywhere"])
    assert len(set(found["history"])) == 3
    for place in ("first", "last", "csv", "files"):
        assert found[place] == found["history"], place
    # TensorBoard keeps float32, which is what the metric has.
    assert set(found["history"]) <= set(found["events"])


@on(2)
def test_met_08_the_best_file_goes_by_the_value_over_all_ranks(backend, ranks):
    found = same(cases(ranks, backend)["the_best_by_a_metric_of_ones_own"])
    assert found["values"] == [2.0, 3.0, 5.0]
    assert found["written"] == [[0, 2.0]]
    assert [name.rpartition("-")[2] for name in found["files"]] == ["1.keras"]


@on(2)
def test_perf_01_the_gradients_of_many_layers_travel_together(backend, ranks):
    gradients, asked, _ = same(cases(ranks, backend)["exchanges_of_many_layers"])
    assert gradients == 400
    # 200 kernels of 4 x 4 with 4 biases, the sample count and the control word.
    assert asked == [200 * (16 + 4) + 2]


@on(1, 2)
def test_perf_02_no_batch_size_is_traced_again(backend, ranks):
    for counts in cases(ranks, backend)["traces_of_a_fit"]:
        # What runs before training is the trial of the start, which is no program of training.
        tried, *epochs = counts
        train, evaluate = (last - first for first, last in zip(tried, epochs[0], strict=True))
        assert 1 <= train <= 2
        assert 1 <= evaluate <= 2
        assert len(epochs) == 5
        assert epochs == [epochs[0]] * 5


def test_perf_05_memory_does_not_grow_with_epochs():
    job = mpirun(2, str(HERE / "memory_of_epochs.py"))
    assert job.returncode == 0, job.errors
    growths = [int(line.split()[2]) for line in job.stdout.splitlines() if "growth" in line]
    assert len(growths) == 2
    assert max(growths) < 20 * 2**20, growths
