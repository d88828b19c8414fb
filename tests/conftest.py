"""Lets the tests import `fittrain.callbacks` in a checkout that is not installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import fittrain

CHECKOUT = Path(__file__).resolve().parents[1]

# The checkout's `fittrain/` hides an installed package and has no `callbacks/` inside; an editable
# install maps it already. Python searches a package's `__path__` for its parts.
in_checkout = Path(fittrain.__file__).resolve().parent == CHECKOUT / "fittrain"
if in_checkout and importlib.util.find_spec("fittrain.callbacks") is None:
    fittrain.__path__.append(str(CHECKOUT))
