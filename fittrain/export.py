"""Writing files, all or nothing; the model as a plain Keras file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    """Writes a model under a temporary name, then renames: readers see the old file or the new.

    Raises:
        StorageError: if the file cannot be written, with the path and the reason.
    """
    _write(target, f".{target.stem}.{os.getpid()}.keras", model.save)


def write_text(target: Path, text: str) -> None:
    """Writes a text file in the same way.

    Raises:
        StorageError: if the file cannot be written, with the path and the reason.
    """
    _write(target, f".{target.name}.{os.getpid()}", lambda path: path.write_text(text))


def _write(target: Path, partial_name: str, write: Callable[[Path], Any]) -> None:
    partial = target.with_name(partial_name)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write(partial)
        partial.replace(target)
    except OSError as error:
        raise StorageError(
            f"{target} cannot be written: {error.strerror or error}. Nothing was changed there; "
            "choose another path, or make room."
        ) from error
    finally:
        if partial.exists():
            partial.unlink()
