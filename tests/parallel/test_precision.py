"""Mixed precision: every rank skips or applies together, and a hopeless run ends."""

import pytest

from tests.parallel.job import cases
from tests.parallel.test_failures import fail
from tests.parallel.test_numbers import on, same


@on(4)
def test_mp_01_an_overflow_on_one_rank_is_skipped_by_all(backend, ranks):
    seen, applied, _ = same(cases(ranks, backend)["overflow_on_one_rank"])
    weights, scales, _ = zip(*seen, strict=True)
    assert scales == (32768, 32768, 16384, 16384)
    assert weights[1] == weights[2]
    assert applied == 3


@on(2)
@pytest.mark.parametrize("steps", [1, 2])
def test_mp_03_half_precision_trains_and_logs_unscaled_losses(backend, ranks, steps):
    found = same(cases(ranks, backend)["half_precision_probe"])
    for precision, wrapped in [("mixed_float16", "LossScaleOptimizer"), ("mixed_bfloat16", "SGD")]:
        weight, optimizer, loss = found[f"{precision} {steps}"]
        assert weight == pytest.approx(0.25, abs=1e-2)
        assert optimizer == wrapped
        assert loss == pytest.approx(0.075, rel=1e-2)


@pytest.mark.parametrize(("backend", "ranks"), [("horovod", 2), ("mpi", 2)])
def test_mp_04_updates_that_are_all_skipped_end_the_job(backend, ranks, tmp_path):
    job = fail("infinite", backend, ranks, tmp_path)
    assert "20 updates in a row were left out up to update 20 of epoch 1" in job.errors
    assert job.errors.count("NotFiniteError") == 1


@on(2)
def test_precision_of_a_model_that_is_made_already_is_refused(backend, ranks):
    kind, message = same(cases(ranks, backend)["precision_of_a_model_that_is_made"])
    assert kind == "ArgumentError"
    assert "Give Trainer a function that builds the model" in message


@on(2, 4)
def test_mp_02_halves_on_the_wire_neither_overflow_nor_vanish(backend, ranks):
    found = same(cases(ranks, backend)["half_precision_on_the_wire"])
    assert found == pytest.approx([4.5] * 6, rel=1e-3)


@on(2)
def test_ranks_may_have_built_other_optimizers_before(backend, ranks):
    found = same(cases(ranks, backend)["optimizers_of_ranks_that_have_built_others"])
    assert found == ["nothing", ""]
