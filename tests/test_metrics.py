"""The states of all of Keras's metrics add up over ranks."""

import inspect

import keras
import numpy as np
import pytest

metrics = keras.metrics
generator = np.random.default_rng(0)


def softmax(*shape):
    raw = np.exp(generator.normal(size=shape))
    return (raw / raw.sum(axis=-1, keepdims=True)).astype("float32")


CLASSES = generator.integers(0, 4, size=12)
VALUES = generator.uniform(0.1, 2.0, size=(12, 3)).astype("float32")
DATA = {
    "binary": (generator.integers(0, 2, size=(12, 1)), generator.uniform(size=(12, 1))),
    "one-hot": (np.eye(4, dtype="float32")[CLASSES], softmax(12, 4)),
    "class numbers": (CLASSES[:, None], softmax(12, 4)),
    "predicted classes": (CLASSES[:, None], generator.integers(0, 4, size=(12, 1))),
    "values": (VALUES, (VALUES + generator.normal(0, 0.3, size=(12, 3))).astype("float32")),
    "signs": (generator.choice([-1.0, 1.0], size=(12, 1)), generator.normal(size=(12, 1))),
    "alone": (VALUES,),
}
WEIGHTS = generator.uniform(0.5, 2.0, size=12).astype("float32")
KERAS_METRICS = {
    metrics.Mean: ("alone", {}),
    metrics.Sum: ("alone", {}),
    metrics.MeanMetricWrapper: ("values", {"fn": keras.losses.mean_absolute_error}),
    metrics.Accuracy: ("predicted classes", {}),
    metrics.BinaryAccuracy: ("binary", {}),
    metrics.CategoricalAccuracy: ("one-hot", {}),
    metrics.SparseCategoricalAccuracy: ("class numbers", {}),
    metrics.TopKCategoricalAccuracy: ("one-hot", {"k": 2}),
    metrics.SparseTopKCategoricalAccuracy: ("class numbers", {"k": 2}),
    metrics.AUC: ("binary", {}),
    metrics.FalseNegatives: ("binary", {}),
    metrics.FalsePositives: ("binary", {}),
    metrics.TrueNegatives: ("binary", {}),
    metrics.TruePositives: ("binary", {}),
    metrics.Precision: ("binary", {}),
    metrics.Recall: ("binary", {}),
    metrics.PrecisionAtRecall: ("binary", {"recall": 0.5}),
    metrics.RecallAtPrecision: ("binary", {"precision": 0.5}),
    metrics.SensitivityAtSpecificity: ("binary", {"specificity": 0.5}),
    metrics.SpecificityAtSensitivity: ("binary", {"sensitivity": 0.5}),
    metrics.ConcordanceCorrelation: ("values", {}),
    metrics.PearsonCorrelation: ("values", {}),
    metrics.F1Score: ("one-hot", {}),
    metrics.FBetaScore: ("one-hot", {"beta": 2.0}),
    metrics.CategoricalHinge: ("one-hot", {}),
    metrics.Hinge: ("signs", {}),
    metrics.SquaredHinge: ("signs", {}),
    metrics.BinaryIoU: ("binary", {}),
    metrics.IoU: ("predicted classes", {"num_classes": 4, "target_class_ids": [0, 2]}),
    metrics.MeanIoU: ("predicted classes", {"num_classes": 4}),
    metrics.OneHotIoU: ("one-hot", {"num_classes": 4, "target_class_ids": [0, 2]}),
    metrics.OneHotMeanIoU: ("one-hot", {"num_classes": 4}),
    metrics.BinaryCrossentropy: ("binary", {}),
    metrics.CategoricalCrossentropy: ("one-hot", {}),
    metrics.SparseCategoricalCrossentropy: ("class numbers", {}),
    metrics.KLDivergence: ("one-hot", {}),
    metrics.Poisson: ("values", {}),
    metrics.CosineSimilarity: ("values", {}),
    metrics.LogCoshError: ("values", {}),
    metrics.MeanAbsoluteError: ("values", {}),
    metrics.MeanAbsolutePercentageError: ("values", {}),
    metrics.MeanSquaredError: ("values", {}),
    metrics.MeanSquaredLogarithmicError: ("values", {}),
    metrics.R2Score: ("values", {}),
    metrics.RootMeanSquaredError: ("values", {}),
}


def test_every_metric_of_keras_is_in_the_table():
    found = {c for c in vars(metrics).values() if inspect.isclass(c)} - {metrics.Metric}
    assert {c.__name__ for c in found} == {c.__name__ for c in KERAS_METRICS}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KERAS_METRICS, ids=lambda kind: kind.__name__)
def test_the_state_of_a_metric_of_keras_adds_up(kind, weighted):
    data, arguments = KERAS_METRICS[kind]

    def after(part):
        metric = kind(**arguments)
        weights = {"sample_weight": WEIGHTS[part]} if weighted else {}
        metric.update_state(*(leaf[part] for leaf in DATA[data]), **weights)
        return metric, [np.asarray(v.numpy(), "float64") for v in metric.variables]

    (_, first), (_, second) = after(slice(0, 5)), after(slice(5, 12))
    metric, whole = after(slice(0, 12))
    added = [a + b for a, b in zip(first, second, strict=True)]
    for one, other in zip(added, whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
    expected = np.asarray(metric.result())
    for variable, value in zip(metric.variables, added, strict=True):
        variable.assign(value)
    np.testing.assert_allclose(np.asarray(metric.result()), expected, rtol=1e-5, atol=1e-6)
