"""Arrays in memory or mapped from a file, in any nesting of tuples, lists and dicts.

Owns the check that they belong together and the gathering of rows. Nothing is copied whole.

Synopsis::

    source = ArraySource({"image": images}, labels)
    source.length
    source.gather(np.array([4, 0, 7]))      # the same nesting, three rows of each
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fittrain.data.class_weight import ClassWeights, check_class_weight
from fittrain.data.ragged import RAGGED_HINT, refuse_ragged
from fittrain.data.rows import feed_dtype, take_rows
from fittrain.errors import ArgumentError

__all__ = ["ArraySource", "feed_dtype"]


class ArraySource:
    """Rows of arrays that share their first dimension.

    Args:
        x: input arrays of shape (samples, ...): NumPy arrays, memory maps, tensors, or tuples,
            lists and dicts of them.
        y: targets, like `x`; or None.
        sample_weight: one weight for each sample, like `x`; or None.

    Raises:
        ArgumentError: if an array is missing, has no first dimension, another length than the
            others, or cannot become a tensor.

    Example:
        >>> source = ArraySource(np.zeros((5, 2)), np.arange(5))
        >>> source.gather(np.array([3, 1]))[1].tolist()
        [3, 1]
    """

    def __init__(self, x: Any, y: Any = None, sample_weight: Any = None) -> None:
        parts = {"x": x, "y": y, "sample_weight": sample_weight}
        for name, part in parts.items():
            refuse_ragged(part, name)
        self.nest: tuple[Any, ...] = tuple(
            _map(lambda leaf, path: _as_array(leaf, path), part, name)
            for name, part in parts.items()
            if part is not None
        )
        if y is None and sample_weight is not None:
            raise ArgumentError("`sample_weight` was given without `y`. Give both, or neither.")
        self._names = [name for name, part in parts.items() if part is not None]
        self._check_weights()
        self.leaves = self._leaves_with_paths()
        self.length = self._common_length()

    @property
    def row_bytes(self) -> int:
        """Bytes of one sample over all arrays."""
        return sum(
            int(np.prod(leaf.shape[1:], dtype=np.int64)) * feed_dtype(leaf.dtype).itemsize
            for _, leaf in self.leaves
        )

    def describe(self) -> dict[str, str]:
        """Shape and dtype of every array, by its path: what ranks compare before they start."""
        return {path: f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in self.leaves}

    def describe_rows(self) -> str:
        """Shape and dtype of a row of every array: what a compiled step is made for."""
        return str([(path, str(leaf.dtype), leaf.shape[1:]) for path, leaf in self.leaves])

    def gather(self, indices: np.ndarray) -> tuple[Any, ...]:
        """Rows at `indices`, in the nesting of the source, as fresh arrays in `floatx`."""
        return self.map(lambda leaf: take_rows(leaf, indices, feed_dtype(leaf.dtype)))

    def map(self, function: Any) -> tuple[Any, ...]:
        """`function` of every array, in the nesting of the source."""
        return tuple(_map(lambda leaf, _: function(leaf), part, "") for part in self.nest)

    def slice(self, start: int, stop: int) -> ArraySource:
        """The samples [start, stop) as views of the same arrays."""
        parts = dict(zip(self._names, self.map(lambda leaf: leaf[start:stop]), strict=True))
        return ArraySource(**parts)

    def weigh_classes(self, class_weight: Any) -> ArraySource:
        """The same samples, weighted by the class of their target, as Keras's `class_weight` does.

        Args:
            class_weight: dict from class to weight; None leaves the source as it is. Targets are
                looked at as they are gathered, so that mapped ones stay unread.

        Raises:
            ArgumentError: if the dict cannot work, or the source has weights already or anything
                but one target array.
        """
        if class_weight is None:
            return self
        by_class = check_class_weight(class_weight)
        if "sample_weight" in self._names:
            raise ArgumentError(
                "`class_weight` and `sample_weight` both give a weight to each sample. Give one of "
                "them, or multiply them into `sample_weight`."
            )
        y = self.nest[1] if "y" in self._names else None
        if not isinstance(y, np.ndarray):
            what = "None" if y is None else f"a {type(y).__name__} of {len(y)}"
            raise ArgumentError(
                "`class_weight` is for a model with one output, whose targets are one array. "
                f"Received: y={what}. Pass `sample_weight` for each output, in the nesting of `y`."
            )
        return ArraySource(self.nest[0], y, ClassWeights(y, by_class))

    def _check_weights(self) -> None:
        """Refuses weights that belong to no target."""
        if "sample_weight" not in self._names:
            return
        _, y, weights = self.nest
        if _is_nest(weights) and _paths(weights, "") != _paths(y, ""):
            raise ArgumentError(
                "`sample_weight` must be one array, or one for each output in the nesting of `y`. "
                f"Received: {_paths(y, 'y')} and {_paths(weights, 'sample_weight')}."
            )

    def _leaves_with_paths(self) -> list[tuple[str, np.ndarray]]:
        leaves: list[tuple[str, np.ndarray]] = []
        for name, part in zip(self._names, self.nest, strict=True):
            _map(lambda leaf, path: leaves.append((path, leaf)), part, name)
        if not leaves:
            raise ArgumentError("`x` holds no array. Received: x=None or an empty structure.")
        return leaves

    def _common_length(self) -> int:
        lengths = {path: leaf.shape[0] for path, leaf in self.leaves}
        if len(set(lengths.values())) > 1:
            # One of each length, since a list of rows would make a long message.
            examples = {length: path for path, length in reversed(lengths.items())}
            found = {path: lengths[path] for path in lengths if path in examples.values()}
            inputs = {lengths[path] for path in lengths if path.startswith("x[")}
            hint = RAGGED_HINT if isinstance(self.nest[0], tuple) and len(inputs) > 1 else ""
            raise ArgumentError(
                f"Arrays must have the same number of samples. Received: {found}.{hint}"
            )
        length = int(next(iter(lengths.values())))
        if length == 0:
            raise ArgumentError(f"`{self.leaves[0][0]}` holds no samples. Received: {lengths}.")
        return length


def _map(function: Any, structure: Any, path: str) -> Any:
    if isinstance(structure, dict):
        return {key: _map(function, value, f"{path}[{key!r}]") for key, value in structure.items()}
    if isinstance(structure, (tuple, list)):
        if hasattr(structure, "_fields"):
            return type(structure)(
                *(
                    _map(function, value, f"{path}.{name}")
                    for name, value in zip(structure._fields, structure, strict=True)
                )
            )
        return tuple(_map(function, value, f"{path}[{i}]") for i, value in enumerate(structure))
    return function(structure, path)


def _is_nest(structure: Any) -> bool:
    return isinstance(structure, (dict, tuple))


def _paths(structure: Any, name: str) -> str:
    found: list[str] = []
    _map(lambda _, path: found.append(path), structure, name)
    return ", ".join(sorted(found))


def _as_array(leaf: Any, path: str) -> Any:
    """A NumPy view of an array or tensor; nothing else is guessed at."""
    if isinstance(leaf, ClassWeights):
        return leaf
    array = leaf if isinstance(leaf, np.ndarray) else _from_array_protocol(leaf, path)
    if array.ndim == 0:
        raise ArgumentError(
            f"`{path}` must have a first dimension of samples. Received: a scalar {array!r}. "
            "Lists of numbers become arrays with numpy.asarray."
        )
    if isinstance(array, np.ma.MaskedArray):
        raise ArgumentError(
            f"`{path}` is a masked array, whose mask would be lost. Use `.filled`, or pass "
            "`sample_weight`."
        )
    if array.dtype.kind not in "biufcSU":
        raise ArgumentError(
            f"`{path}` cannot become a tensor. Received: dtype={array.dtype}. "
            "Convert it with `.astype` first."
        )
    return array


def _from_array_protocol(leaf: Any, path: str) -> np.ndarray:
    if isinstance(leaf, (int, float, bool, str, bytes)) or hasattr(leaf, "__array__"):
        return np.asarray(leaf)
    raise ArgumentError(
        f"`{path}` must be an array: a numpy.ndarray, a memory map or a tensor. "
        f"Received: {type(leaf).__name__}."
    )
