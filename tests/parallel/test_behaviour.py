"""Refusals, callbacks, stopping, saving, the share of the host."""

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.parallel.job import cases
from tests.parallel.test_numbers import on, same


@on(2)
@pytest.mark.parametrize(
    ("what", "kind", "words"),
    [
        ("batch_size", "RankMismatchError", ["`batch_size`", "rank 0: 2", "rank 1: 3"]),
        ("samples", "RankMismatchError", ["`x`", "rank 0: 'float32[4, 1]'", "float32[3, 1]"]),
        ("dtype", "RankMismatchError", ["`x`", "float32[4, 1]", "int32[4, 1]"]),
        ("callbacks", "RankMismatchError", ["`callbacks`", "EarlyStopping", "rank 1: []"]),
        ("validation", "RankMismatchError", ["`validation_data x`", "rank 1"]),
        ("optimizer", "RankMismatchError", ["`optimizer`", "SGD", "0.1", "0.2"]),
        ("model", "RankMismatchError", ["`model.weights[0]`", "[1, 1]", "[1, 2]"]),
        ("epochs_on_one_rank", "ArgumentError", ["rank 1: `epochs`", "epochs=0"]),
        ("lengths", "ArgumentError", ["same number of samples", "'x': 4", "'y': 3"]),
        ("both_sizes", "ArgumentError", ["`batch_size_per_rank`", "Give one of them"]),
        ("drop", "ArgumentError", ["`drop_remainder`", "4 samples", "8"]),
    ],
)
def test_a_call_that_cannot_work_is_refused_alike_on_all_ranks(backend, ranks, what, kind, words):
    found_kind, message = same([found[what] for found in cases(ranks, backend)["refusals"]])
    assert found_kind == kind
    assert [word for word in words if word not in message] == []


@on(2)
def test_an_error_in_the_users_code_on_one_rank_reaches_all(backend, ranks):
    first, second = cases(ranks, backend)["foreign_error_on_one_rank"]
    assert first == ["PeerError", "rank 1: KeyError: 'boom-3'"]
    assert second == ["KeyError", "'boom-3'"]


@on(2, 4)
def test_a_stop_asked_for_on_one_rank_holds_for_all_at_once(backend, ranks):
    assert same(cases(ranks, backend)["stop_asked_on_one_rank"]) == [8, 2, 8]


@on(2)
def test_a_requested_stop_ends_training_after_the_update_under_way(backend, ranks):
    assert same(cases(ranks, backend)["requested_stop"]) == 6


@on(1, 2)
def test_stock_keras_callbacks_run_and_files_have_one_writer(backend, ranks):
    found = same(cases(ranks, backend)["stock_callbacks"])
    assert found["csv_lines"] == 7
    assert found["events"] == {"events": 1, "keras": 1}
    assert found["loads"] == 5 * 16 + 16 + 16 + 1
    assert len(found["rates"]) == 6
    assert set(found["logs"]) == {"loss", "mae", "val_loss", "val_mae", "learning_rate"}


@on(2)
def test_run_01_threads_are_the_cores_divided_by_the_ranks(backend, ranks):
    cores = len(os.sched_getaffinity(0))
    found = same(cases(ranks, backend)["host_share"])
    assert found["intra_op"] == str(max(1, cores // ranks))
    assert found["yield"] == "1"


@on(2, 4)
def test_run_02_threads_never_exceed_the_affinity(backend, ranks):
    for found in cases(ranks, backend)["host_share"]:
        assert int(found["intra_op"]) <= found["affinity"]


WITHOUT_FITTRAIN = """
import sys
sys.modules.update(fittrain=None, horovod=None, mpi4py=None)
import keras
import numpy as np
model = keras.models.load_model(sys.argv[1])
generator = np.random.default_rng(0)
x = generator.normal(size=(20, 5)).astype("float32")[:3]
print(type(model.optimizer).__module__, model.optimizer.name)
print(*model.predict(x, verbose=0).ravel().tolist())
"""


@on(2)
def test_opt_07_a_saved_model_opens_where_fittrain_is_not_installed(backend, ranks, kept_folder):
    found = same(cases(ranks, backend)["saved_model"])
    assert found["exists"]
    assert found["refused"] == [
        "ArgumentError",
        "`path` must end in '.keras'. Received: path='model.h5'.",
    ]
    path = kept_folder / f"{backend}.keras"
    code = [sys.executable, "-c", WITHOUT_FITTRAIN, str(path)]
    printed = subprocess.run(code, capture_output=True, text=True, check=True).stdout
    optimizer, predictions = printed.strip().splitlines()
    assert optimizer.startswith("keras.src.optimizers.adam adam")
    np.testing.assert_allclose(
        [float(p) for p in predictions.split()], found["predictions"], atol=1e-6
    )
