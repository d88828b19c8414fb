"""Lets the tests import `fittrain.callbacks` in a checkout that is not installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

import fittrain

CHECKOUT = Path(__file__).resolve().parents[1]

# The checkout's `fittrain/` hides an installed package and has no `callbacks/` inside; an editable
# install maps it already. Python searches a package's `__path__` for its parts.
in_checkout = Path(fittrain.__file__).resolve().parent == CHECKOUT / "fittrain"
if in_checkout and importlib.util.find_spec("fittrain.callbacks") is None:
    fittrain.__path__.append(str(CHECKOUT))


@pytest.fixture
def fresh_session(monkeypatch):
    """Starts fittrain anew for a test; what it hooks into the process is put back."""
    from fittrain import session

    monkeypatch.setattr(session, "_session", None)
    monkeypatch.setattr(session, "_preferred", "auto")
    for hook in ("excepthook", "exit"):
        monkeypatch.setattr(sys, hook, getattr(sys, hook))
