"""N ranks compute what one would: PROBE, plain Keras, metrics, the order of samples."""

import itertools

import pytest

from tests.parallel.job import cases

EVERYWHERE = [("local", 1)] + [(b, n) for b in ("horovod", "mpi") for n in (1, 2, 3, 4)]
SEVERAL = [(backend, ranks) for backend, ranks in EVERYWHERE if ranks > 1]


SPARED = [("horovod", 1), ("mpi", 1), ("horovod", 3)]
"""As in `cases.py`, where costly cases do not run."""


def on(*ranks, costly=False):
    """Backends and rank counts out of `EVERYWHERE`."""
    places = [pair for pair in EVERYWHERE if pair[1] in ranks]
    return pytest.mark.parametrize(
        ("backend", "ranks"), [p for p in places if not costly or p not in SPARED]
    )


def same(results):
    """The one value that all ranks returned."""
    assert all(result == results[0] for result in results)
    return results[0]


@on(1, 2, 3, 4)
def test_probe_weight_is_the_mean_target_of_the_last_update(backend, ranks):
    found = same(cases(ranks, backend)["probe"])
    assert found == {"even": 4.5, "updates": 6.5, "partial": 9.5, "few": 2.0, "single": 5.0}


def test_data_01_fewer_samples_than_ranks_count_once():
    assert same(cases(4, "horovod")["probe"])["few"] == 2.0


@on(1, 2, 3, 4)
def test_met_11_training_equals_plain_keras(backend, ranks):
    found = same(cases(ranks, backend)["equivalent_to_keras"])
    assert found["weights"] < 1e-6
    assert found["history"] < 1e-5
    assert found["names"][0] == found["names"][1]


@on(1, 2, 3)
def test_adam_with_a_partial_batch_equals_plain_keras(backend, ranks):
    found = same(cases(ranks, backend)["equivalent_to_keras_with_adam_and_a_partial_batch"])
    assert found["weights"] < 1e-5
    assert found["history"] < 1e-5


@on(1, 2)
def test_sample_weights_and_clipping_equal_plain_keras(backend, ranks):
    found = same(cases(ranks, backend)["equivalent_to_keras_with_sample_weights_and_clipping"])
    assert found["weights"] < 1e-6
    assert found["history"] < 1e-5


@on(1, 2, 4)
def test_met_10_loss_does_not_depend_on_ranks_or_batch_size(backend, ranks):
    assert same(cases(ranks, backend)["constant_loss"]) == [3.0] * 6


@on(1, 2, 3, 4)
def test_hang_02_every_sample_is_used_once_in_each_epoch(backend, ranks):
    ids = cases(ranks, backend)["ledger"]
    updates = -(-10 // ranks)
    assert [len(own) for own in ids] == [3 * updates] * ranks
    for epoch in range(3):
        used = [own[epoch * updates : (epoch + 1) * updates] for own in ids]
        assert sorted(itertools.chain(*itertools.chain(*used))) == list(range(10))


@on(2, 4)
def test_shuf_01_epochs_have_orders_of_their_own_and_a_seed_repeats_them(backend, ranks):
    first, second = zip(*cases(ranks, backend)["shuffled_ledger"], strict=True)
    assert first == second
    updates = 16 // ranks
    orders = {str([own[e * updates : (e + 1) * updates] for own in first]) for e in range(3)}
    assert len(orders) == 3


@on(2, 4)
def test_shuf_02_ranks_use_different_samples(backend, ranks):
    runs = [run[0] for run in cases(ranks, backend)["shuffled_ledger"]]
    for update in range(16 // ranks):
        ids = list(itertools.chain(*(own[update] for own in runs)))
        assert len(set(ids)) == ranks
    per_rank = [list(itertools.chain(*own[: 16 // ranks])) for own in runs]
    assert [len(own) for own in per_rank] == [16 // ranks] * ranks
    assert sorted(itertools.chain(*per_rank)) == list(range(16))


@on(2, 3)
def test_opt_05_weights_are_the_same_on_all_ranks_after_every_epoch(backend, ranks):
    digests = same(cases(ranks, backend)["weights_at_every_epoch"])
    assert len(set(digests)) == 5


@on(2)
def test_opt_06_a_model_built_late_starts_from_rank_0(backend, ranks):
    found = cases(ranks, backend)["late_built_model"]
    assert len({one["digest"] for one in found}) == 1
    assert found[0]["difference"] < 1e-6


@on(2, 4)
def test_seed_01_ranks_drop_different_units_and_a_seed_repeats_them(backend, ranks):
    first, second = zip(*cases(ranks, backend)["dropout_masks"], strict=True)
    assert first == second
    assert len({str(one["mask"]) for one in first}) == ranks
    assert len({one["digest"] for one in first}) == 1


@on(2)
def test_inst_02_every_optimizer_averages(backend, ranks):
    for digest, spread in same(cases(ranks, backend)["every_optimizer"]).values():
        assert digest
        assert spread > 0


@on(2)
def test_size_01_large_objects_travel_in_pieces(backend, ranks):
    sent, received, arrays = zip(*cases(ranks, backend)["broadcast_in_pieces"], strict=True)
    assert set(received) == {sent[0]}
    assert set(arrays) == {sent[1]}


@on(1, 2, 3)
def test_predict_keeps_the_order(backend, ranks):
    found = same(cases(ranks, backend)["predict_in_order"])
    assert [samples for samples, _ in found] == [1, 2, 7, 20]
    assert max(difference for _, difference in found) < 1e-6


@on(2)
def test_nested_inputs_and_outputs_train(backend, ranks):
    names, shapes = same(cases(ranks, backend)["nested_inputs"])
    assert names == ["a_loss", "a_mae", "b_loss", "loss"]
    assert shapes == {"a": [9, 1], "b": [9, 2]}


@on(1, 2)
def test_a_train_step_of_ones_own_averages(backend, ranks):
    weight, loss = same(cases(ranks, backend)["own_train_step"])
    assert weight == 4.5
    # Update 1: mean of 1, 4, 9 at weight 0; update 2: 4 and 9 at weight 2.
    assert loss == pytest.approx((14 + 4 + 9) / 5)


@on(2)
def test_data_12_drop_remainder_drops_the_same_on_all_ranks_and_says_how_many(backend, ranks):
    found = cases(ranks, backend)["dropped_remainder"]
    assert [updates for updates, _ in found] == [2, 2]
    assert found[0][1] == ["`drop_remainder` leaves out 3 of 11 samples in each epoch"]
    assert found[1][1] == []
