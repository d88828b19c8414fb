"""Arrays in memory or mapped from a file, in any nesting of tuples, lists and dicts.

Owns the check that they belong together and the gathering of rows. Nothing is copied whole.

Synopsis::

    source = ArraySource({"image": images}, labels)
    source.length
    source.gather(np.array([4, 0, 7]))      # the same nesting, three rows of each
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from fittrain.errors import ArgumentError

MAPPED_ROWS = 64
"""Scattered rows read from a mapped file before its pages are given back to the system.

Linux maps the surroundings of every page that is read, seen up to 512 KiB: without this, a few
hundred scattered rows hold a whole file in memory.
"""


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
        self.nest: tuple[Any, ...] = tuple(
            _map(lambda leaf, path: _as_array(leaf, path), part, name)
            for name, part in parts.items()
            if part is not None
        )
        if y is None and sample_weight is not None:
            raise ArgumentError("`sample_weight` was given without `y`. Give both, or neither.")
        self._names = [name for name, part in parts.items() if part is not None]
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
        return self.map(lambda leaf: _take(leaf, indices))

    def map(self, function: Any) -> tuple[Any, ...]:
        """`function` of every array, in the nesting of the source."""
        return tuple(_map(lambda leaf, _: function(leaf), part, "") for part in self.nest)

    def slice(self, start: int, stop: int) -> ArraySource:
        """The samples [start, stop) as views of the same arrays."""
        parts = dict(zip(self._names, self.map(lambda leaf: leaf[start:stop]), strict=True))
        return ArraySource(**parts)

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
            raise ArgumentError(
                f"Arrays must have the same number of samples. Received: {lengths}."
            )
        length = int(next(iter(lengths.values())))
        if length == 0:
            raise ArgumentError(f"`{self.leaves[0][0]}` holds no samples. Received: {lengths}.")
        return length


def feed_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which rows reach the model: floats become Keras's `floatx`, as in Keras."""
    import keras

    return np.dtype(keras.config.floatx()) if np.issubdtype(dtype, np.floating) else dtype


def _take(leaf: np.ndarray, indices: np.ndarray) -> np.ndarray:
    dtype = feed_dtype(leaf.dtype)
    if _is_run(indices):
        return np.asarray(leaf[indices[0] : indices[-1] + 1]).astype(dtype, copy=False)
    mapping = file_mapping(leaf)
    if mapping is None:
        return np.asarray(leaf[indices]).astype(dtype, copy=False)
    rows = np.empty((len(indices), *leaf.shape[1:]), dtype)
    for start in range(0, len(indices), MAPPED_ROWS):
        chunk = slice(start, start + MAPPED_ROWS)
        rows[chunk] = leaf[indices[chunk]]
        mapping.madvise(mmap.MADV_DONTNEED)
    return rows


def file_mapping(array: np.ndarray) -> mmap.mmap | None:
    """The mapping behind a memory map whose pages may be dropped and read again.

    A copy-on-write map holds the user's changes in its pages, so those must stay.
    """
    mapping = getattr(array, "_mmap", None)
    reread = isinstance(mapping, mmap.mmap) and getattr(array, "mode", None) in ("r", "r+")
    return mapping if reread else None


def _is_run(indices: np.ndarray) -> bool:
    return bool(
        len(indices) > 0
        and indices[-1] - indices[0] + 1 == len(indices)
        and np.all(np.diff(indices) == 1)
    )


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


def _as_array(leaf: Any, path: str) -> np.ndarray:
    """A NumPy view of an array or tensor; nothing else is guessed at."""
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
