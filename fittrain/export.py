"""Writing a model as a plain Keras file, all or nothing."""

from __future__ import annotations

import os
from pathlib import Path

import keras

from fittrain.errors import ArgumentError, StorageError


def check_model_path(path: str | os.PathLike[str]) -> Path:
    """The path of a Keras file.

    Raises:
        ArgumentError: if `path` is no path, or does not end in ".keras".
    """
    if not isinstance(path, (str, os.PathLike)) or Path(path).suffix != ".keras":
        raise ArgumentError(f"`path` must end in '.keras'. Received: path={path!r}.")
    return Path(path)


def write_model(model: keras.Model, target: Path) -> None:
    """Writes under a temporary name, then renames: readers see the old file or the new one.

    Raises:
        StorageError: if the file cannot be written, with the path and the reason.
    """
    partial = target.with_name(f".{target.stem}.{os.getpid()}.keras")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        model.save(partial)
        partial.replace(target)
    except OSError as error:
        raise StorageError(
            f"{target} cannot be written: {error.strerror or error}. Nothing was changed there; "
            "choose another `path`, or make room."
        ) from error
    finally:
        if partial.exists():
            partial.unlink()
