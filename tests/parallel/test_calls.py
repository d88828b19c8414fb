"""Weights, several validation sets, single batches, outputs on one rank."""

import pytest

from tests.parallel.job import cases
from tests.parallel.test_numbers import on, same
from tests.parallel.test_steps import is_equal_to_keras


@on(1, 2, 3, costly=True)
@pytest.mark.parametrize("kind", ["integers", "a column of integers", "one-hot", "floats"])
def test_class_weights_equal_plain_keras(backend, ranks, kind):
    is_equal_to_keras(same(cases(ranks, backend)["class_weights"])[kind])


@on(1, 2)
def test_class_weights_go_by_the_rounded_label(backend, ranks):
    is_equal_to_keras(same(cases(ranks, backend)["class_weights_of_floats_between_classes"]))


@on(1, 2, 3, costly=True)
@pytest.mark.parametrize("kind", ["for each output", "for all outputs"])
def test_weights_of_several_outputs_equal_plain_keras(backend, ranks, kind):
    found = same(cases(ranks, backend)["weights_of_several_outputs"])[kind]
    is_equal_to_keras(found)
    assert found["evaluate"] < 1e-5


@on(1, 2, 3)
def test_named_validation_sets_give_what_keras_gives_for_each(backend, ranks):
    found = same(cases(ranks, backend)["named_validation_sets"])
    assert found["history"] < 1e-5
    assert found["names"][0] == found["names"][1]
    assert max(found["evaluate"].values()) < 1e-5
    assert found["by_name"]["clean"] == found["by_name"]["noisy"]
    assert found["last"][0] == found["last"][1]


@on(1, 2, 3)
def test_callbacks_see_all_named_sets(backend, ranks):
    found = same(cases(ranks, backend)["named_validation_sets"])
    for epoch, logs in enumerate(found["callbacks"]):
        assert logs == {name: values[epoch] for name, values in found["logs"].items()}
    # 7 noisy samples in batches of 4, then 5 clean ones.
    assert [number for number, _ in found["tests"]] == [0, 1, "end", 0, 1]
    assert [names[0].partition("_")[0] for _, names in found["tests"]] == [
        *["noisy"] * 3,
        *["clean"] * 2,
    ]
    assert all("clean_loss" in names for _, names in found["tests"][3:])


@on(1, 2)
def test_a_dict_of_arrays_stays_an_input(backend, ranks):
    assert same(cases(ranks, backend)["a_dict_of_arrays_is_an_input"]) == 5.0


@on(1, 2, 3)
def test_outputs_can_be_on_rank_0_alone(backend, ranks):
    chief, *others = cases(ranks, backend)["outputs_on_rank_0"]
    equal = {"a": True, "b": True}
    assert chief == [[equal, samples] for samples in (1, 2, 7, 20)]
    assert others == [[[None, samples] for samples in (1, 2, 7, 20)]] * (ranks - 1)


def test_a_rank_holds_its_own_part_of_outputs_for_rank_0():
    found = cases(3, "mpi")["memory_of_outputs"]
    whole, some = found[0]["whole"], 2**20
    assert found[0]["peaks"]["chief"] < whole * 4 / 3 + some
    assert max(one["peaks"]["chief"] for one in found[1:]) < whole / 3 + some
    # What is measured is measured.
    assert min(one["peaks"]["all"] for one in found) > whole


@on(1, 2, 3, 4)
def test_probe_on_batch(backend, ranks):
    found = same(cases(ranks, backend)["probe_on_batch"])
    # Weight, loss and mean absolute error of each batch alone, at the weight before it.
    expected = [
        [2.5, 7.5, 2.5],
        [3.0, (1.5**2 + 0.5**2 + 3.5**2) / 3, 5.5 / 3],
        [5.0, 4.0, 2.0],
        [5.0, (9 + 1 + 1 + 1 + 16) / 5, 2.0],
        [1.5, 12.5, 3.5],
    ]
    assert [pytest.approx(one) for one in expected] == found["updates"]
    values, weight = found["weighted"]
    # The gradient is 2 (1.5 - 1) / 3, at rate 0.5.
    assert weight == pytest.approx(1.5 - 0.5 / 3)
    assert values == [pytest.approx(0.25 / 3), pytest.approx((0.5 + 1.5 + 3.5) / 3)]
    assert found["predict"] == [[pytest.approx(weight)]] * 3
    assert found["test"] == {"loss": pytest.approx(49 / 9), "mae": pytest.approx(17 / 9)}
    assert found["iterations"] == 6


@on(1, 2, 3)
def test_single_batches_equal_plain_keras(backend, ranks):
    found = same(cases(ranks, backend)["single_batches"])
    assert max(found["values"]) < 1e-5
    assert max(found["outputs"]) < 1e-5
    assert found["weights"] < 1e-6
    assert sorted(found["names"][0]) == sorted(found["names"][1])


@on(2)
def test_single_batches_and_fit_keep_one_state_on_all_ranks(backend, ranks):
    assert same(cases(ranks, backend)["single_batches_and_fit"])[-1] == 8


@on(1, 2)
def test_single_batches_are_traced_once_whatever_their_size(backend, ranks):
    for first, second, loss, iterations in cases(ranks, backend)["traces_of_single_batches"]:
        # While the start is tried out, one, and four on a few rows since the loss is the user's;
        # then training and evaluation, each with empty parts too.
        assert first == second <= 1 + 4 + 2 + 2
        # The last weight was 2, from 0 to 4.
        assert (loss, iterations) == (9.0, 1)


@on(2)
def test_a_warmup_of_updates_is_followed_on_single_batches(backend, ranks):
    found = same(cases(ranks, backend)["a_warmup_on_single_batches"])
    assert found["rates"] == pytest.approx([0.0, 0.05, 0.1, 0.15, 0.2])
    for kind in ("epochs", "scaled"):
        assert found[kind][0] == "ArgumentError"
        assert "`train_on_batch` knows neither the updates of an epoch" in found[kind][1]


@on(2)
@pytest.mark.parametrize(
    ("what", "kind", "words"),
    [
        ("several outputs", "ArgumentError", ["`class_weight`", "`sample_weight` for each output"]),
        ("weights of another nesting", "ArgumentError", ["`sample_weight`", "y['a'], y['b']"]),
        ("both", "ArgumentError", ["`class_weight` and `sample_weight`", "Give one"]),
        ("key", "ArgumentError", ["`class_weight`", "whole numbers as keys", "'0'"]),
        ("half key", "ArgumentError", ["`class_weight`", "whole numbers as keys", "0.5"]),
        ("value", "ArgumentError", ["`class_weight`", "-1.0 for class 0"]),
        ("no dict", "ArgumentError", ["`class_weight` must be a dict", "list"]),
        ("targets", "ArgumentError", ["`class_weight`", "float32[4, 1, 1]"]),
        ("differs", "RankMismatchError", ["`class_weight`", "{0: 1.0}", "{0: 2.0}"]),
        ("one rank", "ArgumentError", ["rank 1: `class_weight`", "'1' for class 0"]),
        ("set name", "ArgumentError", ["`validation_data` must name its sets", "'a b'"]),
        ("set names", "ArgumentError", ["'a' and 'a_b'", "Rename one"]),
        ("set", "ArgumentError", ["`validation_data['a']` must be (x, y)", "ndarray"]),
        ("no set", "ArgumentError", ["`validation_data` is an empty dict"]),
        ("set data", "ArgumentError", ["`validation_data['a']`", "same number of samples"]),
        ("order of sets", "RankMismatchError", ["rank 0: ['b', 'a']", "rank 1: ['a', 'b']"]),
        ("sets of one rank", "RankMismatchError", ["rank 0: ['a', 'b']", "rank 1: ['a']"]),
        ("gather", "ArgumentError", ["`gather` must be 'all'", "'rank 0'"]),
        ("other gather", "RankMismatchError", ["`gather`", "rank 0: 'chief'", "rank 1: 'all'"]),
        ("batch", "RankMismatchError", ["`x`", "float32[4, 1]", "float32[3, 1]"]),
        ("batch on one rank", "ArgumentError", ["rank 1: Arrays must have the same number"]),
        ("batch weights", "RankMismatchError", ["`class_weight`", "{0: 1.0}", "{0: 2.0}"]),
    ],
)
def test_mod_05_what_cannot_work_is_refused_alike_on_all_ranks(backend, ranks, what, kind, words):
    found_kind, message = same([found[what] for found in cases(ranks, backend)["refused_calls"]])
    assert found_kind == kind
    assert [word for word in words if word not in message] == []


@on(2)
def test_a_batch_that_differs_between_ranks_is_refused_also_later(backend, ranks):
    (sizes, lengths), weight = same(cases(ranks, backend)["batches_that_differ_later"])
    assert sizes[0] == "RankMismatchError"
    assert "float32[4, 1]" in sizes[1]
    assert lengths[0] == "ArgumentError"
    assert "rank 1: Arrays must have the same number of samples" in lengths[1]
    assert weight == 7.0


@on(2)
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("tensor", ["`x` is ragged", "RaggedTensor of shape (3, None)"]),
        ("objects", ["`x` is ragged", "object array"]),
        ("lists", ["`x` is ragged", "a list of 3 rows"]),
        ("tensor in a dict", ["`x['words']` is ragged"]),
        ("objects in a dict", ["`x['words']` is ragged"]),
        ("lists in a dict", ["`x['words']` is ragged"]),
        ("a list of arrays", ["same number of samples", "one ragged input"]),
        ("on one rank", ["rank 1: `x` is ragged"]),
        ("targets", ["`y` is ragged"]),
        ("predict", ["`x` is ragged"]),
        ("held out", ["`validation_data`: `x` is ragged"]),
        ("batch", ["`x` is ragged"]),
    ],
)
def test_data_11_ragged_data_is_refused_by_name(backend, ranks, what, words):
    kind, message = same([found[what] for found in cases(ranks, backend)["ragged_data"]])
    assert kind == "ArgumentError"
    assert [word for word in words if word not in message] == []
    assert "keras.utils.pad_sequences" in message
