"""Micro-batches: one update, whatever they are divided into."""

import pytest

from tests.parallel.job import cases
from tests.parallel.test_numbers import on, same
from tests.parallel.test_steps import is_equal_to_keras


@on(1, 2, 3, 4)
def test_acc_01_acc_03_micro_batches_count_by_their_samples(backend, ranks):
    found = same(cases(ranks, backend)["accumulated_probe"])
    assert found["uneven"] == [pytest.approx(8 / 3), 1]
    assert found["fewer samples than micro-batches"] == [2.0, 1]
    assert found["split"] == [2.5, 1]
    assert found["last batch"] == [9.5, 3]
    assert found["more micro-batches than samples"] == [5.0, 1]


@on(1, 2, 4)
def test_acc_07_ranks_and_micro_batches_may_be_exchanged(backend, ranks):
    assert same(cases(ranks, backend)["ways_to_divide_a_batch"]) == 2.5


@on(2, 3, costly=True)
def test_acc_04_lr_05_decay_schedules_and_counters_advance_once_an_update(backend, ranks):
    found = same(cases(ranks, backend)["accumulated_updates"])
    assert found["decayed"] == pytest.approx(0.99)
    # Rate 1 first, then 2: from 0 to 1, and from 1 to -1.
    assert found["moves"] == [1.0, -1.0]
    assert found["iterations"] == 2
    is_equal_to_keras(found["adam"])


@on(2)
def test_acc_06_an_embedding_is_accumulated(backend, ranks):
    is_equal_to_keras(same(cases(ranks, backend)["accumulated_embedding"]))


@on(2)
def test_what_cannot_be_accumulated_is_refused(backend, ranks):
    twice, inside = same(cases(ranks, backend)["what_cannot_be_accumulated"])
    assert twice[0] == inside[0] == "ArgumentError"
    assert "makes several, of which later ones depend on earlier ones" in twice[1]
    assert "computes them in a tf.function of its own" in inside[1]
