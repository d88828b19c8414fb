"""Every error fittrain raises on purpose.

The tree::

    FittrainError
    |- ArgumentError          (ValueError)    an argument that cannot work
    |- MissingDependencyError (ImportError)   TensorFlow, an MPI library or Horovod is not there
    |- LaunchError            (RuntimeError)  launcher, MPI library and ranks do not fit together
    |- RankMismatchError      (ValueError)    ranks were given different things
    |- DriftError             (RuntimeError)  replicas no longer hold the same weights
    |- NotFiniteError         (ArithmeticError) gradients are infinite or NaN, again and again
    |- StorageError           (OSError)       a file could not be written
    |- PeerError              (RuntimeError)  another rank failed; the cause is on that rank
    `- BuildError             (RuntimeError)  Horovod could not be built

Messages say what is wrong with which argument, what was received, and what to do.
"""

from __future__ import annotations


class FittrainError(Exception):
    """Base of every error that fittrain raises on purpose."""


class ArgumentError(FittrainError, ValueError):
    """An argument cannot work; nothing has been trained or written."""


class MissingDependencyError(FittrainError, ImportError):
    """A package or library is missing; the message is the command that brings it."""


class LaunchError(FittrainError, RuntimeError):
    """The launcher, the MPI library and the number of ranks do not fit together."""


class RankMismatchError(FittrainError, ValueError):
    """Ranks were given different models, data or arguments."""


class DriftError(FittrainError, RuntimeError):
    """The ranks' weights are no longer the same."""


class NotFiniteError(FittrainError, ArithmeticError):
    """Gradients are not finite, update after update; nothing more would be learned."""


class StorageError(FittrainError, OSError):
    """A file could not be written; what was there before is unchanged."""


class PeerError(FittrainError, RuntimeError):
    """Another rank failed or left; its own error is the one to read."""


class BuildError(FittrainError, RuntimeError):
    """Horovod could not be built; nothing was installed."""
