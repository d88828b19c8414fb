"""Refusing rows of different lengths: a batch of them has no shape.

Synopsis::

    refuse_ragged([[1, 2], [3]], "x")        # ArgumentError: `x` is ragged ...
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fittrain.errors import ArgumentError

SCALARS = (int, float, complex, str, bytes, np.generic)
RAGGED_HINT = (
    " A list means several inputs; if these are the rows of one ragged input, pad them with "
    "keras.utils.pad_sequences."
)
"""For lists of arrays of different lengths, which may be meant as either."""

ROWS = (list, tuple, set, np.ndarray)


def refuse_ragged(structure: Any, path: str) -> None:
    """Refuses ragged tensors, object arrays of rows, and lists of rows, wherever they are.

    Args:
        structure: an argument for data: arrays in any nesting.
        path: its name.

    Raises:
        ArgumentError: naming the first that is ragged, and what to do.
    """
    if isinstance(structure, dict):
        for key, value in structure.items():
            refuse_ragged(value, f"{path}[{key!r}]")
    elif isinstance(structure, (list, tuple)):
        if _is_list_of_rows(structure):
            raise _error(path, f"a {type(structure).__name__} of {len(structure)} rows")
        for index, value in enumerate(structure):
            # Numbers in a list are refused elsewhere, and there may be many.
            if not isinstance(value, SCALARS):
                refuse_ragged(value, f"{path}[{index}]")
    elif _is_ragged_tensor(structure):
        raise _error(path, f"a {type(structure).__name__} of shape {tuple(structure.shape)}")
    elif _is_array_of_rows(structure):
        raise _error(path, f"an object array of shape {structure.shape}")


def _error(path: str, received: str) -> ArgumentError:
    return ArgumentError(
        f"`{path}` is ragged: its rows have different lengths, and a batch needs one shape. "
        f"Received: {received}. Pad the rows with keras.utils.pad_sequences, which makes an array, "
        "and let the model skip what was padded: Embedding(mask_zero=True), or a Masking layer."
    )


def _is_ragged_tensor(leaf: Any) -> bool:
    return type(leaf).__name__.startswith("RaggedTensor") and hasattr(leaf, "row_splits")


def _is_array_of_rows(leaf: Any) -> bool:
    if not isinstance(leaf, np.ndarray) or leaf.dtype != object:
        return False
    return any(isinstance(row, ROWS) or hasattr(row, "__array__") for row in leaf.flat)


def _is_list_of_rows(structure: Any) -> bool:
    """Whether lists of numbers, in a list or deeper, do not make an array."""
    if not _holds_numbers_alone(structure):
        return False
    try:
        np.asarray(structure)
    except ValueError:
        return True
    return False


def _holds_numbers_alone(structure: Any) -> bool:
    if isinstance(structure, (list, tuple)):
        return all(map(_holds_numbers_alone, structure))
    return isinstance(structure, SCALARS)
