"""How fast to learn on a global batch of G samples: warm-up, and the rate scaled with the batch.

Owns the rule and where its numbers come from. `rate_control` applies them, update by update.

Synopsis::

    trainer = fittrain.Trainer(
        build, optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss="mse",
        learning_rate=fittrain.Warmup(epochs=5, base_batch_size=256),
    )
    trainer.fit(x, y, batch_size=1024, epochs=90)     # rises from 0.1 to 0.4 over 5 epochs
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import keras
import numpy as np

from fittrain.comm.base import Communicator
from fittrain.config import FitConfig, whole_number
from fittrain.errors import ArgumentError
from fittrain.rate_control import LearningRateControl, Ramp, control_of, unwrapped

logger = logging.getLogger(__name__)

SCALINGS = ("auto", "linear", "sqrt", None)


@dataclass(frozen=True)
class Warmup:
    """Scales the learning rate with the global batch, and rises to it over the first updates.

    A larger batch has a gradient with less noise, and bears a larger rate: the base rate times
    G / B, where G is the global batch and B the batch it was tuned for (Goyal et al. 2017,
    arXiv:1706.02677, section 2.1), or times the square root of that for optimizers that divide by
    the gradient's size (Malladi et al. 2022, arXiv:2205.10343). Early in training the full rate is
    too much, so it is approached in a straight line (Goyal et al., section 2.2).

    Everything counts applied updates, across epochs and calls of `fit`: updates that loss scaling
    skips, and micro-batches, do not advance it. The base is the optimizer's own rate before its
    first update, whatever rate a later `fit` or a loaded state finds there. With `initial_epoch`
    and a fresh optimizer the epochs before it count as done. What callbacks assign to the
    optimizer's rate is kept, as a factor on all that follows.

    Args:
        epochs: length of the ramp in epochs, above 0; 0.5 is half an epoch.
        steps: the alternative: its length in updates.
        scaling: "linear"; "sqrt"; None leaves the rate alone; "auto" is "linear" for
            keras.optimizers.SGD, with momentum or without, and "sqrt" for every other: Adam and
            its relatives, RMSprop, Adagrad, Lion, Lamb, LARS, and optimizers of your own.
        base_batch_size: the batch the rate was tuned for, in samples. Default: the batch of one
            rank where `fit` is given `batch_size_per_rank`, so that the factor is the number of
            ranks. A global `batch_size` says nothing about it, and needs it.
        base_learning_rate: the rate that was tuned. Default: the optimizer's own. Needed for an
            optimizer that was loaded after training, whose rate may be scaled already.
        after: what follows: a Keras schedule, or a function of the number of updates since the end
            of the ramp. Default: the optimizer's own schedule if it has one, else a constant. It
            is multiplied with the factor of the scaling, and `after(0)` is the base rate.
        initial_learning_rate: rate of the first update, not scaled. Default: the base rate, or
            where the ramp would not rise from there, a `1 / updates of the ramp` of its end.
        momentum_correction: whether velocities, which hold the rate of earlier updates as a
            factor, are multiplied with new rate / old rate when it changes (Goyal et al.,
            section 3); for keras.optimizers.SGD with momentum.

    Raises:
        ArgumentError: if a number is out of range, or arguments exclude each other.

    Example:
        >>> Warmup(epochs=5, base_batch_size=32).scale("SGD", global_batch=128).factor
        4.0
    """

    epochs: float | None = None
    steps: int | None = None
    _: KW_ONLY
    scaling: str | None = "auto"
    base_batch_size: int | None = None
    base_learning_rate: float | None = None
    after: Callable[[Any], Any] | None = None
    initial_learning_rate: float | None = None
    momentum_correction: bool = False

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise ArgumentError(
                "`epochs` and `steps` are two ways to say how long the warm-up lasts. Received: "
                f"epochs={self.epochs!r}, steps={self.steps!r}. Give one of them."
            )
        if self.epochs is not None:
            _check_number("epochs", self.epochs, "a number of epochs above 0", above=0.0)
        for name in ("steps", "base_batch_size"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole_number(name, getattr(self, name), 1))
        if self.base_learning_rate is not None:
            _check_number("base_learning_rate", self.base_learning_rate, "above 0", above=0.0)
        if self.initial_learning_rate is not None:
            _check_number("initial_learning_rate", self.initial_learning_rate, "0 or more")
        if not isinstance(self.scaling, (str, type(None))) or self.scaling not in SCALINGS:
            raise ArgumentError(
                f"`scaling` must be one of {SCALINGS}. Received: scaling={self.scaling!r}."
            )
        if not isinstance(self.momentum_correction, (bool, np.bool_)):
            raise ArgumentError(
                "`momentum_correction` must be True or False. "
                f"Received: momentum_correction={self.momentum_correction!r}."
            )
        self._check_after()

    def _check_after(self) -> None:
        if self.after is not None and not callable(self.after):
            raise ArgumentError(
                "`after` must be a Keras schedule, or a function of the number of updates since "
                f"the end of the warm-up. Received: after={self.after!r}."
            )
        if self.after is not None and self.base_learning_rate is not None:
            raise ArgumentError(
                "`after` gives the rates itself: the base rate is `after(0)`. Received: "
                f"base_learning_rate={self.base_learning_rate!r} too. Give one of them."
            )

    def scale(
        self, optimizer: str, global_batch: int, batch_size_per_rank: int | None = None
    ) -> Scale:
        """The factor for the rate, and why it is that.

        Args:
            optimizer: name of the optimizer's class; "SGD" is scaled linearly with "auto".
            global_batch: samples in one update over all ranks.
            batch_size_per_rank: as given to `fit`.

        Raises:
            ArgumentError: if nothing says what batch the rate was tuned for.
        """
        if self.scaling is None:
            return Scale(1.0, None, self.base_batch_size, "scaling=None")
        base = self.base_batch_size or batch_size_per_rank
        if base is None:
            raise ArgumentError(
                f"`scaling` is {self.scaling!r}, but nothing says for which batch the rate was "
                f"tuned: the global batch of {global_batch} is the same for every number of "
                "ranks. Give Warmup `base_batch_size`, give `fit` `batch_size_per_rank` instead of "
                "`batch_size`, or leave the rate alone with scaling=None."
            )
        rule, why = self.scaling, f"scaling={self.scaling!r}"
        if rule == "auto":
            rule = "linear" if optimizer == "SGD" else "sqrt"
            why = f"scaling='auto' with {optimizer}"
        ratio = global_batch / base
        return Scale(ratio if rule == "linear" else math.sqrt(ratio), rule, base, why)

    def count_steps(self, updates_per_epoch: int) -> int:
        """Updates of the ramp, at least 1."""
        if self.steps is not None:
            return self.steps
        return max(1, round((self.epochs or 0.0) * updates_per_epoch))

    def describe(self) -> str:
        """The arguments in words that are the same on all ranks."""
        after = getattr(self.after, "__name__", type(self.after).__name__)
        given = {name: value for name, value in vars(self).items() if name != "after"}
        return str({**given, "after": after})


@dataclass(frozen=True)
class Scale:
    """How a rate is scaled.

    Args:
        factor: what the base rate is multiplied with.
        rule: "linear", "sqrt" or None.
        base_batch_size: the batch the rate was tuned for.
        why: who chose the rule.
    """

    factor: float
    rule: str | None
    base_batch_size: int | None
    why: str


def check_warmup(warmup: Any, optimizer: Any) -> None:
    """Refuses a warm-up that cannot work with this optimizer, and remembers the optimizer's rate.

    Args:
        warmup: what `Trainer` was given.
        optimizer: a Keras optimizer; anything else is not looked at yet.

    Raises:
        ArgumentError: naming what to change.
    """
    if warmup is None:
        return
    if not isinstance(warmup, Warmup):
        raise ArgumentError(
            "`learning_rate` must be a fittrain.Warmup, or None to leave the optimizer's rate as "
            f"it is. Received: {warmup!r}. A rate or a schedule belongs to the optimizer."
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        return
    inner = unwrapped(optimizer)
    if not hasattr(inner, "learning_rate"):
        raise ArgumentError(
            f"`learning_rate` needs one rate to set, and {type(inner).__name__} has several. "
            "Use learning_rate=None, and schedules of its optimizers."
        )
    _check_source(warmup, inner)
    momentum = getattr(inner, "momentum", 0.0) if isinstance(inner, keras.optimizers.SGD) else 0.0
    if warmup.momentum_correction and not momentum:
        raise ArgumentError(
            "`momentum_correction` is for keras.optimizers.SGD with momentum, whose velocity holds "
            f"the learning rate. Received: {type(inner).__name__}. Use momentum_correction=False."
        )
    control_of(inner)


def _check_source(warmup: Warmup, optimizer: Any) -> None:
    """Refuses two sources of one rate."""
    source = optimizer._learning_rate
    if isinstance(source, keras.Variable):
        return
    if not isinstance(source, keras.optimizers.schedules.LearningRateSchedule):
        raise ArgumentError(
            "`learning_rate` cannot warm up an optimizer whose rate is a function without "
            "arguments. Give the optimizer a rate and Warmup the function of the update, `after`."
        )
    for name in ("after", "base_learning_rate"):
        if getattr(warmup, name) is not None:
            raise ArgumentError(
                f"`{name}` of Warmup and the optimizer's own {type(source).__name__} would both "
                f"give the rate. Give the optimizer a number, or leave out `{name}`."
            )


def start(
    warmup: Warmup | None,
    optimizer: Any,
    config: FitConfig,
    updates_per_epoch: int,
    communicator: Communicator,
) -> LearningRateControl | None:
    """Collective: the learning rate's numbers for a fit, in place and said aloud.

    Args:
        warmup: what `Trainer` was given.
        optimizer: the model's, built and with the state that the fit starts from.
        config: numbers of the fit.
        updates_per_epoch: applied updates in an epoch.
        communicator: how ranks talk.

    Returns:
        What sets the rate of each update, or None without a warm-up.

    Raises:
        ArgumentError: on all ranks, if the numbers do not add up to a rate.
        RankMismatchError: if ranks come to different ones.
    """
    if warmup is None:
        return None
    with communicator.together():
        check_warmup(warmup, optimizer)
        control = control_of(optimizer)
        ramp, derivation = derive(warmup, control, config, updates_per_epoch, communicator.size)
        control.begin(ramp, first_step=config.initial_epoch * updates_per_epoch)
        control.derivation = {**derivation, "first_step": control.step}
    communicator.agree({f"learning_rate {k}": v for k, v in control.derivation.items()})
    if communicator.is_chief:
        _say(control.derivation)
    return control


def derive(
    warmup: Warmup,
    control: LearningRateControl,
    config: FitConfig,
    updates_per_epoch: int,
    size: int,
) -> tuple[Ramp, dict[str, Any]]:
    """The numbers of a fit, and how they came about."""
    optimizer, global_batch = control.optimizer, config.batch_size_global(size)
    family = "SGD" if isinstance(optimizer, keras.optimizers.SGD) else type(optimizer).__name__
    scale = warmup.scale(family, global_batch, config.batch_size_per_rank)
    after = warmup.after
    if not isinstance(optimizer._learning_rate, keras.Variable):
        after = optimizer._learning_rate
    base = _base_rate(warmup, control, after)
    steps, target = warmup.count_steps(updates_per_epoch), base * scale.factor
    first = base if target > base else target / steps
    if warmup.initial_learning_rate is not None:
        first = float(warmup.initial_learning_rate)
    ramp = Ramp(first, target, steps, scale.factor, after, bool(warmup.momentum_correction))
    return ramp, {
        "base_learning_rate": base,
        "scaling": scale.rule,
        "factor": scale.factor,
        "why": scale.why,
        "target_learning_rate": target,
        "initial_learning_rate": first,
        "warmup_steps": steps,
        "updates_per_epoch": updates_per_epoch,
        "ranks": size,
        "global_batch_size": global_batch,
        "base_batch_size": scale.base_batch_size,
        "after": None if after is None else getattr(after, "__name__", type(after).__name__),
        "momentum_correction": ramp.momentum_correction,
    }


def _base_rate(
    warmup: Warmup, control: LearningRateControl, after: Callable[[Any], Any] | None
) -> float:
    if after is not None:
        rate = np.asarray(control.schedule_for(after).rate_after(0))
        if rate.shape != () or not np.isfinite(rate) or rate <= 0:
            raise ArgumentError(
                "The schedule after a warm-up must begin with a rate above 0, which the warm-up "
                f"leads to. Received: {rate.tolist()} from {type(after).__name__}. Leave the ramp "
                "to one of them."
            )
        return float(rate)
    base = warmup.base_learning_rate or control.base_rate()
    if base is None:
        raise ArgumentError(
            "`learning_rate` cannot tell the optimizer's own rate: it was loaded after "
            f"{int(control.optimizer.iterations)} updates, and its rate "
            f"{float(control.optimizer.learning_rate.numpy()):.6g} may be one that a warm-up has "
            "scaled. Give Warmup `base_learning_rate`, the rate before scaling."
        )
    return float(base)


def _say(derivation: dict[str, Any]) -> None:
    known = dict(derivation)
    known["rule"] = "not scaled"
    if known["scaling"] is not None:
        known["rule"] = "{scaling} in {global_batch_size} / {base_batch_size} samples".format(
            **known
        )
    logger.info(
        "learning rate: base %(base_learning_rate).6g times %(factor).6g (%(rule)s, %(why)s) is "
        "%(target_learning_rate).6g; from %(initial_learning_rate).6g over %(warmup_steps)d "
        "updates, of which %(first_step)d are done",
        known,
    )


def governing(control: LearningRateControl | None) -> contextlib.AbstractContextManager[None]:
    """While a fit runs: the control's rate is the optimizer's."""
    return contextlib.nullcontext() if control is None else control.governing()


def _check_number(name: str, value: Any, what: str, above: float | None = None) -> None:
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0 or (above is not None and value <= 0):
        raise ArgumentError(f"`{name}` must be {what}. Received: {name}={value!r}.")
