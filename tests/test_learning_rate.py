"""One process: the rate of every update, against numbers worked out by hand."""

import json

import keras
import numpy as np
import pytest

import fittrain
from fittrain.errors import ArgumentError
from fittrain.learning_rate import Warmup
from fittrain.rate_control import WarmupSchedule, control_of
from fittrain.testing import RecordingCommunicator, probe_model, probe_trainer

pytestmark = pytest.mark.usefixtures("fresh_session")

SGD = keras.optimizers.SGD
FOUR_RANKS = RecordingCommunicator(0, 4)


class Rates(keras.callbacks.Callback):
    """The rate that each update was applied with."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))


class InverseTime(keras.optimizers.schedules.LearningRateSchedule):
    """Without `get_config`, and with arithmetic that Keras's counter allows and TensorFlow not."""

    def __call__(self, step):
        return 0.1 / (1.0 + step * 0.5)


def inverse_time(step):
    return 0.1 / (1.0 + step * 0.5)


def data(updates):
    return np.ones((updates, 1), "float32"), np.ones((updates, 1), "float32")


def trainer_of(warmup, optimizer=None, **arguments):
    return probe_trainer(
        optimizer=optimizer or SGD(0.1), learning_rate=warmup, backend="local", **arguments
    )


def rates_of(trainer, updates_per_epoch, epochs, callbacks=(), **arguments):
    rates = Rates()
    settings = {"batch_size": 1, "shuffle": False, "verbose": 0, **arguments}
    callbacks = [*callbacks, rates]
    trainer.fit(*data(updates_per_epoch), epochs=epochs, callbacks=callbacks, **settings)
    return rates.seen


def four_ranks(warmup, optimizer=None, **arguments):
    """A trainer that takes itself for rank 0 of 4, so that 1 sample a rank is a batch of 4."""
    optimizer = optimizer or SGD(0.1)
    return probe_trainer(optimizer=optimizer, learning_rate=warmup, backend=FOUR_RANKS, **arguments)


def four_rank_rates(trainer, updates_per_epoch, epochs, **arguments):
    settings = {"batch_size": None, "batch_size_per_rank": 1, **arguments}
    rates = Rates()
    settings = {"shuffle": False, "verbose": 0, **settings}
    settings["callbacks"] = [*settings.get("callbacks", []), rates]
    trainer.fit(*data(4 * updates_per_epoch), epochs=epochs, **settings)
    return rates.seen


def test_lr_01_the_ramp_of_goyal_et_al():
    rates = four_rank_rates(four_ranks(Warmup(epochs=5)), updates_per_epoch=2, epochs=7)
    expected = [0.1 + 0.3 * min(s / 10, 1) for s in range(14)]
    assert rates == pytest.approx(expected, rel=1e-6)
    assert rates[6] == pytest.approx(0.28)
    assert rates[10] == pytest.approx(0.4)


def test_lr_01_a_resumed_run_continues_the_log_update_by_update():
    whole = four_rank_rates(four_ranks(Warmup(epochs=5)), 2, 8)
    first = four_ranks(Warmup(epochs=5))
    before = four_rank_rates(first, 2, 3)
    resumed = four_ranks(Warmup(epochs=5))
    # What a checkpoint does: the optimizer's variables, the already scaled rate among them.
    resumed.model.optimizer.build(resumed.model.trainable_variables)
    resumed.model.optimizer.set_weights(
        [variable.numpy() for variable in first.model.optimizer.variables]
    )
    after = four_rank_rates(resumed, 2, 8, initial_epoch=3)
    assert before + after == whole


def test_a_checkpoint_keeps_the_factor_of_callbacks():
    class Halve(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                self.model.optimizer.learning_rate = self.model.optimizer.learning_rate * 0.5

    whole = four_rank_rates(four_ranks(Warmup(epochs=5)), 2, 8, callbacks=[Halve()])
    assert whole[4] == pytest.approx(0.5 * (0.1 + 0.3 * 0.4))
    first = four_ranks(Warmup(epochs=5))
    before = four_rank_rates(first, 2, 3, callbacks=[Halve()])
    state = json.loads(json.dumps(control_of(first.model.optimizer).state()))
    resumed = four_ranks(Warmup(epochs=5))
    resumed.model.optimizer.build(resumed.model.trainable_variables)
    resumed.model.optimizer.set_weights([v.numpy() for v in first.model.optimizer.variables])
    control_of(resumed.model.optimizer).load_state(state)
    assert before + four_rank_rates(resumed, 2, 8, initial_epoch=3) == whole


def test_a_second_fit_goes_on_and_takes_no_scaled_rate_for_its_base():
    trainer = four_ranks(Warmup(epochs=5))
    rates = four_rank_rates(trainer, 2, 3) + four_rank_rates(trainer, 2, 4)
    assert rates == pytest.approx([0.1 + 0.3 * min(s / 10, 1) for s in range(14)], rel=1e-6)
    another = fittrain.Trainer(
        trainer.model, learning_rate=Warmup(epochs=5, scaling="sqrt"), backend=FOUR_RANKS
    )
    assert four_rank_rates(another, 2, 1) == pytest.approx([0.2, 0.2], rel=1e-6)


def test_a_second_fit_with_other_epochs_goes_on_at_the_same_height():
    trainer = four_ranks(Warmup(epochs=4))
    assert four_rank_rates(trainer, 2, 2) == pytest.approx([0.1, 0.1375, 0.175, 0.2125])
    # Half of the ramp is done; the other half now lasts 2 epochs of 5 updates.
    second = four_rank_rates(trainer, 5, 3)
    assert second == pytest.approx([0.25 + 0.015 * s for s in range(10)] + [0.4] * 5)
    # Done is done, also where an epoch has more updates.
    assert four_rank_rates(trainer, 50, 1) == pytest.approx([0.4] * 50)


def test_lr_02_epochs_regarded_as_done_end_the_warmup():
    rates = four_rank_rates(four_ranks(Warmup(epochs=5)), 2, 12, initial_epoch=10)
    assert rates == pytest.approx([0.4] * 4)


def test_lr_08_the_ramp_counts_updates_and_not_batches_of_an_epoch():
    rates = rates_of(trainer_of(Warmup(steps=12, scaling=None)), 5, 4)
    assert rates == pytest.approx([0.1 / 12 + (0.1 - 0.1 / 12) * min(s / 12, 1) for s in range(20)])
    assert rates[0] > 0
    assert rates[12:] == [rates[12]] * 8


def test_an_initial_rate_is_taken_as_it_is():
    warmup = Warmup(steps=4, initial_learning_rate=0.02)
    assert four_rank_rates(four_ranks(warmup), 6, 1) == pytest.approx(
        [0.02, 0.115, 0.21, 0.305, 0.4, 0.4]
    )


@pytest.mark.parametrize(
    ("optimizer", "scaling", "factor"),
    [
        ("SGD", "auto", 4.0),
        ("Adam", "auto", 2.0),
        ("RMSprop", "auto", 2.0),
        ("Lamb", "auto", 2.0),
        ("LARS", "auto", 2.0),
        ("Adam", "linear", 4.0),
        ("SGD", "sqrt", 2.0),
        ("SGD", None, 1.0),
    ],
)
def test_the_rule_of_scaling(optimizer, scaling, factor):
    make = getattr(keras.optimizers, optimizer, None) or getattr(fittrain.optimizers, optimizer)
    trainer = four_ranks(Warmup(steps=1, scaling=scaling), optimizer=make(0.1))
    assert four_rank_rates(trainer, 2, 1)[-1] == pytest.approx(0.1 * factor)


def test_a_global_batch_is_compared_with_the_one_the_rate_was_tuned_for():
    trainer = trainer_of(Warmup(steps=1, base_batch_size=2))
    assert rates_of(trainer, 12, 1, batch_size=6)[-1] == pytest.approx(0.3)
    smaller = trainer_of(Warmup(steps=2, base_batch_size=2))
    assert rates_of(smaller, 4, 1) == pytest.approx([0.025, 0.0375, 0.05, 0.05])


@pytest.mark.parametrize("make", [InverseTime, lambda: inverse_time], ids=["schedule", "function"])
def test_another_schedule_follows_the_ramp_without_a_jump(make):
    rates = four_rank_rates(four_ranks(Warmup(steps=3, after=make())), 6, 1)
    ramp = [0.1, 0.2, 0.3]
    assert rates == pytest.approx(ramp + [4 * inverse_time(s) for s in range(3)])


def test_lr_10_an_optimizer_keeps_its_own_schedule():
    schedule = InverseTime()
    optimizer = SGD(schedule, momentum=0.5, clipnorm=0.3, use_ema=True, ema_momentum=0.9)
    before = dict(vars(optimizer))
    names = [variable.path for variable in optimizer.variables]
    trainer = four_ranks(Warmup(steps=3), optimizer=optimizer)
    rates = four_rank_rates(trainer, 6, 1)
    assert rates == pytest.approx([0.1, 0.2, 0.3, *[4 * inverse_time(s) for s in range(3)]])
    assert optimizer._learning_rate is schedule
    hyperparameters = ("momentum", "clipnorm", "use_ema", "ema_momentum", "weight_decay")
    assert [getattr(optimizer, k) for k in hyperparameters] == [before[k] for k in hyperparameters]
    assert [v.path for v in optimizer.variables][: len(names)] == names
    # On its own the optimizer is as it was, at the count of its updates.
    assert float(optimizer.learning_rate) == pytest.approx(inverse_time(6))
    trainer.model.fit(*data(1), verbose=0)
    assert float(optimizer.learning_rate) == pytest.approx(inverse_time(7))


def test_lr_10_all_hyperparameters_stay_but_the_rate():
    optimizer = keras.optimizers.AdamW(
        1e-3, weight_decay=1e-4, beta_1=0.8, beta_2=0.95, clipnorm=0.5, use_ema=True
    )
    before = optimizer.get_config()
    trainer = trainer_of(Warmup(steps=2, scaling=None), optimizer)
    rates_of(trainer, 4, 1)
    after = trainer.model.optimizer.get_config()
    assert trainer.model.optimizer is optimizer
    assert after.pop("learning_rate") == pytest.approx(before.pop("learning_rate"))
    assert after == before


def test_the_rates_of_a_schedule_train_as_plain_keras_with_these_rates():
    decay = keras.optimizers.schedules.ExponentialDecay(0.2, 3, 0.5)
    x = np.linspace(-1, 1, 12, dtype="float32")[:, None]
    y = 3 * x + 1
    trainer = trainer_of(
        Warmup(steps=4, scaling="linear", base_batch_size=1), SGD(decay, momentum=0.9)
    )
    trainer.fit(x, y, batch_size=2, epochs=2, shuffle=False, verbose=0)
    rates = [0.2 + 0.05 * s for s in range(4)] + [2 * 0.2 * 0.5 ** (s / 3) for s in range(8)]
    plain = probe_model()
    by_hand = keras.optimizers.schedules.PiecewiseConstantDecay(list(range(11)), rates)
    plain.compile(SGD(by_hand, momentum=0.9), "mse")
    plain.fit(x, y, batch_size=2, epochs=2, shuffle=False, verbose=0)
    np.testing.assert_allclose(trainer.model.get_weights()[0], plain.get_weights()[0], rtol=1e-5)


def test_a_schedule_can_be_replaced_between_fits():
    optimizer = SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 1.0))
    trainer = trainer_of(Warmup(steps=1, scaling=None), optimizer)
    assert rates_of(trainer, 3, 1) == pytest.approx([0.1, 0.1, 0.1])
    optimizer.learning_rate = keras.optimizers.schedules.ExponentialDecay(0.3, 1, 1.0)
    assert rates_of(trainer, 3, 1) == pytest.approx([0.3, 0.3, 0.3])


@pytest.mark.parametrize("own", [0.1, InverseTime()], ids=["number", "schedule"])
def test_without_a_warmup_an_optimizer_given_another_schedule_follows_it(own):
    optimizer = SGD(own)
    trainer = trainer_of(None, optimizer)
    rates_of(trainer, 2, 1)
    optimizer.learning_rate = keras.optimizers.schedules.ExponentialDecay(0.0, 1, 1.0)
    before = trainer.model.get_weights()
    rates_of(trainer, 2, 1)
    assert trainer.model.get_weights() == before


def test_lr_09_a_scheduler_that_returns_the_rate_changes_nothing():
    identity = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate)
    rates = four_rank_rates(four_ranks(Warmup(epochs=2)), 3, 4, callbacks=[identity])
    assert rates == four_rank_rates(four_ranks(Warmup(epochs=2)), 3, 4)
    assert rates[6:] == pytest.approx([0.4] * 6)


def test_what_a_callback_sets_stays_as_a_factor():
    plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=100.0)
    rates = four_rank_rates(four_ranks(Warmup(epochs=2)), 2, 4, callbacks=[plateau])
    # The first epoch is the best; those after it are no better by 100.
    planned = [0.1, 0.175, 0.25, 0.325, 0.4, 0.4, 0.4, 0.4]
    factors = [1, 1, 1, 1, 0.5, 0.5, 0.25, 0.25]
    assert rates == pytest.approx([p * f for p, f in zip(planned, factors, strict=True)])


def test_what_a_user_sets_between_fits_stays_as_a_factor_also_after_a_zero():
    trainer = four_ranks(Warmup(steps=2))
    assert four_rank_rates(trainer, 3, 1) == pytest.approx([0.1, 0.25, 0.4])
    trainer.model.optimizer.learning_rate = 0.0
    assert four_rank_rates(trainer, 2, 1) == [0.0, 0.0]
    trainer.model.optimizer.learning_rate = 0.2
    assert four_rank_rates(trainer, 2, 1) == pytest.approx([0.2, 0.2])


def test_a_state_loaded_between_fits_is_no_change_by_a_user():
    trainer = four_ranks(Warmup(epochs=5))
    four_rank_rates(trainer, 2, 2)
    kept = [variable.numpy() for variable in trainer.model.optimizer.variables]
    first = four_rank_rates(trainer, 2, 2)
    trainer.model.optimizer.set_weights(kept)
    assert four_rank_rates(trainer, 2, 2) == first


def test_a_state_loaded_from_a_later_time_is_no_change_by_a_user_either():
    later, trainer = four_ranks(Warmup(epochs=5)), four_ranks(Warmup(epochs=5))
    four_rank_rates(later, 2, 4)
    four_rank_rates(trainer, 2, 1)
    variables = [variable.numpy() for variable in later.model.optimizer.variables]
    trainer.model.optimizer.set_weights(variables)
    assert four_rank_rates(trainer, 2, 2) == pytest.approx([0.34, 0.37, 0.4, 0.4])


def test_a_rate_set_before_the_first_fit_is_the_base():
    trainer = four_ranks(Warmup(steps=2))
    trainer.model.optimizer.learning_rate = 0.2
    assert four_rank_rates(trainer, 3, 1) == pytest.approx([0.2, 0.5, 0.8])


def test_an_optimizer_loaded_after_training_needs_to_be_told_its_rate(tmp_path):
    trainer = four_ranks(Warmup(epochs=5))
    four_rank_rates(trainer, 2, 3)
    trainer.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert float(loaded.optimizer.learning_rate.numpy()) == pytest.approx(0.25)

    def again(**arguments):
        return fittrain.Trainer(
            loaded,
            learning_rate=Warmup(epochs=5, **arguments),
            backend=FOUR_RANKS,
        )

    with pytest.raises(ArgumentError, match="loaded after 6 updates, and its rate 0.25 may be"):
        four_rank_rates(again(), 2, 4, initial_epoch=3)
    rates = four_rank_rates(again(base_learning_rate=0.1), 2, 4, initial_epoch=3)
    assert rates == pytest.approx([0.28, 0.31])


def test_updates_that_loss_scaling_skips_do_not_advance_the_ramp():
    inner = SGD(0.1)
    trainer = trainer_of(
        Warmup(steps=2, scaling=None, initial_learning_rate=0.0625),
        keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0),
    )
    x, y = data(4)
    y[1] = np.inf
    rates = Rates()
    trainer.fit(x, y, batch_size=1, shuffle=False, verbose=0, callbacks=[rates])
    assert rates.seen == pytest.approx([0.0625, 0.08125, 0.08125, 0.1])
    assert int(inner.iterations) == 3


def test_momentum_correction_keeps_the_velocity_in_step_with_the_rate():
    velocities = {}
    for correction in (False, True):
        warmup = Warmup(
            steps=1,
            scaling="linear",
            base_batch_size=1,
            initial_learning_rate=0.125,
            momentum_correction=correction,
        )
        optimizer = SGD(0.25, momentum=0.5)
        trainer = trainer_of(warmup, optimizer)
        x = np.ones((4, 1), "float32")
        trainer.fit(x, 2 * x, batch_size=2, shuffle=False, verbose=0)
        velocities[correction] = [
            float(optimizer.momentums[0].numpy().item()),
            float(trainer.model.get_weights()[0].item()),
        ]
    # Update 1: rate 1/8, gradient 2 (0 - 2) = -4, velocity 1/2, weight 1/2.
    # Update 2: rate 1/2, gradient 2 (1/2 - 2) = -3. Without: velocity 1/2 * 1/2 + 3/2 = 7/4.
    # With: the velocity is first made 1/2 * (1/2) / (1/8) = 2, then 1/2 * 2 + 3/2 = 5/2.
    assert velocities == {False: [1.75, 2.25], True: [2.5, 3.0]}


def test_eager_steps_have_the_same_rates():
    trainer = four_ranks(Warmup(steps=2))
    trainer.model.run_eagerly = True
    assert four_rank_rates(trainer, 4, 1) == pytest.approx([0.1, 0.25, 0.4, 0.4])


def test_a_second_fit_traces_nothing_anew():
    trainer = four_ranks(Warmup(epochs=2))
    four_rank_rates(trainer, 3, 1)
    program = trainer._program
    traced = {name: p.experimental_get_tracing_count() for name, p in program._compiled.items()}
    four_rank_rates(trainer, 5, 2)
    assert trainer._program is program
    now = {name: p.experimental_get_tracing_count() for name, p in program._compiled.items()}
    assert now == traced


def test_the_saved_file_is_plain_keras(tmp_path):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
    for own in (0.1, schedule):
        trainer = trainer_of(Warmup(steps=2, scaling=None), SGD(own, momentum=0.9))
        path = tmp_path / "inside.keras"
        callbacks = [keras.callbacks.ModelCheckpoint(path)]
        rates_of(trainer, 4, 1, callbacks=callbacks)
        trainer.save(tmp_path / "after.keras")
        for name in ("inside.keras", "after.keras"):
            loaded = keras.models.load_model(tmp_path / name).optimizer
            assert type(loaded._learning_rate) is type(trainer.model.optimizer._learning_rate)
            for variable, wanted in zip(
                loaded.variables, trainer.model.optimizer.variables, strict=True
            ):
                np.testing.assert_array_equal(variable.numpy(), wanted.numpy())


def test_the_derivation_is_told_once_and_kept(tmp_path, capsys):
    trainer = four_ranks(Warmup(epochs=5), run_dir=tmp_path)
    four_rank_rates(trainer, 2, 4, initial_epoch=3)
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if line.startswith("learning rate")] == [
        "learning rate: base 0.1 times 4 (linear in 4 / 1 samples, scaling='auto' with SGD) is "
        "0.4; from 0.1 over 10 updates, of which 6 are done"
    ]
    kept = json.loads((tmp_path / "run.json").read_text())["learning_rate"]
    assert kept == {
        "base_learning_rate": pytest.approx(0.1),
        "scaling": "linear",
        "factor": 4.0,
        "why": "scaling='auto' with SGD",
        "target_learning_rate": pytest.approx(0.4),
        "initial_learning_rate": pytest.approx(0.1),
        "warmup_steps": 10,
        "updates_per_epoch": 2,
        "ranks": 4,
        "global_batch_size": 4,
        "base_batch_size": 1,
        "after": None,
        "momentum_correction": False,
        "first_step": 6,
    }


def test_ranks_compare_the_arguments_and_the_numbers(monkeypatch):
    trainer = four_ranks(Warmup(epochs=5))
    compared = {}
    monkeypatch.setattr(FOUR_RANKS, "agree", compared.update)
    four_rank_rates(trainer, 2, 1)
    assert "'epochs': 5" in compared["learning_rate"]
    assert compared["learning_rate factor"] == 4.0


def test_a_schedule_can_be_stored_and_made_again():
    after = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
    schedule = WarmupSchedule(0.1, 0.4, 4, after=after, factor=4.0)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(schedule))
    rates = [float(again(step)) for step in range(8)]
    assert rates == [float(schedule(step)) for step in range(8)]
    assert rates == pytest.approx(
        [0.1, 0.175, 0.25, 0.325, *[0.4 * 0.5 ** (s / 3) for s in range(4)]]
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "`epochs` and `steps` are two ways"),
        ({"epochs": 1, "steps": 1}, "`epochs` and `steps` are two ways"),
        ({"epochs": 0}, "`epochs` must be a number of epochs above 0. Received: epochs=0"),
        ({"epochs": True}, "`epochs` must be a number"),
        ({"epochs": float("nan")}, "`epochs` must be a number"),
        ({"steps": 0}, "`steps` must be a positive integer"),
        ({"steps": 1.5}, "`steps` must be a positive integer"),
        ({"steps": 1, "scaling": "cubic"}, "`scaling` must be one of"),
        ({"steps": 1, "base_batch_size": 0}, "`base_batch_size` must be a positive integer"),
        ({"steps": 1, "base_learning_rate": 0}, "`base_learning_rate` must be above 0"),
        ({"steps": 1, "initial_learning_rate": -1}, "`initial_learning_rate` must be 0 or more"),
        ({"steps": 1, "momentum_correction": 1}, "`momentum_correction` must be True or False"),
        ({"steps": 1, "after": 0.1}, "`after` must be a Keras schedule, or a function"),
        (
            {"steps": 1, "after": inverse_time, "base_learning_rate": 0.1},
            r"the base rate is `after\(0\)`",
        ),
    ],
)
def test_numbers_that_cannot_work_are_refused(arguments, words):
    with pytest.raises(ArgumentError, match=words):
        Warmup(**arguments)


@pytest.mark.parametrize(
    ("optimizer", "warmup", "words"),
    [
        (lambda: SGD(0.1), 0.1, "`learning_rate` must be a fittrain.Warmup, or None"),
        (
            lambda: keras.optimizers.Adam(0.1),
            Warmup(steps=1, momentum_correction=True),
            "`momentum_correction` is for keras.optimizers.SGD with momentum.* Received: Adam",
        ),
        (lambda: SGD(0.1), Warmup(steps=1, momentum_correction=True), "Received: SGD"),
        (
            lambda: SGD(InverseTime()),
            Warmup(steps=1, after=inverse_time),
            "`after` of Warmup and the optimizer's own InverseTime",
        ),
        (
            lambda: SGD(InverseTime()),
            Warmup(steps=1, base_learning_rate=0.1),
            "`base_learning_rate` of Warmup and the optimizer's own InverseTime",
        ),
        (lambda: SGD(lambda: 0.1), Warmup(steps=1), "a function without arguments"),
        (
            lambda: keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(SGD(0.1))),
            Warmup(steps=1),
            "MultiOptimizer has several",
        ),
    ],
)
def test_a_warmup_that_does_not_fit_the_optimizer_is_refused_at_construction(
    optimizer, warmup, words
):
    with pytest.raises(ArgumentError, match=words):
        trainer_of(warmup, optimizer())
    model = probe_model()
    model.compile(optimizer(), "mse")
    with pytest.raises(ArgumentError, match=words):
        fittrain.Trainer(model, learning_rate=warmup, backend="local")
    with pytest.raises(ArgumentError, match=words):
        fittrain.Trainer(lambda: model, learning_rate=warmup, backend="local").fit(*data(1))


def test_a_global_batch_alone_does_not_say_what_the_rate_was_tuned_for():
    with pytest.raises(ArgumentError, match="`scaling` is 'auto', but nothing says for which"):
        rates_of(trainer_of(Warmup(epochs=1)), 2, 1)


def test_a_schedule_that_begins_at_zero_warms_up_by_itself():
    own = keras.optimizers.schedules.CosineDecay(0.0, 10, warmup_target=0.1, warmup_steps=5)
    with pytest.raises(ArgumentError, match="must begin with a rate above 0.* CosineDecay"):
        rates_of(trainer_of(Warmup(epochs=1, scaling=None), SGD(own)), 2, 1)
