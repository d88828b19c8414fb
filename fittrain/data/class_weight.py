"""Keras's `class_weight`: a weight for each sample by the class of its target, found as it is read.

Synopsis::

    weights = ClassWeights(labels, check_class_weight({0: 1.0, 1: 2.5}))
    weights[np.array([3, 1])]            # labels 1 and 0: array([2.5, 1.0])
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np

from fittrain.data.rows import feed_dtype, take_rows
from fittrain.errors import ArgumentError


@dataclass(frozen=True)
class ClassWeights:
    """Stands for the array of sample weights that `class_weight` means, and computes what is read.

    The class of a sample is its label, rounded, or the place of the largest entry of a row of
    several. Classes that are not mentioned weigh 1. All of it is as in Keras.

    Args:
        labels: targets, shape (samples,), (samples, 1) or one-hot (samples, classes).
        by_class: weight of each class.

    Raises:
        ArgumentError: if `labels` tell no class.

    Example:
        >>> ClassWeights(np.array([0, 1, 2]), {1: 5.0})[:].tolist()
        [1.0, 5.0, 1.0]
    """

    labels: np.ndarray
    by_class: Mapping[int, float]
    dtype: np.dtype[Any] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", feed_dtype(np.dtype("float64")))
        if self.labels.ndim > 2 or self.labels.dtype.kind not in "biuf":
            raise ArgumentError(
                "`class_weight` needs targets that are numbers of classes, shape (samples,) or "
                "(samples, 1), or one-hot, shape (samples, classes). Received: "
                f"y={self.labels.dtype}{list(self.labels.shape)}. Pass `sample_weight` instead."
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """One number, that of the samples."""
        return self.labels.shape[:1]

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Weights of some samples, by a slice or an array of their numbers."""
        if isinstance(rows, slice):
            return self._weigh(np.asarray(self.labels[rows]))
        return self._weigh(take_rows(self.labels, rows, self.labels.dtype))

    def _weigh(self, labels: np.ndarray) -> np.ndarray:
        if labels.ndim > 1:
            labels = labels[:, 0] if labels.shape[-1] == 1 else np.argmax(labels, axis=-1)
        classes = np.round(labels).astype(np.int32)
        weights = np.ones(len(classes), self.dtype)
        for number, weight in self.by_class.items():
            weights[classes == number] = weight
        return weights


def check_class_weight(class_weight: Any) -> dict[int, float]:
    """The weights by number of class, in ascending order.

    Raises:
        ArgumentError: if it is no dict from whole numbers to weights that are 0 or more.
    """
    if not isinstance(class_weight, Mapping):
        raise ArgumentError(
            "`class_weight` must be a dict from numbers of classes to weights. "
            f"Received: {type(class_weight).__name__}."
        )
    for number, weight in class_weight.items():
        if not isinstance(number, Real) or not float(number).is_integer():
            raise ArgumentError(
                "`class_weight` must have whole numbers as keys, which are the classes in `y`. "
                f"Received: {number!r}."
            )
        if not isinstance(weight, Real) or not math.isfinite(weight) or weight < 0:
            raise ArgumentError(
                "`class_weight` must have weights that are numbers, 0 or more. "
                f"Received: {weight!r} for class {number!r}."
            )
    return {int(number): float(class_weight[number]) for number in sorted(class_weight)}


def describe_class_weight(class_weight: Mapping[Any, Any] | None) -> str | None:
    """The checked weights in words that are the same on all ranks, whatever their types."""
    return None if class_weight is None else str(check_class_weight(class_weight))
