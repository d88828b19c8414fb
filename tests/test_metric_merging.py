"""One process: metrics of one's own that add up, that say how they merge, that are refused."""

import keras
import numpy as np
import pytest

import fittrain
from fittrain import session
from fittrain.data.arrays import ArraySource
from fittrain.errors import ArgumentError
from fittrain.metric_trial import check_metrics
from fittrain.testing import RecordingCommunicator, probe_model

pytestmark = pytest.mark.usefixtures("fresh_session")


class Bias(keras.metrics.Metric):
    """Sum of signed errors: parts that nearly cancel still add up."""

    def __init__(self, **options):
        super().__init__(**options)
        self.error = self.add_variable((), "zeros", name="error")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.error.assign(self.error + keras.ops.sum(y_pred - y_true))

    def result(self):
        return self.error


class From10(Bias):
    """A number of samples that starts at 10."""

    def reset_state(self):
        self.error.assign(10.0)

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.error.assign(self.error + keras.ops.cast(keras.ops.shape(y_true)[0], "float32"))


class Highest(keras.metrics.Metric):
    """How many targets there were, and the largest."""

    def __init__(self, **options):
        super().__init__(**options)
        self.count = self.add_variable((), "zeros", name="count")
        self.highest = self.add_variable((), "zeros", name="highest")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.count.assign(self.count + keras.ops.cast(keras.ops.shape(y_true)[0], "float32"))
        self.highest.assign(keras.ops.maximum(self.highest, keras.ops.max(y_true)))

    def result(self):
        return {"count": self.count, "highest": self.highest}


class Declared(Highest):
    merge_over_ranks = {"highest": "max"}


class Lowest(Bias):
    merge_over_ranks = "min"

    def reset_state(self):
        self.error.assign(np.inf)

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.error.assign(keras.ops.minimum(self.error, keras.ops.min(y_true)))


class UndeclaredLowest(Lowest):
    merge_over_ranks = None


class Running(Bias):
    """A running mean, which is no sum."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.error.assign(0.9 * self.error + 0.1 * keras.ops.mean(y_true))


class Around(keras.metrics.Metric):
    """A metric of one's own around another."""

    def __init__(self, inner, **options):
        super().__init__(**options)
        self.inner = inner

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.inner.update_state(y_true, 2.0 * y_pred, sample_weight)

    def result(self):
        return self.inner.result()


class Fails(Bias):
    """A metric that cannot take the few rows of a trial."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        if y_true.shape[0] == 8:
            raise KeyError("a thousand rows are needed")


def on_the_instance(metric, merge):
    metric.merge_over_ranks = merge
    return metric


def column(*values):
    return np.asarray(values, "float32")[:, None]


X, Y = column(*range(1, 10)), column(3, 1, 4, 1, 5, 9, 2, 6, 5)


def source(rows=9):
    return ArraySource(X[:rows], Y[:rows])


def compiled(*metrics, run_eagerly=False):
    model = probe_model()
    options = {"run_eagerly": run_eagerly, "jit_compile": False}
    model.compile(keras.optimizers.SGD(0.01), "mse", metrics=list(metrics), **options)
    return model


def trained(model, backend):
    """Metrics after one update of the 9 samples, of which rank 0 of 2 has the first 4."""
    trainer = fittrain.Trainer(model, backend=backend)
    history = trainer.fit(X, Y, batch_size=18, shuffle=False, verbose=0).history
    return {name: values[0] for name, values in history.items() if name != "loss"}


@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        # The pretended other rank holds what this one holds.
        (lambda: From10(name="from10"), {"from10": 10 + 2 * 4}),
        (lambda: Declared(name="a"), {"count": 2 * 4, "highest": 4}),
        (lambda: Lowest(name="lowest"), {"lowest": 1}),
        (lambda: Around(Declared(), name="a"), {"count": 2 * 4, "highest": 4}),
        (lambda: on_the_instance(Running(name="a"), "max"), {"a": pytest.approx(0.1 * 2.25)}),
        (lambda: on_the_instance(Around(Bias(), name="a"), "sum"), {"a": -2 * (3 + 1 + 4 + 1)}),
        (lambda: Around(keras.metrics.MeanSquaredError(), name="a"), {"a": (9 + 1 + 16 + 1) / 4}),
        (lambda: Bias(name="bias"), {"bias": -2 * (3 + 1 + 4 + 1)}),
    ],
)
def test_states_merge_as_they_add_up_or_say(metric, expected, run_eagerly):
    model = compiled(metric(), run_eagerly=run_eagerly)
    assert trained(model, RecordingCommunicator(size=2)) == expected


def test_there_is_one_exchange_where_all_add_up_and_one_more_for_each_other_word(monkeypatch):
    def of_metrics(*metrics):
        monkeypatch.setattr(session, "_session", None)
        communicator = RecordingCommunicator(size=2)
        trained(compiled(*metrics), communicator)
        return [detail for name, detail in communicator.calls if name == "reduce"]

    plain = of_metrics("mae")
    # Seconds, the loss and Keras's own loss, two numbers each, and two of the metric.
    assert plain.count(("sum", (1 + 2 + 2 + 2,))) == 1
    both = of_metrics("mae", Declared(), Lowest())
    assert both.count(("sum", (1 + 2 + 2 + 2 + 1,))) == 1
    assert len(both) == len(plain) + 2


@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (Highest, r"`highest` of the metric `mine` \(Highest\).*after 8 rows it is 9.* 13\."),
        (Running, r"`error` of the metric `mine` \(Running\)"),
        (UndeclaredLowest, r"`error` .*\(UndeclaredLowest\).*it is 1.*, and -inf as the sum"),
        (lambda name: Around(Highest(), name=name), r"`highest` of the metric `mine` \(Around\)"),
    ],
)
def test_a_state_that_does_not_add_up_is_refused_with_the_ways_out(metric, words, run_eagerly):
    model = compiled(metric(name="mine"), run_eagerly=run_eagerly)
    with pytest.raises(ArgumentError, match=words) as caught:
        trained(model, RecordingCommunicator(size=2))
    ways = ["divide in `result`", "`merge_over_ranks`", "`Trainer.predict`"]
    assert [way for way in ways if way not in str(caught.value)] == []


def test_one_rank_needs_no_merging():
    assert trained(compiled(Highest(name="mine")), "local") == {"count": 9, "highest": 9}


def test_a_metric_that_cannot_be_tried_says_why_and_what_to_do():
    model = compiled(Fails(name="mine"))
    with pytest.raises(ArgumentError, match="`mine` .*KeyError: 'a thousand rows.*Correct the"):
        trained(model, RecordingCommunicator(size=2))


class Counting(keras.layers.Layer):
    """Counts in a metric of its own what passes through it."""

    def __init__(self, metric):
        super().__init__()
        self.metric = metric

    def call(self, x):
        self.metric.update_state(x, x)
        return x


@pytest.mark.parametrize(("metric", "refused"), [(From10, False), (Highest, True)])
def test_metrics_that_layers_update_are_tried_too(metric, refused):
    counting = Counting(metric(name="mine"))
    model = keras.Sequential([keras.Input((1,)), counting, keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    if not refused:
        assert trained(model, RecordingCommunicator(size=2))["mine"] == 10 + 2 * 4
        return
    with pytest.raises(ArgumentError, match="`highest` of the metric `mine`"):
        trained(model, RecordingCommunicator(size=2))


@pytest.mark.parametrize(
    ("merge", "words"),
    [
        ("mean", r"`mine` must be one of \('sum', 'min', 'max'\).*Received: 'mean'"),
        ({"highest": "mean"}, r"Received: {'highest': 'mean'}"),
        ({"lowest": "min"}, r"names of its variables \(count, highest\).*Received: {'lowest'"),
    ],
)
def test_a_merge_that_is_none_is_refused(merge, words):
    model = compiled(on_the_instance(Highest(name="mine"), merge))
    with pytest.raises(ArgumentError, match=words):
        trained(model, RecordingCommunicator(size=2))


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_the_trial_changes_no_state_and_needs_one_row(rows):
    metric = Bias(name="mine")
    model = compiled(metric)
    model.compute_metrics(X, Y, model(X))
    before = [variable.numpy() for variable in [*model.variables, *model.metrics_variables]]
    check_metrics(model, source(rows), size=2)
    after = [variable.numpy() for variable in [*model.variables, *model.metrics_variables]]
    assert metric.error.numpy() != 0.0
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


def test_metrics_of_keras_cost_no_trial(monkeypatch):
    model = compiled("mae", keras.metrics.AUC())
    model.compute_metrics(X, Y > 3, model(X) * 0)
    monkeypatch.setattr(type(model), "__call__", lambda *_, **__: pytest.fail("a trial"))
    check_metrics(model, source(), size=2)
