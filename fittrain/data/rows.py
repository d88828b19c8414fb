"""Reading rows of one array, in memory or mapped from a file.

Synopsis::

    take_rows(np.memmap("images.bin", ...), np.array([4, 0, 7]), np.dtype("float32"))
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

MAPPED_ROWS = 64
"""Scattered rows read from a mapped file before its pages are given back to the system.

Linux maps the surroundings of every page that is read, seen up to 512 KiB: without this, a few
hundred scattered rows hold a whole file in memory.
"""


def feed_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which rows reach the model: floats become Keras's `floatx`, as in Keras."""
    import keras

    return np.dtype(keras.config.floatx()) if np.issubdtype(dtype, np.floating) else dtype


def take_rows(leaf: Any, indices: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """The rows at `indices`, converted to `dtype`."""
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


def file_mapping(array: Any) -> mmap.mmap | None:
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
