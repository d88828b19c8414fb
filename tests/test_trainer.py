"""One process: what `Trainer` accepts, refuses, computes and says."""

import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import fittrain
from fittrain import session
from fittrain.errors import ArgumentError, StorageError
from fittrain.testing import RecordingCommunicator, probe_model, probe_trainer, probe_weight

pytestmark = pytest.mark.usefixtures("fresh_session")


def ones(*targets):
    y = np.asarray(targets, "float32")[:, None]
    return np.ones_like(y), y


def test_probe():
    trainer = probe_trainer(backend="local")
    trainer.fit(*ones(1, 2, 3, 10), batch_size=4, verbose=0)
    assert probe_weight(trainer) == 4.0


def test_a_compiled_model_is_taken_as_it_is():
    model = probe_model()
    model.compile(keras.optimizers.SGD(0.5), "mse")
    trainer = fittrain.Trainer(model, backend="local")
    trainer.fit(*ones(2, 4), verbose=0)
    assert model.get_weights()[0].item() == 3.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"model": 3}, "`model` must be a keras.Model or a function"),
        ({"optimizer": "sgd"}, "`optimizer`, `loss` and `metrics` compile the model"),
        ({"loss": "mse"}, "`optimizer`, `loss` and `metrics` compile the model"),
        ({"metrics": ["mae"]}, "`optimizer`, `loss` and `metrics` compile the model"),
        ({"steps_per_execution": 0}, "`steps_per_execution` must be 'auto' or a positive"),
        ({"steps_per_execution": True}, "`steps_per_execution` must be 'auto' or a positive"),
        ({"run_dir": ""}, "`run_dir` must be a folder's path, or None"),
    ],
)
def test_arguments_that_cannot_work_are_refused_at_construction(arguments, words):
    with pytest.raises(ArgumentError, match=words):
        fittrain.Trainer(**{"model": probe_model, **arguments})


@pytest.mark.parametrize(
    ("model", "compiled", "words"),
    [
        (lambda: 3, {}, "`model` must be, or return, a keras.Model. Received: int"),
        (probe_model, {}, "`model` is not compiled"),
        (
            probe_model,
            {"optimizer": "sgd", "loss": keras.losses.MeanSquaredError(reduction=None)},
            "`loss` must be reduced to one number. Received: reduction='none'",
        ),
        (
            probe_model,
            {"optimizer": "sgd", "loss": keras.losses.Dice()},
            "`loss` must be made of .*dice",
        ),
        (probe_model, {"optimizer": "sgd", "loss": "dice"}, "`loss` must be made of .*dice"),
        (
            probe_model,
            {"optimizer": keras.optimizers.SGD(gradient_accumulation_steps=2), "loss": "mse"},
            r"SGD\(gradient_accumulation_steps=2\)` gives all batches the same weight",
        ),
    ],
)
def test_models_that_cannot_work_are_refused_before_training(model, compiled, words):
    trainer = fittrain.Trainer(model, backend="local", **compiled)
    with pytest.raises(ArgumentError, match=words):
        trainer.fit(*ones(1, 2), verbose=0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch_size": 0}, "`batch_size` must be a positive integer"),
        ({"batch_size": 2.5}, "`batch_size` must be a positive integer"),
        ({"batch_size_per_rank": True}, "`batch_size_per_rank` must be a positive integer"),
        ({"batch_size": 2, "batch_size_per_rank": 2}, "Give one of them"),
        ({"epochs": -1}, "`epochs` must be a positive integer"),
        ({"epochs": None}, "`epochs` must be a positive integer"),
        ({"initial_epoch": -1}, "`initial_epoch` must be a non-negative integer"),
        ({"initial_epoch": True}, "`initial_epoch` must be a non-negative integer"),
        ({"shuffle": "no"}, "`shuffle` must be True or False"),
        ({"validation_split": "0.2"}, "`validation_split` must be at least 0 and less than 1"),
        ({"callbacks": 5}, "`callbacks` must be a list of callbacks"),
        ({"validation_freq": 0}, "`validation_freq` must be a positive integer"),
        ({"verbose": 7}, "`verbose` must be 0, 1, 2 or 'auto'"),
        ({"callbacks": [3]}, "`callbacks` must hold keras.callbacks.Callback objects"),
        ({"callbacks": [keras.callbacks.BackupAndRestore("x")]}, "BackupAndRestore"),
        ({"drop_remainder": True}, "`drop_remainder` leaves no update"),
    ],
)
def test_fit_arguments_that_cannot_work_are_refused(arguments, words):
    trainer = probe_trainer(backend="local")
    with pytest.raises(ArgumentError, match=words):
        trainer.fit(*ones(1, 2), **{"verbose": 0, **arguments})
    assert trainer._model is None


def test_numpy_integers_are_welcome():
    trainer = probe_trainer(backend="local", steps_per_execution=np.int64(2))
    numbers = {"batch_size": np.int32(2), "epochs": np.int64(3), "initial_epoch": np.uint8(1)}
    history = trainer.fit(*ones(1, 2, 3), verbose=0, **numbers)
    assert history.epoch == [1, 2]
    assert int(trainer.model.optimizer.iterations) == 4


def test_a_masked_array_is_refused():
    x, y = ones(1, 2)
    with pytest.raises(ArgumentError, match="`y` is a masked array"):
        probe_trainer(backend="local").fit(x, np.ma.masked_less(y, 2), verbose=0)


def test_a_path_that_is_none_is_refused():
    trainer = probe_trainer(backend="local")
    with pytest.raises(ArgumentError, match="`path` must end in '.keras'. Received: path=None"):
        trainer.save(None)


def test_a_root_that_is_no_rank_is_refused():
    fittrain.init("local")
    with pytest.raises(ArgumentError, match="`root` must be a rank, from 0 to 0"):
        fittrain.broadcast_object("x", root=5)


class VectorLoss(fittrain.Trainer):
    def compute_loss(self, x, y, y_pred, sample_weight):
        return tf.square(y - y_pred)[:, 0]


class NoLoss(fittrain.Trainer):
    def train_step(self, batch):
        super().train_step(batch)


class VectorFromStep(fittrain.Trainer):
    def train_step(self, batch):
        return super().train_step(batch)[None]


@pytest.mark.parametrize(
    ("trainer_class", "words"),
    [
        (VectorLoss, r"`compute_loss` must return the mean loss .* of shape \(None,\)"),
        (NoLoss, "`train_step` must return the mean loss .* Received: NoneType"),
        (VectorFromStep, r"`train_step` must return the mean loss .* of shape \(1,\)"),
    ],
)
def test_a_loss_that_is_not_one_number_is_refused(trainer_class, words):
    trainer = probe_trainer(trainer=trainer_class, backend="local")
    with pytest.raises(Exception, match=words):
        trainer.fit(*ones(1, 2), verbose=0)
    assert probe_weight(trainer) == 0.0


def test_a_loss_that_is_not_one_number_is_an_argument_error():
    with pytest.raises(ArgumentError):
        probe_trainer(trainer=NoLoss, backend="local").fit(*ones(1, 2), verbose=0)


def test_hooks_outside_a_step_are_refused():
    trainer = probe_trainer(backend="local")
    with pytest.raises(ArgumentError, match="inside `fit`"):
        trainer.apply_gradients([], [])
    trainer.fit(*ones(1, 2), verbose=0)
    with pytest.raises(ArgumentError, match="`train_step` of a Trainer subclass"):
        trainer.apply_gradients([], [])


def test_another_backend_than_the_started_one_is_refused():
    fittrain.init("local")
    with pytest.raises(ArgumentError, match="was started with 'local'"):
        _ = probe_trainer(backend="mpi").communicator


def test_asking_for_the_rank_starts_what_the_trainer_asks_for():
    communicator = RecordingCommunicator(rank=1, size=2)
    trainer = probe_trainer(backend=communicator)
    assert fittrain.rank() == 1
    assert trainer.communicator is communicator


def test_a_tensorboard_without_a_place_is_refused():
    from fittrain.callbacks import TensorBoard

    with pytest.raises(ArgumentError, match="Give Trainer a `run_dir`"):
        probe_trainer(backend="local").fit(*ones(1), callbacks=[TensorBoard()], verbose=0)


def test_the_run_folder_says_what_ran(tmp_path):
    trainer = probe_trainer(backend="local", run_dir=tmp_path, seed=5)
    trainer.fit(*ones(1, 2, 3), batch_size=2, verbose=0)
    run = json.loads((tmp_path / "run.json").read_text())
    assert (run["seed"], run["ranks"], run["backend"]) == (5, 1, "local")
    assert run["updates_per_epoch"] == 2
    assert run["versions"]["keras"] == keras.__version__
    assert "1 rank on 1 host" in (tmp_path / "logs" / "rank-000.log").read_text()


def test_without_a_run_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    probe_trainer(backend="local").fit(*ones(1, 2), verbose=0)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_save_leaves_nothing_behind(tmp_path):
    trainer = probe_trainer(backend="local")
    trainer.fit(*ones(1, 2), verbose=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file/model.keras cannot be written"):
        trainer.save(tmp_path / "file" / "model.keras")
    trainer.save(tmp_path / "model.keras")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "model.keras"]


def test_a_step_that_trains_this_rank_alone_is_refused():
    class Alone(fittrain.Trainer):
        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.model(x, training=True) - y) ** 2)
            variable = self.model.trainable_variables[0]
            variable.assign_sub(0.5 * tape.gradient(loss, variable))
            return loss

    with pytest.raises(ArgumentError, match="must hand its gradients to `self.apply_gradients`"):
        probe_trainer(trainer=Alone, backend="local").fit(*ones(1, 2), verbose=0)


@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_a_requested_stop_holds_whatever_the_length_of_a_call(steps_per_execution):
    class Ask(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                trainer.request_stop()

    trainer = probe_trainer(backend="local", steps_per_execution=steps_per_execution)
    trainer.fit(*ones(*range(16)), batch_size=4, epochs=5, callbacks=[Ask()], verbose=0)
    assert int(trainer.model.optimizer.iterations) == 5


class Counting(keras.Model):
    """Counts how often its `call` is traced, in training and without."""

    def __init__(self):
        super().__init__()
        self.out = keras.layers.Dense(1)
        self.traces = {True: 0, False: 0}

    def call(self, x, training=False):
        self.traces[bool(training)] += 1
        return self.out(x)


def test_perf_02_steps_are_traced_once_whatever_the_batch_sizes():
    model = Counting()
    trainer = fittrain.Trainer(model, optimizer="sgd", loss="mse", backend="local")
    x, y = ones(*range(10))
    trainer.fit(x, y, batch_size=4, epochs=1, validation_data=(x[:3], y[:3]), verbose=0)
    after_first = dict(model.traces)
    trainer.fit(x, y, batch_size=4, epochs=5, validation_data=(x[:3], y[:3]), verbose=0)
    trainer.evaluate(x[:7], y[:7], batch_size=3, verbose=0)
    assert model.traces == after_first
    assert model.traces[True] <= 2


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_uses_its_half_of_a_batch(rank):
    communicator = RecordingCommunicator(rank, size=2)
    trainer = probe_trainer(backend=communicator)
    trainer.fit(*ones(1, 2, 3, 4), batch_size=4, shuffle=False, verbose=0)
    # The pretended peer holds the same half, so the mean is that of this half.
    assert probe_weight(trainer) == [1.5, 3.5][rank]


def recorded_calls(rank, monkeypatch):
    monkeypatch.setattr(session, "_session", None)
    communicator = RecordingCommunicator(rank, size=2)
    trainer = probe_trainer(backend=communicator, metrics=["mae"], seed=1, steps_per_execution=2)
    tf.config.run_functions_eagerly(True)
    try:
        x, y = ones(*range(9))
        trainer.fit(x, y, batch_size=4, epochs=2, validation_data=(x, y), verbose=0)
        trainer.evaluate(x, y, verbose=0)
    finally:
        tf.config.run_functions_eagerly(False)
    return communicator.calls


def test_ranks_communicate_in_the_same_order(monkeypatch):
    first, second = (recorded_calls(rank, monkeypatch) for rank in (0, 1))
    assert first == second
    updates = [call for call in first if call[0] == "all_reduce"]
    # Three updates in each of two epochs, one exchange each: gradient, weight, control word.
    assert updates == [("all_reduce", ((3,), "float32"))] * 6


@pytest.mark.parametrize(
    ("clipping", "of_trainer"),
    [({}, {}), ({"clipnorm": 0.1}, {}), ({"global_clipnorm": 0.1}, {}), ({}, {"clip_norm": 0.1})],
)
def test_perf_04_an_update_takes_one_exchange_with_clipping_too(clipping, of_trainer):
    communicator = RecordingCommunicator(0, size=2)
    optimizer = keras.optimizers.SGD(0.5, **clipping)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    trainer = fittrain.Trainer(
        model, optimizer=optimizer, loss="mse", backend=communicator, **of_trainer
    )
    tf.config.run_functions_eagerly(True)
    try:
        trainer.fit(*ones(*range(40)), batch_size=4, verbose=0)
    finally:
        tf.config.run_functions_eagerly(False)
    exchanges = [call for call in communicator.calls if call[0] in ("all_reduce", "all_gather")]
    # 3 + 3 + 3 + 1 weights, the sample count and the control word.
    assert exchanges == [("all_reduce", ((12,), "float32"))] * 10


def test_acc_09_gradients_travel_once_for_each_update():
    communicator = RecordingCommunicator(0, size=2)
    trainer = probe_trainer(backend=communicator, accumulate_steps=4)
    tf.config.run_functions_eagerly(True)
    try:
        trainer.fit(*ones(*range(16)), batch_size=8, verbose=0)
    finally:
        tf.config.run_functions_eagerly(False)
    # Eight micro-batches of this rank in two updates; its part of 4 samples gives 4 of each.
    exchanges = [call for call in communicator.calls if call[0] == "all_reduce"]
    assert exchanges == [("all_reduce", ((3,), "float32"))] * 2


@pytest.mark.parametrize("verbose", [1, 2])
def test_progress_lines_of_several_sets_tell_which_is_which(verbose, capsys):
    trainer = probe_trainer(backend="local")
    sets = {"far": ones(5, 5, 5), "near": ones(1)}
    trainer.evaluate(sets, batch_size=1, verbose=verbose)
    lines = [
        re.sub(r"\x1b\[[0-9;]*m|\x08", "", line) for line in capsys.readouterr().out.split("\n")
    ]
    last = [line.rpartition("\r")[2] or line for line in lines if "loss" in line]
    assert [re.search(r"(\d/\d).* - (\w+: [0-9.]+)", line).groups() for line in last] == [
        ("3/3", "far_loss: 25.0000"),
        ("1/1", "near_loss: 1.0000"),
    ]


def test_single_batches_return_what_keras_returns():
    trainer = probe_trainer(backend="local", metrics=["mae"])
    x, y = ones(1, 3)
    assert trainer.train_on_batch(x, y) == [5.0, 2.0]
    assert trainer.train_on_batch(x, y, return_dict=True) == {"loss": 1.0, "mae": 1.0}
    assert trainer.test_on_batch(x, y, np.asarray([0.0, 2.0])) == [1.0, 1.0]
    assert isinstance(probe_trainer(backend="local").test_on_batch(x, y), float)
    assert trainer.predict_on_batch(x).tolist() == [[2.0], [2.0]]


def test_the_comparison_of_ranks_is_paid_once_for_a_kind_of_batch():
    communicator = RecordingCommunicator(0, size=2)
    trainer = probe_trainer(backend=communicator)
    calls = []
    for samples in (4, 4, 3):
        communicator.calls.clear()
        trainer.train_on_batch(*ones(*range(samples)))
        calls.append([call for call in communicator.calls if call[0] != "all_reduce"])
    assert len(calls[0]) > len(calls[1])
    # One comparison, and the metrics.
    assert [operation for operation, _ in calls[1]] == ["gather", "reduce"]
    assert calls[2] == calls[1]


def test_a_metric_of_ones_own_is_reset_as_it_says():
    class Counting(keras.metrics.Sum):
        resets = 0

        def reset_state(self):
            Counting.resets += 1
            super().reset_state()

        def update_state(self, y_true, y_pred, sample_weight=None):
            super().update_state(y_true)

    trainer = probe_trainer(backend="local", metrics=[Counting(name="targets")])
    for _ in range(3):
        before = Counting.resets
        assert trainer.train_on_batch(*ones(1, 2), return_dict=True)["targets"] == 3.0
        assert Counting.resets > before


def test_history_has_keras_names_and_lengths():
    trainer = probe_trainer(backend="local", metrics=["mae"])
    x, y = ones(*range(9))
    history = trainer.fit(
        x, y, epochs=4, validation_split=0.3, validation_freq=2, initial_epoch=1, verbose=0
    )
    lengths = {name: len(values) for name, values in history.history.items()}
    assert lengths == {"loss": 3, "mae": 3, "val_loss": 2, "val_mae": 2}
    assert history.epoch == [1, 2, 3]


def test_evaluate_returns_what_keras_returns():
    trainer = probe_trainer(backend="local", metrics=["mae"])
    x, y = ones(1, 2, 3)
    assert trainer.evaluate(x, y, verbose=0) == trainer.model.evaluate(x, y, verbose=0)
    assert set(trainer.evaluate(x, y, verbose=0, return_dict=True)) == {"loss", "mae"}
    assert isinstance(probe_trainer(backend="local").evaluate(x, y, verbose=0), float)


def test_an_error_in_training_is_written_and_raised(tmp_path):
    class Boom(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise ValueError("boom-17")

    trainer = probe_trainer(backend="local", run_dir=tmp_path)
    with pytest.raises(ValueError, match="boom-17"):
        trainer.fit(*ones(1, 2), callbacks=[Boom()], verbose=0)
    report = json.loads((tmp_path / "errors" / "rank-000.json").read_text())
    assert (report["type"], report["message"]) == ("ValueError", "boom-17")
    assert (report["epoch"], report["update"]) == (0, 0)


def test_unfrozen_layers_are_trained_by_the_next_fit():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1), keras.layers.Dense(1)])
    model.layers[0].trainable = False
    frozen = model.layers[0].get_weights()
    model.compile("sgd", "mse")
    trainer = fittrain.Trainer(model, backend="local")
    trainer.fit(*ones(1, 2), verbose=0)
    np.testing.assert_array_equal(model.layers[0].get_weights()[0], frozen[0])
    model.layers[0].trainable = True
    model.compile("sgd", "mse")
    trainer.fit(*ones(1, 2), verbose=0)
    assert not np.array_equal(model.layers[0].get_weights()[0], frozen[0])


def test_public_names_are_the_documented_ones():
    assert fittrain.__all__ == sorted(fittrain.__all__)
    assert all(hasattr(fittrain, name) for name in fittrain.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fittrain.nothing


class Peeks(fittrain.Trainer):
    """Its loss calls Python, which XLA cannot compile."""

    def compute_loss(self, x, y, y_pred, sample_weight):
        tf.py_function(lambda value: None, [y_pred], [])
        return super().compute_loss(x, y, y_pred, sample_weight)


def test_jit_compile_compiles_the_step_with_xla():
    probe_trainer(trainer=Peeks, backend="local").fit(*ones(1, 2), verbose=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="XLA"):
        probe_trainer(trainer=Peeks, backend="local", jit_compile=True).fit(*ones(1, 2), verbose=0)


def test_jit_compile_of_the_model_is_told_to_ask_the_trainer(caplog):
    model = probe_model()
    model.compile("sgd", "mse", jit_compile=True)
    fittrain.Trainer(model, backend="local").fit(*ones(1, 2), verbose=0)
    assert "Trainer(jit_compile=True) asks for XLA" in caplog.text


def test_a_model_without_trainable_weights_is_refused_by_fit_and_evaluated():
    model = probe_model()
    model.trainable = False
    trainer = fittrain.Trainer(model, optimizer="sgd", loss="mse", backend="local")
    with pytest.raises(ArgumentError, match="`model` has no trainable weights"):
        trainer.fit(*ones(1, 2), verbose=0)
    assert trainer.evaluate(*ones(1, 2), verbose=0) == 2.5


def test_jit_compile_is_switched_off_with_a_reason(caplog):
    layers = [keras.Input((1,)), fittrain.layers.SyncBatchNormalization(name="norm")]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    trainer = fittrain.Trainer(
        model, optimizer="sgd", loss="mse", backend="local", jit_compile=True
    )
    trainer.fit(*ones(1, 2), verbose=0)
    assert "`jit_compile` is switched off: the layer `norm` talks to other ranks" in caplog.text
