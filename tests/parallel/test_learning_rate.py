"""Every update has one rate on all ranks, and it is the one that one rank would use."""

import pytest

from tests.parallel.job import cases
from tests.parallel.test_numbers import on, same


@on(1, 2, 4)
def test_lr_01_and_lr_02_rates_are_scaled_once_and_continue_after_a_resume(backend, ranks):
    found = same(cases(ranks, backend)["rates_of_a_warmup"])
    target = 0.1 * ranks
    start = 0.1 if ranks > 1 else 0.01
    ramp = [start + (target - start) * min(update / 10, 1) for update in range(14)]
    assert found["whole"] == pytest.approx(ramp, rel=1e-6)
    assert found["parts"] == found["whole"]
    assert found["late"] == pytest.approx([target] * 4)


def test_lr_01_epoch_3_starts_at_0_28():
    found = same(cases(4, "horovod")["rates_of_a_warmup"])
    assert found["parts"][6] == pytest.approx(0.28)
    assert found["parts"][-1] == pytest.approx(0.4)


@on(2)
def test_lr_03_a_plateau_on_one_rank_is_refused_and_on_all_ranks_works(backend, ranks):
    found = same(cases(ranks, backend)["rates_with_a_plateau"])
    kind, message = found["refusal"]
    assert kind == "RankMismatchError"
    assert "`callbacks`" in message
    assert "ReduceLROnPlateau" in message
    assert found["updates"] == 0
    expected = [0.1, 0.15, 0.2, 0.2, 0.1, 0.1, 0.05, 0.05]
    assert found["everywhere"] == pytest.approx(expected)


def test_lr_09_a_scheduler_that_returns_the_rate_changes_nothing():
    rates = same(cases(4, "mpi")["rates_with_an_identity_scheduler"])
    assert rates == pytest.approx([0.1, 0.175, 0.25, 0.325] + [0.4] * 4)


@pytest.mark.parametrize(
    ("what", "kind", "words"),
    [
        ("epochs", "RankMismatchError", ["`learning_rate`", "'epochs': 5", "'epochs': 4"]),
        ("none", "RankMismatchError", ["`learning_rate`", "rank 1: None"]),
        ("base", "RankMismatchError", ["`optimizer`", "0.1", "0.2"]),
        ("global batch", "ArgumentError", ["`scaling`", "`base_batch_size`"]),
    ],
)
def test_warmups_that_differ_or_cannot_work_are_refused_on_all_ranks(what, kind, words):
    found = same([one[what] for one in cases(2, "mpi")["warmups_that_differ"]])
    assert found[0] == kind
    assert [word for word in words if word not in found[1]] == []


@on(1, 2, 3)
def test_training_equals_plain_keras_with_the_same_rates(backend, ranks):
    assert same(cases(ranks, backend)["a_warmup_and_a_schedule_against_keras"]) < 1e-5


@on(1, 2)
@pytest.mark.parametrize("optimizer", ["lars", "lamb"])
def test_layerwise_rates_equal_plain_keras(backend, ranks, optimizer):
    found = same(cases(ranks, backend)[f"{optimizer}_against_keras"])
    assert found["weights"] < 1e-5
    assert found["history"] < 1e-5
