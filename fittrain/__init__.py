"""Keras-style training on MPI clusters."""

from fittrain.version import __version__

__all__ = ["__version__"]
